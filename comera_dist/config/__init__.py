"""The configuration of a run: sections of keys, their checks, and the reader. Imports neither torch nor DeepSpeed."""
