"""Text generation with a trained decoder."""
