"""An encoder that predicts hidden tokens.

Shapes: B batch, S sequence, D width, P places of a sequence, T = B·P places of a batch, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.capabilities import embedding_table
from comera_dist.formats.plan import Plan
from comera_dist.formats.tensor_train.linear import merged_together
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.encoder.trunk import Trunk, below, build_layers
from comera_dist.ops.cross_entropy import CHUNK_LOGITS, linear_cross_entropy


class Transform(nn.Module):
    """norm(gelu(dense(x)))."""

    def __init__(self, config: EncoderConfig, dense: nn.Module):
        super().__init__()
        self.dense, self.LayerNorm = dense, nn.LayerNorm(config.d_model, eps=config.norm_eps)

    def forward(self, x_BPD: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(x_BPD)))


class Predictions(nn.Module):
    """What is multiplied by the word embedding to predict the tokens at some places.

    BERT adds a bias to these logits; here there is none, because `linear_cross_entropy` has none. So a published masked
    language model can be taken over as it is only where this bias is zero.
    """

    def __init__(self, config: EncoderConfig, dense: nn.Module):
        super().__init__()
        self.predictions = nn.ModuleDict({"transform": Transform(config, dense)})

    def forward(self, x_BSD: Tensor, positions_BP: Tensor) -> Tensor:
        return self.predictions["transform"](_at(x_BSD, positions_BP))


class EncoderForMaskedLM(nn.Module):
    """Predicts tokens at places of sequences; token id 0 is padding.

    `plan` says how each matrix is stored (see `plan_encoder`); weights are drawn from `generator` in a fixed order, or
    left for the caller to load where it is None.
    """

    def __init__(self, config: EncoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan, layers = plan, build_layers(plan, generator)
        self.bert = Trunk(config, below("bert.", layers))
        self.cls = Predictions(config, layers["cls.predictions.transform.dense"])

    def forward(
        self, tokens_BS: Tensor, token_types_BS: Tensor, positions_BP: Tensor, targets_BP: Tensor | None = None
    ) -> Tensor:
        """Logits (B, P, V) of the tokens at `positions_BP`; or, with targets, the summed cross-entropy in nats.

        An IGNORED_TARGET counts nothing. Raises ConfigError for a sequence longer than the model's positions.
        """
        with merged_together(self, tokens_BS.numel()):
            x_BPD = self.cls(self.bert(tokens_BS, token_types_BS), positions_BP)
            table_VD = embedding_table(self.bert.embeddings.word_embeddings)
            if targets_BP is None:
                return F.linear(x_BPD, table_VD)
            return linear_cross_entropy(x_BPD.flatten(0, 1), table_VD, targets_BP.flatten())

    def measure(
        self, tokens_BS: Tensor, token_types_BS: Tensor, positions_BP: Tensor, targets_BP: Tensor
    ) -> dict[str, Tensor]:
        """What a validation sums over targets: the loss in nats, and how many are predicted."""
        with merged_together(self, tokens_BS.numel()):
            x_BPD = self.cls(self.bert(tokens_BS, token_types_BS), positions_BP)
        table_VD = embedding_table(self.bert.embeddings.word_embeddings)
        prediction = x_BPD.flatten(0, 1), table_VD, targets_BP.flatten()
        return {"loss": linear_cross_entropy(*prediction), "correct": _count_correct(*prediction)}


def _count_correct(x_TD: Tensor, table_VD: Tensor, targets_T: Tensor) -> Tensor:
    """How often the largest logit is the target's (0-dimensional); a target that is ignored is never the largest.

    About four million logits live at once.
    """
    chunk = max(1, CHUNK_LOGITS // len(table_VD))
    hits = [
        (F.linear(x_CD, table_VD).argmax(-1) == targets_C).sum()
        for x_CD, targets_C in zip(x_TD.split(chunk), targets_T.split(chunk), strict=True)
    ]
    return torch.stack(hits).sum()


def _at(x_BSD: Tensor, positions_BP: Tensor) -> Tensor:
    """The rows (B, P, D) at these places, by F.embedding, whose backward is a sorted sum and no scatter of numbers."""
    batch, length, _ = x_BSD.shape
    first_B1 = length * torch.arange(batch, device=x_BSD.device)[:, None]
    return F.embedding(positions_BP + first_B1, x_BSD.flatten(0, 1))
