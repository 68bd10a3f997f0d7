"""Kernels that no layer uses until a GPU measurement shows that they are faster."""
