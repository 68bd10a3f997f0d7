"""Rank adaptation: which ranks a run keeps, agreed by all processes, and cores that are really cut."""
