"""Checkpoints: written, verified and read."""
