"""Figures of a module that no plan describes: they follow from its parameters alone."""

from torch import nn

from comera_dist.costs.estimate import FP32, Estimate, ring_bytes, state_bytes
from comera_dist.formats.tensor_train.tensor_train import TensorTrain

# Of forward and backward for each parameter and token, attention scores left out (Kaplan et al. 2020, section 2.1).
FLOPS_PER_PARAMETER = 6


def estimate_module(module: nn.Module, zero_stage: int, num_processes: int) -> Estimate:
    """`dense_params` counts the whole matrices of tensor trains; the optimizer is taken to keep two moments."""
    params = sum(parameter.numel() for parameter in module.parameters())
    trains = [train for train in module.modules() if isinstance(train, TensorTrain)]
    stored = sum(parameter.numel() for train in trains for parameter in (*train.cores, *train.gates))
    dense_params = params - stored + sum(train.shape.dense_parameters for train in trains)
    return Estimate(
        params=params,
        dense_params=dense_params,
        size_bytes=params * FP32,
        compression=dense_params / params,
        matrix_compression=dense_params / params,
        flops_per_token=FLOPS_PER_PARAMETER * params,
        dense_flops_per_token=FLOPS_PER_PARAMETER * dense_params,
        state_bytes_per_process=state_bytes(params, 2 * params, zero_stage, num_processes),
        gradient_bytes_per_step=ring_bytes(params, num_processes),
        dense_gradient_bytes_per_step=ring_bytes(dense_params, num_processes),
        parts={"module": params},
    )
