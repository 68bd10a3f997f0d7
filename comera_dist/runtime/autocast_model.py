"""The compute precision of a model."""

import torch
from torch import Tensor, nn


class AutocastModel(nn.Module):
    """Runs the model's forward in the compute precision; parameters, gradients and moments stay fp32.

    Autocast sits inside the module that DeepSpeed wraps: its own `torch_autocast` would also send dense gradients in
    bf16, and its `bf16` mode rounds the initial weights.
    """

    def __init__(self, model: nn.Module, precision: str):
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, *batch: Tensor) -> Tensor | dict[str, Tensor]:
        """The summed loss of a batch in training mode, otherwise the figures of the model's `measure`."""
        with torch.autocast(batch[0].device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            return self.model(*batch) if self.training else self.model.measure(*batch)
