"""The command comera-predict, from a clone: python launch/predict.py --run runs/NAME --input FILE"""

import sys

from comera_dist.commands.predict import main

if __name__ == "__main__":
    sys.exit(main())
