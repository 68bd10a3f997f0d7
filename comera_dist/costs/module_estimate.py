"""Figures of a module that no plan describes: they follow from its parameters alone."""

from torch import nn

from comera_dist.costs.estimate import FP32, Estimate, ring_bytes, state_bytes
from comera_dist.formats.capabilities import plan_of

# Of forward and backward for each parameter and token, attention scores left out (Kaplan et al. 2020, section 2.1).
FLOPS_PER_PARAMETER = 6


def estimate_module(module: nn.Module, zero_stage: int, num_processes: int) -> Estimate:
    """`dense_params` counts whole matrices in place of compressed ones; the optimizer is taken to keep two moments."""
    params = sum(parameter.numel() for parameter in module.parameters())
    plans = [plan for layer in module.modules() if (plan := plan_of(layer)) is not None]
    dense_params = params + sum(plan.dense_parameters - plan.parameters for plan in plans)
    return Estimate(
        params=params,
        dense_params=dense_params,
        size_bytes=params * FP32,
        compression=dense_params / params,
        matrix_compression=dense_params / params,
        flops_per_token=FLOPS_PER_PARAMETER * params,
        dense_flops_per_token=FLOPS_PER_PARAMETER * dense_params,
        state_bytes_per_process=state_bytes(params, 2 * params, {}, zero_stage, num_processes),
        gradient_bytes_per_step=ring_bytes(params, num_processes),
        dense_gradient_bytes_per_step=ring_bytes(dense_params, num_processes),
        parts={"module": params},
    )
