"""Text from a trained decoder."""
