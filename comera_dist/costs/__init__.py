"""Costs of a run, computed before any tensor exists."""
