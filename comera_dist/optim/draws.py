"""Random numbers of matrices, which depend on nothing but the optimizer, the name of the layer and a count.

So they are the same on every process, at every ZeRO stage and after any resume, and need not be stored.
"""

import hashlib
from typing import TYPE_CHECKING

from comera_dist.optim.projected import Projected

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

BITS = 32  # of a seed: PyTorch's CPU generator forgets higher ones


class Drawing(Projected):
    """Base of the methods that draw random numbers for each matrix."""

    _layers: "dict[Tensor, str]"

    def prepare(self, model: "nn.Module") -> None:
        self._layers = {parameter: name.removesuffix(".weight") for name, parameter in model.named_parameters()}

    def stand_in(self, whole: "nn.Parameter", parameter: "nn.Parameter") -> None:
        self._layers[whole] = self._layers[parameter]

    def layer_of(self, matrix: "Tensor") -> str:
        """The name of the layer whose weight the matrix is."""
        return self._layers[matrix]

    def generator(self, matrix: "Tensor", count: int) -> "torch.Generator":
        """The `count`-th generator of the matrix, on its device."""
        import torch

        return torch.Generator(matrix.device).manual_seed(self._seed(self.layer_of(matrix), count))

    def uniform(self, layer: str, count: int) -> float:
        """The `count`-th number of the layer, uniform in [0, 1)."""
        return self._seed(layer, count) / (1 << BITS)

    def _seed(self, layer: str, count: int) -> int:
        digest = hashlib.blake2b(f"{self.name}/{layer}/{count}".encode(), digest_size=BITS // 8).digest()
        return int.from_bytes(digest, "big")
