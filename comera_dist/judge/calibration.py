"""Calibration: whether a prediction that a model makes with confidence p is right in a share p of all cases.

Shapes: T targets, C classes or entries of a vocabulary, M bins.
"""

from typing import Any

import torch
from torch import Tensor

from comera_dist.ops.targets import IGNORED_TARGET

BINS = 15  # the number in Guo et al. 2017


def calibration_sums(probabilities_TC: Tensor, targets_T: Tensor) -> dict[str, Tensor]:
    """Sums over the targets in each bin of confidence, (M) in float64; an IGNORED_TARGET does not count.

    The prediction is the most probable class, and its probability is the confidence. Bin m holds confidences above
    (m - 1)/M up to m/M.
    """
    counted_T = targets_T != IGNORED_TARGET
    confidence_T, predicted_T = (values_T[counted_T] for values_T in probabilities_TC.max(dim=1))
    right_T = (predicted_T == targets_T[counted_T]).double()
    confidence_T = confidence_T.double()
    bin_T = ((confidence_T * BINS).ceil().long() - 1).clamp(0, BINS - 1)
    weights = {"bin_targets": torch.ones_like(right_T), "bin_confidence": confidence_T, "bin_right": right_T}
    return {name: torch.bincount(bin_T, weight_T, BINS) for name, weight_T in weights.items()}


def calibration_error(targets_M: Tensor, confidence_M: Tensor, right_M: Tensor) -> float:
    """The expected calibration error of the sums in the bins: Σ_m n_m/n · |accuracy(m) - mean confidence(m)|.

    Equation 3 of Guo et al. 2017, "On Calibration of Modern Neural Networks" (arXiv 1706.04599).
    """
    return float((right_M - confidence_M).abs().sum() / targets_M.sum())


def calibration_bins(targets_M: Tensor, confidence_M: Tensor, right_M: Tensor) -> list[dict[str, Any]]:
    """For each bin that holds a target: its bounds, the number of targets, their mean confidence and the accuracy."""
    sums = zip(targets_M.tolist(), confidence_M.tolist(), right_M.tolist(), strict=True)
    return [
        {
            "above": index / BINS,
            "up_to": (index + 1) / BINS,
            "targets": int(targets),
            "confidence": confidence / targets,
            "accuracy": right / targets,
        }
        for index, (targets, confidence, right) in enumerate(sums)
        if targets
    ]
