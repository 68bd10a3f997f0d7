"""launch/pretrain.py under a launcher, which marks moments in the file that the variable MARKS names."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    sys.path[0] = str(ROOT / "tests")
    from soak.marks import mark_moments

    from comera_dist.commands.pretrain import main

    mark_moments(Path(os.environ["MARKS"]))
    main()
