"""Pairs of texts: sources, split, columns of tokens."""
