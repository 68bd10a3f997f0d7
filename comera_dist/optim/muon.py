"""Muon (Jordan et al. 2024): momentum whose update is made orthogonal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from comera_dist.formats.base import BF16
from comera_dist.optim.base import MEAN, Group, WholeMatrices, newton_schulz_flops

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Muon(WholeMatrices):
    """Updates are scaled to the root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982): `optim.lr` suits both.

    The weight decay of a step is lr · weight_decay, as in AdamW.
    """

    name = "muon"
    roles: ClassVar[Mapping[str, str]] = {"momentum_buffer": MEAN}
    product_bytes = BF16

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        return newton_schulz_flops(matrices, rows, columns)

    def build(self, groups: list[Group]) -> "Optimizer":
        import torch

        return torch.optim.Muon(groups, lr=self.config.lr, adjust_lr_fn="match_rms_adamw")
