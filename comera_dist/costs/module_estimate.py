"""Figures of a caller's module, which has no plan: they follow from its parameters alone."""

from torch import nn

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import MOMENT_BYTES, Estimate, gradient_bytes, gradient_itemsize, state_bytes
from comera_dist.formats.capabilities import plan_of

# Of a training step for each parameter and token, without attention scores (Kaplan et al. 2020, section 2.1).
FLOPS_PER_PARAMETER = 6


def estimate_module(module: nn.Module, config: Config, num_processes: int) -> Estimate:
    """Figures that suppose an optimizer with two moments, such as AdamW. Layers with a plan have a dense equal."""
    stage, moment = config.train.zero_stage, MOMENT_BYTES[config.optim.moments]
    params = sum(parameter.numel() for parameter in module.parameters())
    plans = [plan for layer in module.modules() if (plan := plan_of(layer)) is not None]
    dense_params = params + sum(plan.dense_parameters - plan.parameters for plan in plans)
    return Estimate(
        parts={"module": params},
        matrix_params=params,
        dense_params=dense_params,
        flops_per_token=FLOPS_PER_PARAMETER * params,
        dense_flops_per_token=FLOPS_PER_PARAMETER * dense_params,
        state_bytes_per_process=state_bytes(params, 2 * params, {}, stage, num_processes, moment),
        num_processes=num_processes,
        gradient_bytes=gradient_bytes(stage, gradient_itemsize(config), config.micro_batches(num_processes)),
    )
