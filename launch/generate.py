"""The command comera-generate, from a clone: python launch/generate.py --run runs/NAME [--prompt TEXT]"""

import sys

from comera_dist.commands.generate import main

if __name__ == "__main__":
    sys.exit(main())
