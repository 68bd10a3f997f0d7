"""The recommendation model DLRM (Naumov et al. 2019, arXiv 1906.00091), its matrices stored as a plan says.

Shapes: B rows of a batch, F numeric features, C categorical features, D width of a vector, V vectors of a row (one for
the numbers, one for each category), P = V·(V - 1)/2 pairs of vectors.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan
from comera_dist.formats.tensor_train.linear import merged_together
from comera_dist.ops.targets import IGNORED_TARGET


class DLRM(nn.Module):
    """Predicts a click from numbers and categories; built as `Kind.build` says.

    Weights start as in the authors' code (github.com/facebookresearch/dlrm, dlrm_s_pytorch.py), so that learning curves
    compare: weights N(0, 2/(in + out)), biases N(0, 1/out), tables uniform within ±1/√rows. Other formats than dense
    start with the same mean square.
    """

    pair_P: Tensor  # indices of the pairs in the flattened V × V products

    def __init__(self, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan = plan
        self.tables = nn.ModuleList(_build_table(layer, generator) for layer in _layers(plan, "tables"))
        self.bottom = nn.ModuleList(_build_linear(layer, generator) for layer in _layers(plan, "bottom"))
        self.top = nn.ModuleList(_build_linear(layer, generator) for layer in _layers(plan, "top"))
        vectors = len(self.tables) + bool(self.bottom)
        first_P, second_P = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pair_P", first_P * vectors + second_P, persistent=False)

    def forward(self, dense_BF: Tensor, categories_BC: Tensor, targets_B: Tensor | None = None) -> Tensor:
        """Logits (B,) of a click; with targets 0, 1 or IGNORED_TARGET, the summed log-loss in nats."""
        with merged_together(self, len(categories_BC)):
            columns = zip(self.tables, categories_BC.unbind(1), strict=True)
            vectors_BD = [table(category_B) for table, category_B in columns]
            if self.bottom:
                vectors_BD.insert(0, F.relu(_mlp(self.bottom, dense_BF)).to(vectors_BD[0].dtype))
            logits_B = _mlp(self.top, self._interact(vectors_BD)).squeeze(1).float()
        return logits_B if targets_B is None else _log_loss(logits_B, targets_B)

    def measure(self, dense_BF: Tensor, categories_BC: Tensor, targets_B: Tensor) -> dict[str, Tensor]:
        """The summed loss in nats, the number of correct predictions, and the logits and targets for an exact AUC."""
        logits_B = self(dense_BF, categories_BC)
        return {
            "loss": _log_loss(logits_B, targets_B),
            "correct": ((logits_B > 0) == targets_B).sum(),
            "scores": logits_B,
            "labels": targets_B,
        }

    def probabilities(self, dense_BF: Tensor, categories_BC: Tensor) -> Tensor:
        """Of a click, (B, 1) in float64."""
        logits_B: Tensor = self(dense_BF, categories_BC)
        return logits_B.double().sigmoid()[:, None]

    def _interact(self, vectors_BD: list[Tensor]) -> Tensor:
        """The dot products of all pairs (B, P), behind the vector of the numbers if there is one (B, D + P)."""
        vectors_BVD = torch.stack(vectors_BD, dim=1)
        products_BVV = vectors_BVD @ vectors_BVD.transpose(1, 2)
        products_BP = products_BVV.flatten(1).index_select(1, self.pair_P)
        return torch.cat([vectors_BD[0], products_BP], dim=1) if self.bottom else products_BP


def _mlp(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Applies the layers with ReLU between them: (B, in) → (B, out)."""
    for index, layer in enumerate(layers):
        x = layer(F.relu(x) if index else x)
    return x


def _log_loss(logits_B: Tensor, targets_B: Tensor) -> Tensor:
    counts_B = (targets_B != IGNORED_TARGET).float()
    return F.binary_cross_entropy_with_logits(logits_B, targets_B * counts_B, weight=counts_B, reduction="sum")


def _layers(plan: Plan, part: str) -> list[MatrixPlan]:
    return [layer for name, layer in plan.items() if name.startswith(f"{part}.")]


def _build_table(layer: MatrixPlan, generator: torch.Generator | None) -> nn.Module:
    bound = layer.inputs**-0.5
    if not isinstance(layer, DensePlan):
        return layer.build(bound / 3**0.5, generator)  # the standard deviation of a uniform distribution within ±bound
    table = layer.build(bound, generator=None)
    if generator is not None:
        nn.init.uniform_(table.get_parameter("weight"), -bound, bound, generator=generator)
    return table


def _build_linear(layer: MatrixPlan, generator: torch.Generator | None) -> nn.Module:
    linear = layer.build((2 / (layer.inputs + layer.outputs)) ** 0.5, generator, bias=True)
    if generator is not None:
        nn.init.normal_(linear.get_parameter("bias"), std=layer.outputs**-0.5, generator=generator)
    return linear
