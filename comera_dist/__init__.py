"""comera_dist: distributed pretraining of language models whose weights are tensor trains."""

__version__ = "0.1.0"
