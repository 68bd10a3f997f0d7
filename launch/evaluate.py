"""The command comera-evaluate, from a clone: python launch/evaluate.py --run runs/NAME"""

import sys

from comera_dist.commands.evaluate import main

if __name__ == "__main__":
    sys.exit(main())
