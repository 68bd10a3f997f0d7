"""The command comera-compress, from a clone: python launch/compress.py --run runs/NAME --params N --output FOLDER"""

import sys

from comera_dist.commands.compress import main

if __name__ == "__main__":
    sys.exit(main())
