"""Compresses trained dense models: which ranks a budget affords, and the closest weights of these ranks."""
