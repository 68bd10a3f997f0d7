"""Kinds of models whose matrices are stored as a plan says."""
