"""Reports of a run to people and to other programs: console, log files, plots, W&B."""
