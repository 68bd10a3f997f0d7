"""GaLore (Zhao et al., ICML 2024): AdamW whose moments live in a low-rank projection of the gradients."""

from torch import nn
from torch.optim import Optimizer

from comera_dist.errors import ConfigError

# Those of the scripts that its authors publish.
PROJECTION = {"update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}


def galore_adamw(
    model: nn.Module, rank: int, lr: float, weight_decay: float = 0.0, targets: tuple[str, ...] = ("attn", "mlp")
) -> Optimizer:
    """GaLoreAdamW of galore-torch: weights of nn.Linear layers whose name holds a target are projected to `rank`.

    All others take plain AdamW steps. Raises ConfigError where the package is not installed or nothing is projected.
    """
    try:
        from galore_torch import GaLoreAdamW
    except ImportError as error:
        raise ConfigError(
            f"galore-torch was not found ({error}), but this rival is its optimizer; "
            "run pip install -c constraints.txt galore-torch"
        ) from error
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    projected = [module.weight for name, module in linears.items() if any(target in name for target in targets)]
    if not projected:
        raise ConfigError(
            f"no nn.Linear has one of {targets} in its name, but GaLore needs matrices to project; "
            f"name targets that occur in: {', '.join(linears) or 'a model with dense linear layers'}"
        )
    chosen = {id(weight) for weight in projected}
    plain = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    groups = [{"params": plain}, {"params": projected, "rank": rank, **PROJECTION}]
    return GaLoreAdamW(groups, lr=lr, weight_decay=weight_decay, no_deprecation_warning=True)
