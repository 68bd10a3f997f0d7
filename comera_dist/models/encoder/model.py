"""A BERT-style encoder, classifying or predicting masked tokens, whose weight matrices are dense or tensor trains.

Shapes: B batch, S sequence, D width, C classes, P places of a sequence, T = B·P places of a batch, V vocabulary. Module
names are those of BERT's published checkpoints, so that a densified model can be read by the usual tools.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.build import build_embedding, build_linear, embedding_table
from comera_dist.formats.plan import Plan
from comera_dist.formats.tensor_train.merged_together import merged_together
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.encoder.trunk import Trunk, below
from comera_dist.ops.cross_entropy import CHUNK_LOGITS, linear_cross_entropy

STD = 0.02  # BERT's initializer_range, for every matrix


class Transform(nn.Module):
    """norm(gelu(dense(x)))."""

    def __init__(self, config: EncoderConfig, dense: nn.Module):
        super().__init__()
        self.dense, self.LayerNorm = dense, nn.LayerNorm(config.d_model, eps=config.norm_eps)

    def forward(self, x_BPD: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(x_BPD)))


class MaskedLMHead(nn.Module):
    """What is multiplied by the word embedding to predict the tokens at some places.

    BERT adds a bias to these logits; here there is none, because `linear_cross_entropy` has none. So a published masked
    language model can be taken over as it is only where this bias is zero.
    """

    def __init__(self, config: EncoderConfig, dense: nn.Module):
        super().__init__()
        self.predictions = nn.ModuleDict({"transform": Transform(config, dense)})

    def forward(self, x_BSD: Tensor, positions_BP: Tensor) -> Tensor:
        return self.predictions["transform"](_at(x_BSD, positions_BP))


class Encoder(nn.Module):
    """Classifies sequences of tokens, or predicts tokens at places of them; token id 0 is padding.

    `plan` says how each matrix is stored (see `plan_encoder`); weights are drawn from `generator` in a fixed order, or
    left for the caller to load where it is None.
    """

    def __init__(self, config: EncoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan, self.head = plan, config.head
        layers = {name: _build(layer, generator) for name, layer in plan.items()}
        self.bert = Trunk(config, below("bert.", layers))
        if self.head == "classification":
            self.dropout, self.classifier = nn.Dropout(config.dropout), layers["classifier"]
        else:
            self.cls = MaskedLMHead(config, layers["cls.predictions.transform.dense"])

    def forward(self, tokens_BS: Tensor, token_types_BS: Tensor, *of_head: Tensor) -> Tensor:
        """Logits; or, with targets, the summed cross-entropy in nats (a target of -100 counts nothing).

        Head classification: `of_head` is targets_B or nothing, logits are (B, C). Head masked_lm: it is positions_BP,
        the places whose tokens are predicted, and targets_BP or nothing; logits are (B, P, V). Raises ConfigError for a
        sequence longer than the model's positions.
        """
        with merged_together(self, tokens_BS.numel()):
            x_BSD = self.bert(tokens_BS, token_types_BS)
            return (self._classify if self.head == "classification" else self._predict)(x_BSD, *of_head)

    def measure(self, *batch: Tensor) -> dict[str, Tensor]:
        """What a validation sums over targets: the loss in nats, and how many are predicted."""
        if self.head == "classification":
            *inputs, targets_B = batch
            logits_BC = self(*inputs)
            return {
                "loss": _cross_entropy(logits_BC, targets_B),
                "correct": (logits_BC.argmax(-1) == targets_B).sum(),
            }
        tokens_BS, token_types_BS, positions_BP, targets_BP = batch
        with merged_together(self, tokens_BS.numel()):
            x_BPD = self.cls(self.bert(tokens_BS, token_types_BS), positions_BP)
        table_VD = embedding_table(self.bert.embeddings.word_embeddings)
        prediction = x_BPD.flatten(0, 1), table_VD, targets_BP.flatten()
        return {"loss": linear_cross_entropy(*prediction), "correct": _count_correct(*prediction)}

    def _classify(self, x_BSD: Tensor, targets_B: Tensor | None = None) -> Tensor:
        logits_BC = self.classifier(self.dropout(self.bert.pooler(x_BSD)))
        return logits_BC if targets_B is None else _cross_entropy(logits_BC, targets_B)

    def _predict(self, x_BSD: Tensor, positions_BP: Tensor, targets_BP: Tensor | None = None) -> Tensor:
        x_BPD = self.cls(x_BSD, positions_BP)
        table_VD = embedding_table(self.bert.embeddings.word_embeddings)
        if targets_BP is None:
            return F.linear(x_BPD, table_VD)
        return linear_cross_entropy(x_BPD.flatten(0, 1), table_VD, targets_BP.flatten())


def _cross_entropy(logits_BC: Tensor, targets_B: Tensor) -> Tensor:
    return F.cross_entropy(logits_BC.float(), targets_B, ignore_index=-100, reduction="sum")


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


def _build(layer: MatrixPlan, generator: torch.Generator | None) -> nn.Module:
    if layer.is_embedding:
        return build_embedding(layer, STD, generator)
    return build_linear(layer, STD, generator, bias=True)
