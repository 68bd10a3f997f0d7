"""The command comera-design, from a clone: python launch/design.py --config FILE --params N"""

import sys

from comera_dist.commands.design import main

if __name__ == "__main__":
    sys.exit(main())
