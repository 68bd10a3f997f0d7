"""Trained models as folders that other programs read."""
