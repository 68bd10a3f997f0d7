"""What `benchmarks/step.py` measures: cases, the sides of a case ready to step, and the figures of a row."""
