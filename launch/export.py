"""The command comera-export, from a clone: python launch/export.py --run runs/NAME --output FOLDER"""

import sys

from comera_dist.commands.export import main

if __name__ == "__main__":
    sys.exit(main())
