"""The command comera-doctor, from a clone: deepspeed launch/doctor.py"""

import sys

from comera_dist.commands.doctor import main

if __name__ == "__main__":
    sys.exit(main())
