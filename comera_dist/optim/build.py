"""Builds the optimizer that a configuration names."""

import warnings

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from comera_dist.config.tree import Optim, Ranks
from comera_dist.errors import ConfigError
from comera_dist.optim.gate_adamw import GateAdamW
from comera_dist.optim.groups import parameter_groups


class CombinedOptimizer(Optimizer):
    """Optimizers of different parameters as one: it has the groups and the state of all, and steps one after another.

    Groups and state are shared, not copied: a learning rate or a tensor that is set here is theirs.
    """

    def __init__(self, *parts: Optimizer):
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._parts = parts
        for part in parts:
            part.state = self.state

    def step(self, closure=None):
        assert closure is None, "each part would call it"
        for part in self._parts:
            part.step()


def build_optimizer(
    model: nn.Module, config: Optim, ranks: Ranks | None = None, captured: bool = False
) -> AdamW | CombinedOptimizer:
    """AdamW for the model's parameters; or GaLore or Muon for the dense matrices of its blocks, and AdamW for the rest.

    Where `ranks` adapt it is GateAdamW, and the gates of adapted layers are a group of their own.
    With `captured`, on a GPU, AdamW's step can be part of a CUDA graph: its learning rates are tensors then, and its
    arithmetic differs from the usual one in rounding. Raises ConfigError where `config.kind` has no matrix to update or
    is not installed.
    """
    ranks = ranks or Ranks()
    groups = parameter_groups(model, config, ranks.layers)
    if config.kind == "adamw":
        return _adamw(groups, config, GateAdamW if ranks.adapt else AdamW, captured)
    matrices = [group for group in groups if group["name"] == "matrices"]
    if not matrices:
        raise ConfigError(
            f"optim.kind = {config.kind} updates the dense matrices of transformer blocks and the model has none; "
            f"store some of them as dense (e.g. model.format.mlp=dense), or set optim.kind=adamw"
        )
    others = [group for group in groups if group["name"] != "matrices"]
    build = {"galore": _galore, "muon": _muon}[config.kind]
    return CombinedOptimizer(build(matrices, config), _adamw(others, config))


def _adamw(groups: list[dict], config: Optim, kind: type[AdamW] = AdamW, captured: bool = False) -> AdamW:
    device = groups[0]["params"][0].device
    capturable = captured and device.type == "cuda"
    if capturable:
        # The warm-up before a capture is no sign that none will follow.
        warnings.filterwarnings("ignore", message="This instance was constructed with capturable=True")
        for group in groups:
            group["lr"] = torch.tensor(group["lr"], device=device)
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, capturable=capturable)


def _galore(groups: list[dict], config: Optim) -> Optimizer:
    """GaLore (Zhao et al., ICML 2024): AdamW whose moments live in a low-rank projection of the gradients."""
    try:
        from galore_torch import GaLoreAdamW
    except ImportError as error:
        raise ConfigError(
            f"galore-torch was not found ({error}) and optim.kind = galore is its optimizer; run "
            f"pip install -c constraints.txt -e '.[bench]', or set optim.kind=adamw"
        ) from error
    galore = config.galore
    settings = {"rank": galore.rank, "update_proj_gap": galore.update_every, "scale": galore.scale, "proj_type": "std"}
    return GaLoreAdamW(
        [group | settings for group in groups],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        no_deprecation_warning=True,
    )


def _muon(groups: list[dict], config: Optim) -> Optimizer:
    """Muon (Jordan et al. 2024): momentum whose update is made orthogonal.

    Its update has the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982), its weight decay is lr ·
    weight_decay as AdamW's.
    """
    if not hasattr(torch.optim, "Muon"):
        raise ConfigError(
            f"optim.kind = muon needs torch 2.9 or later and found {torch.__version__}; upgrade torch, or set "
            f"optim.kind=adamw"
        )
    return torch.optim.Muon(groups, lr=config.lr, adjust_lr_fn="match_rms_adamw")
