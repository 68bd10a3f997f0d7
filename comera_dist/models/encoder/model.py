"""The two models of an encoder, one per head.

Shapes: B batch, S sequence, D width, P predicted positions of a sequence, T = B·P, V vocabulary, C classes.
Token id 0 is padding. The modules are built as `Kind.build` says.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.capabilities import logits_factors
from comera_dist.formats.plan import Plan
from comera_dist.formats.tensor_train.linear import merged_together
from comera_dist.models.encoder.plan import WORDS
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.encoder.trunk import STD, Layers, Trunk, below
from comera_dist.models.learner import Learner
from comera_dist.ops.block_logits import Weights, as_blocks, block_logits, count_rows, with_bias
from comera_dist.ops.cross_entropy import linear_cross_entropy, tokens_at_once
from comera_dist.ops.distillation import Lesson, taught_by
from comera_dist.ops.dropout import Dropout
from comera_dist.ops.targets import IGNORED_TARGET


class EncoderForMaskedLM(Learner):
    """Predicts tokens at given positions of sequences, by products with the word embedding.

    BERT adds a bias to its logits; this model does so if the configuration has `output_bias`.
    """

    def __init__(self, config: EncoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan, layers = plan, _build_layers(plan, generator)
        self.bert = Trunk(config, below("bert.", layers))
        dense, norm = layers["cls.predictions.transform.dense"], nn.LayerNorm(config.d_model, eps=config.norm_eps)
        transform = nn.Sequential(OrderedDict(dense=dense, gelu=nn.GELU(), LayerNorm=norm))
        predictions = nn.ModuleDict({"transform": transform})
        bias = nn.Parameter(torch.zeros(plan[WORDS].inputs)) if config.output_bias else None
        predictions.register_parameter("bias", bias)
        self.cls = nn.ModuleDict({"predictions": predictions})

    def forward(
        self, tokens_BS: Tensor, token_types_BS: Tensor, positions_BP: Tensor, targets_BP: Tensor | None = None
    ) -> Tensor:
        """Logits (B, P, V); with targets, the summed cross-entropy in nats, to which an IGNORED_TARGET adds nothing.

        Raises ConfigError for a sequence longer than the model's positions.
        """
        lesson = self.lesson(tokens_BS, token_types_BS, positions_BP)
        with merged_together(self, tokens_BS.numel()):
            x_BPK, weight = self._factors(tokens_BS, token_types_BS, positions_BP)
            if targets_BP is None:
                return block_logits(x_BPK, weight)
            return linear_cross_entropy(
                x_BPK.flatten(0, 1), weight, targets_BP.flatten(), implementation=taught_by(lesson)
            )

    def measure(
        self, tokens_BS: Tensor, token_types_BS: Tensor, positions_BP: Tensor, targets_BP: Tensor
    ) -> dict[str, Tensor]:
        """The summed loss in nats, and the number of correct predictions."""
        prediction = *self.predictions(tokens_BS, token_types_BS, positions_BP), targets_BP.flatten()
        return {"loss": linear_cross_entropy(*prediction), "correct": count_correct(*prediction)}

    @property
    def outputs(self) -> int:
        """See `Learner`."""
        return self.plan[WORDS].inputs

    def predictions(self, tokens_BS: Tensor, token_types_BS: Tensor, positions_BP: Tensor) -> tuple[Tensor, Weights]:
        """See `Learner`."""
        with merged_together(self, tokens_BS.numel()):
            x_BPK, weight = self._factors(tokens_BS, token_types_BS, positions_BP)
        return x_BPK.flatten(0, 1), weight

    def _factors(self, tokens_BS: Tensor, token_types_BS: Tensor, positions_BP: Tensor) -> tuple[Tensor, Weights]:
        """Two factors of the logits, x (B, P, K) and W (V, K); see `logits_factors`."""
        x_BPD = _at(self.bert(tokens_BS, token_types_BS), positions_BP)
        predictions: Any = self.cls["predictions"]
        x_BPK, weight = logits_factors(predictions.transform(x_BPD), self.bert.embeddings.word_embeddings)
        # Read here, not in a function of `predictions`, at whose end ZeRO stage 3 would take the bias away again.
        return (x_BPK, weight) if predictions.bias is None else with_bias(x_BPK, weight, predictions.bias)


class EncoderForClassification(Learner):
    """Classifies sequences by their first token."""

    def __init__(self, config: EncoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan, layers = plan, _build_layers(plan, generator)
        self.bert = Trunk(config, below("bert.", layers))
        self.dropout, self.classifier = Dropout(config.dropout), layers["classifier"]

    def forward(self, tokens_BS: Tensor, token_types_BS: Tensor, targets_B: Tensor | None = None) -> Tensor:
        """Logits (B, C); with targets, the summed cross-entropy in nats, to which an IGNORED_TARGET adds nothing.

        Raises ConfigError for a sequence longer than the model's positions.
        """
        lesson = self.lesson(tokens_BS, token_types_BS)
        with merged_together(self, tokens_BS.numel()):
            x_BSD = self.bert(tokens_BS, token_types_BS)
            logits_BC: Tensor = self.classifier(self.dropout(self.bert.pooler(x_BSD[:, 0])))
            return logits_BC if targets_B is None else _cross_entropy(logits_BC, targets_B, lesson)

    def measure(self, tokens_BS: Tensor, token_types_BS: Tensor, targets_B: Tensor) -> dict[str, Tensor]:
        """The summed loss in nats, and the number of correct predictions."""
        logits_BC = self(tokens_BS, token_types_BS)
        return {"loss": _cross_entropy(logits_BC, targets_B), "correct": (logits_BC.argmax(-1) == targets_B).sum()}

    @property
    def outputs(self) -> int:
        """See `Learner`."""
        return self.plan["classifier"].outputs

    def predictions(self, tokens_BS: Tensor, token_types_BS: Tensor) -> tuple[Tensor, Weights]:
        """See `Learner`. The classifier has a bias, so these are the logits and the identity."""
        logits_BC = self(tokens_BS, token_types_BS)
        return logits_BC, torch.eye(logits_BC.shape[1], device=logits_BC.device)

    def probabilities(self, tokens_BS: Tensor, token_types_BS: Tensor) -> Tensor:
        """Of the classes, (B, C) in float64."""
        logits_BC: Tensor = self(tokens_BS, token_types_BS)
        return logits_BC.double().softmax(dim=-1)


MODELS = {"masked_lm": EncoderForMaskedLM, "classification": EncoderForClassification}


def _build_layers(plan: Plan, generator: torch.Generator | None) -> Layers:
    """All planned layers by name, their weights drawn in the order of the plan."""
    return {name: layer.build(STD, generator, bias=not layer.is_embedding) for name, layer in plan.items()}


def _cross_entropy(logits_BC: Tensor, targets_B: Tensor, lesson: Lesson | None = None) -> Tensor:
    if lesson is not None:
        return linear_cross_entropy(logits_BC.float(), lesson.weight, targets_B, implementation=taught_by(lesson))
    return F.cross_entropy(logits_BC.float(), targets_B, ignore_index=IGNORED_TARGET, reduction="sum")


def count_correct(x_TK: Tensor, weight: Weights, targets_T: Tensor, chunk_tokens: int | None = None) -> Tensor:
    """The number of targets (0-dimensional) with the largest logit; an IGNORED_TARGET is never a prediction.

    The logits of `chunk_tokens` tokens live at once (default: see `tokens_at_once`).
    """
    chunk = chunk_tokens or tokens_at_once(x_TK.device, count_rows(as_blocks(weight)))
    hits = [
        (block_logits(x_CK, weight).argmax(-1) == targets_C).sum()
        for x_CK, targets_C in zip(torch.split(x_TK, chunk), torch.split(targets_T, chunk), strict=True)
    ]
    return torch.stack(hits).sum()


def _at(x_BSD: Tensor, positions_BP: Tensor) -> Tensor:
    """Gathers hidden states (B, P, D) at positions.

    Uses F.embedding because its backward pass sums sorted rows, which is faster than an element-wise scatter.
    """
    batch, length, _ = x_BSD.shape
    first_B1 = length * torch.arange(batch, device=x_BSD.device)[:, None]
    return F.embedding(positions_BP + first_B1, x_BSD.flatten(0, 1))
