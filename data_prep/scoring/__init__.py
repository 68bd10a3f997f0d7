"""Rows to score: the same code turns them into numbers that prepared the training data of the model."""
