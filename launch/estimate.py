"""The command comera-estimate, from a clone: python launch/estimate.py --config FILE [section.key=value …]"""

import sys

from comera_dist.commands.estimate import main

if __name__ == "__main__":
    sys.exit(main())
