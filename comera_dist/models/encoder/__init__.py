"""A BERT-style encoder."""
