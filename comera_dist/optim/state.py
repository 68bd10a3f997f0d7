"""What optimizers keep of a parameter between steps.

Shapes: a matrix (M, N), R the rank that GaLore projects its gradient to.
"""

import torch
from torch import Tensor
from torch.optim import AdamW

MOMENTS = ("exp_avg", "exp_avg_sq")


def kept_tensors(state: dict) -> dict[str, Tensor]:
    """The tensors of one parameter's state by kind, without its step count.

    AdamW: `exp_avg` and `exp_avg_sq`; Muon: `momentum_buffer`; GaLore: both moments, projected, and the basis
    `projection`.
    """
    tensors = {kind: value for kind, value in state.items() if isinstance(value, Tensor) and kind != "step"}
    return tensors | ({"projection": state["projector"].ortho_matrix} if "projector" in state else {})


def blank_state(group: dict, parameter: Tensor, step: int = 0) -> dict:
    """What the optimizer of a parameter group keeps of a parameter after `step` steps, with zeros in all tensors."""
    if "update_proj_gap" in group:
        return _galore_state(group, parameter, step)
    if "momentum" in group:
        return {"momentum_buffer": torch.zeros_like(parameter, requires_grad=False)}
    return adamw_state(parameter, step)


def adamw_state(parameter: Tensor, step: int = 0) -> dict[str, Tensor]:
    # A step tensor of its own for each: a shared one would advance once a parameter.
    moments = {kind: torch.zeros_like(parameter, requires_grad=False) for kind in MOMENTS}
    return {"step": torch.tensor(float(step)), **moments}


def _galore_state(group: dict, matrix_MN: Tensor, step: int) -> dict:
    """As GaLoreAdamW makes it: the shorter side of the gradient is projected, and counts of steps are integers."""
    from galore_torch.galore_projector import GaLoreProjector

    projector = GaLoreProjector(**{key: group[key] for key in ("rank", "update_proj_gap", "scale", "proj_type")})
    M, N = matrix_MN.shape
    rank = min(group["rank"], M, N)
    # In memory the basis lies as in the decomposition that it is a part of, column by column: a product with another
    # layout rounds otherwise, and a resumed run would not be the uninterrupted one.
    if M >= N:
        projector.ortho_matrix, moments = matrix_MN.new_zeros(N, N).T[:rank], (M, rank)
    else:
        projector.ortho_matrix, moments = matrix_MN.new_zeros(rank, M).T, (rank, N)
    return {"step": step, "projector": projector, **{kind: matrix_MN.new_zeros(moments) for kind in MOMENTS}}


def open_state(optimizer: AdamW) -> list[Tensor]:
    """All of AdamW's state. What torch makes in the first step is made now, and is where the step reads it."""
    tensors = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state |= adamw_state(parameter)
            if group["capturable"]:
                state["step"] = state["step"].to(parameter.device)
            tensors += state.values()
    return tensors
