"""The command comera-compare, from a clone: python launch/compare.py runs/A runs/B"""

import sys

from comera_dist.commands.compare import main

if __name__ == "__main__":
    sys.exit(main())
