"""Losses of whole runs, at equal tokens, data and search budget."""
