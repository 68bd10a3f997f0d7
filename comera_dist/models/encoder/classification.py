"""An encoder that classifies sequences.

Shapes: B batch, S sequence, D width, C classes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.plan import Plan
from comera_dist.formats.tensor_train.linear import merged_together
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.encoder.trunk import Trunk, below, build_layers
from comera_dist.ops.targets import IGNORED_TARGET


class EncoderForClassification(nn.Module):
    """Classifies sequences of tokens by their first one; token id 0 is padding.

    `plan` says how each matrix is stored (see `plan_encoder`); weights are drawn from `generator` in a fixed order, or
    left for the caller to load where it is None.
    """

    def __init__(self, config: EncoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan, layers = plan, build_layers(plan, generator)
        self.bert = Trunk(config, below("bert.", layers))
        self.dropout, self.classifier = nn.Dropout(config.dropout), layers["classifier"]

    def forward(self, tokens_BS: Tensor, token_types_BS: Tensor, targets_B: Tensor | None = None) -> Tensor:
        """Logits (B, C); or, with targets, the summed cross-entropy in nats (an IGNORED_TARGET counts nothing).

        Raises ConfigError for a sequence longer than the model's positions.
        """
        with merged_together(self, tokens_BS.numel()):
            x_BSD = self.bert(tokens_BS, token_types_BS)
            logits_BC = self.classifier(self.dropout(self.bert.pooler(x_BSD)))
            return logits_BC if targets_B is None else _cross_entropy(logits_BC, targets_B)

    def measure(self, tokens_BS: Tensor, token_types_BS: Tensor, targets_B: Tensor) -> dict[str, Tensor]:
        """What a validation sums over targets: the loss in nats, and how many are predicted."""
        logits_BC = self(tokens_BS, token_types_BS)
        return {"loss": _cross_entropy(logits_BC, targets_B), "correct": (logits_BC.argmax(-1) == targets_B).sum()}


def _cross_entropy(logits_BC: Tensor, targets_B: Tensor) -> Tensor:
    return F.cross_entropy(logits_BC.float(), targets_B, ignore_index=IGNORED_TARGET, reduction="sum")
