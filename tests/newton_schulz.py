"""The slow oracle of Newton–Schulz iterations: their polynomials on the singular values of a decomposition."""

import numpy as np

from comera_dist.optim.polynomials import POLYNOMIALS


def near_orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Of a matrix (R, C) in float64."""
    U, S, Vh = np.linalg.svd(matrix, full_matrices=False)
    S = S / np.sum(S**8) ** 0.125
    for a, b, c in POLYNOMIALS:
        S = a * S + b * S**3 + c * S**5
    return U @ np.diag(S) @ Vh
