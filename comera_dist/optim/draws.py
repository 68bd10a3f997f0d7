"""Random numbers of matrices, which depend on nothing but the matrix's name and a count.

So they are the same on every process, at every ZeRO stage and after any resume, and need not be stored.
"""

import hashlib
from typing import TYPE_CHECKING

from comera_dist.optim.projected import Projected

if TYPE_CHECKING:
    import torch
    from torch import nn


class Drawing(Projected):
    """Base of the methods that draw random numbers for each matrix."""

    _names: "dict[nn.Parameter, str]"

    def prepare(self, model: "nn.Module") -> None:
        self._names = {parameter: name for name, parameter in model.named_parameters()}

    def stand_in(self, whole: "nn.Parameter", parameter: "nn.Parameter") -> None:
        self._names[whole] = self._names[parameter]

    def generator(self, matrix: "nn.Parameter", count: int) -> "torch.Generator":
        """The `count`-th generator of the matrix, on its device."""
        import torch

        # 32 bits: PyTorch's CPU generator forgets higher ones.
        digest = hashlib.blake2b(f"{self.name}/{self._names[matrix]}/{count}".encode(), digest_size=4).digest()
        return torch.Generator(matrix.device).manual_seed(int.from_bytes(digest, "big"))
