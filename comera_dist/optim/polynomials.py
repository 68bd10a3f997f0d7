"""The polynomials of Newton–Schulz iterations, and what the iterations cost. A cost is asked for without torch."""

# (a, b, c) of each iteration, which makes aσ + bσ³ + cσ⁵ of a singular value σ. A polynomial is the one nearest to 1 on
# the interval to which those before have brought the singular values from 0.01 to 1 (Amsel et al. 2025, "The Polar
# Express", arXiv 2505.16932). Its upper end lies 4% higher, because rounding in bf16 enlarges values, and polynomials
# are steep there. 0.01, 4% and three iterations were chosen: docs/recipe.md has their losses.
POLYNOMIALS = (
    (7.796936585675161, -21.052625792725543, 14.379268287140176),
    (3.5393199964956903, -2.455700548835377, 0.4469592798369637),
    (2.6584960222461578, -1.8511192390165174, 0.38878814903492603),
)


def newton_schulz_flops(iterations: int, matrices: int, rows: int, columns: int) -> int:
    """Iterations X ← aX + (bA + cA²)X with A = XXᵀ of the shorter side (Jordan et al. 2024)."""
    short, long = sorted((rows, columns))
    return iterations * matrices * (4 * short * short * long + 2 * short**3)
