"""Reports of a run to people and to other programs: console, logs, plots."""
