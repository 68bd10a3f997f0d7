"""Benchmarks are scripts and no package: their folder is where they import each other from."""

import sys

from support import ROOT

sys.path.append(str(ROOT / "benchmarks"))
