"""Decides, before any tensor exists, how weight matrices are stored.

The plan is the one source of truth about shapes: the model is built from it, the estimate counts it, and a checkpoint
carries it, so that a run resumes at the ranks that it had and not at those of the configuration.
"""

from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase

from comera_dist.config.fields import MOST_ROWS
from comera_dist.config.tree import Config, EmbeddingRule, LayerRule
from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.lookup_plan import lookup_cost
from comera_dist.formats.tensor_train.shapes import TTMShape, TTShape, plan_tt, plan_ttm


@dataclass(frozen=True)
class LayerPlan:
    """One weight matrix: `inputs` → `outputs` features (an embedding: vocabulary → width), `shape` None where dense.

    A removed layer has lost all its ranks: it stores nothing and its output is zero.
    """

    inputs: int
    outputs: int
    shape: TTShape | TTMShape | None
    is_embedding: bool = False
    is_removed: bool = False

    @property
    def dense_parameters(self) -> int:
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Stored numbers, gates included."""
        if self.is_removed:
            return 0
        return self.dense_parameters if self.shape is None else self.shape.num_parameters + self.shape.num_gates

    @property
    def flops_per_token(self) -> int:
        """Multiply-adds × 2 of one token's forward pass along merged sides or half tables; merging comes on top."""
        if self.is_removed:
            return 0
        if self.is_embedding:
            return 0 if self.shape is None else self.shape.flops_per_token
        return 2 * self.dense_parameters if self.shape is None else self.shape.flops_per_token

    def forward_flops(self, tokens: int, device_type: str = "cpu") -> int:
        """FLOPs of a forward pass over `tokens` tokens, merging included; rows of a table as their lookup is planned.

        All tokens that can be distinct are taken to be so.
        """
        if self.shape is None:
            return tokens * self.flops_per_token
        if self.is_embedding:
            return lookup_cost(self.shape, min(tokens, self.inputs), device_type)[0]
        return tokens * self.flops_per_token + self.shape.merge_flops

    def with_ranks(self, bonds: list[int]) -> "LayerPlan":
        """The same matrix at other ranks of its inner bonds; removed where one of them is 0."""
        if not all(bonds):
            return replace(self, shape=None, is_removed=True)
        return replace(self, shape=replace(self.shape, ranks=(1, *bonds, 1)))

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict) -> "LayerPlan":
        kind = TTMShape if record["is_embedding"] else TTShape
        shape = record["shape"] and kind(
            **{key: tuple(v) if isinstance(v, list) else v for key, v in record["shape"].items()}
        )
        return cls(**{**record, "shape": shape})


Plan = dict[str, LayerPlan]


def write_plan(plan: Plan) -> dict:
    """The plan as JSON."""
    return {name: layer.to_json() for name, layer in plan.items()}


def read_plan(record: dict) -> Plan:
    return {name: LayerPlan.from_json(layer) for name, layer in record.items()}


def matrix_size(plan: Plan, name: str) -> str:
    """Inputs and outputs of a matrix in words."""
    return f"{plan[name].inputs} → {plan[name].outputs}" if name in plan else "missing"


@dataclass(frozen=True)
class DataFacts:
    """What a model has to know about its data: each kind of data knows its own part."""

    vocab_size: int = 0
    classes: int = 0
    dense_features: int = 0
    table_rows: tuple[int, ...] = ()  # of each categorical feature


def plan_linear(config: Config, name: str, kind: str, inputs: int, outputs: int) -> LayerPlan:
    """The linear layer `name` in the format `kind`, as `tensor` and its rules say. Raises ConfigError."""
    _check_sizes(name, inputs, outputs)
    defaults = config.tensor
    rule = _rule_for(name, defaults.layers) or LayerRule(match="*")
    if (rule.format or kind) == "dense":
        return LayerPlan(inputs, outputs, None)
    shape = plan_tt(
        inputs,
        outputs,
        order=rule.order or defaults.order,
        rank=rule.rank or defaults.rank,
        outer_rank=rule.outer_rank or defaults.outer_rank,
        in_modes=rule.in_modes,
        out_modes=rule.out_modes,
    )
    return LayerPlan(inputs, outputs, shape)


def plan_embedding(config: Config, name: str, kind: str, rows: int, width: int) -> LayerPlan:
    """The embedding table `name`, likewise."""
    _check_sizes(name, rows, width)
    defaults = config.tensor
    rule = _rule_for(name, defaults.embeddings) or EmbeddingRule(match="*")
    is_small = rule.format is None and rows < defaults.embedding_min_rows
    if (rule.format or kind) == "dense" or is_small:
        return LayerPlan(rows, width, None, is_embedding=True)
    shape = plan_ttm(
        rows,
        width,
        order=rule.order or defaults.embedding_order,
        rank=rule.rank or defaults.embedding_rank,
        vocab_modes=rule.vocab_modes,
        width_modes=rule.width_modes,
    )
    return LayerPlan(rows, width, shape, is_embedding=True)


def _check_sizes(name: str, *sizes: int) -> None:
    for size in sizes:
        if not 1 <= size <= MOST_ROWS:
            raise ConfigError(
                f"{name} would be {sizes[0]} x {sizes[1]}, expected 1 to {MOST_ROWS} of each; change the model or its "
                f"data"
            )


def check_rules(config: Config, plan: Plan) -> None:
    """ConfigError where a rule of `tensor.layers` or `tensor.embeddings` matches nothing."""
    for key, is_embedding in (("layers", False), ("embeddings", True)):
        names = [name for name, layer in plan.items() if layer.is_embedding == is_embedding]
        for rule in getattr(config.tensor, key):
            if not any(fnmatchcase(name, rule.match) for name in names):
                kind = "embedding" if is_embedding else "layer"
                raise ConfigError(
                    f"tensor.{key}: the pattern {rule.match!r} matches no {kind}; names look like {names[0]}"
                )


def _rule_for(name: str, rules: tuple):
    return next((rule for rule in rules if fnmatchcase(name, rule.match)), None)
