"""How a step runs on many processes."""
