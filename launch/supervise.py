"""The command comera-supervise, from a clone: python launch/supervise.py --run DIRECTORY -- COMMAND"""

import sys

from comera_dist.commands.supervise import main

if __name__ == "__main__":
    sys.exit(main())
