"""The command comera-import-hf, from a clone: python launch/import_hf.py --model FOLDER --output runs/NAME"""

import sys

from comera_dist.commands.import_hf import main

if __name__ == "__main__":
    sys.exit(main())
