"""Pairs of texts: sources, columns of tokens."""
