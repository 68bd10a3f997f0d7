"""The files of a run on the disk, apart from its checkpoints."""
