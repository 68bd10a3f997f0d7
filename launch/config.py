"""The command comera-config, from a clone: python launch/config.py --keys, or FILE [section.key=value …]"""

import sys

from comera_dist.commands.config import main

if __name__ == "__main__":
    sys.exit(main())
