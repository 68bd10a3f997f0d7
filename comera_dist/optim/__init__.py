"""Parameter groups and optimizers: each of them in a file of its own, which says what it keeps of a parameter."""
