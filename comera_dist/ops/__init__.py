"""Tensor operations that know nothing about formats of weights."""
