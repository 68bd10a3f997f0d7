"""A LLaMA-compatible decoder."""
