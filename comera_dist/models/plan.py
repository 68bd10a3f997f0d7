"""Decides, before any tensor exists, how every weight matrix of a decoder is stored.

The plan is the one source of truth about shapes: the model is built from it, the estimate counts it, and a checkpoint
carries it, so that a run resumes at the ranks that it had and not at those of the configuration.
"""

from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase

from comera_dist.config import Config, LayerRule
from comera_dist.errors import ConfigError
from comera_dist.tensor.shapes import TTMShape, TTShape, plan_tt, plan_ttm


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
        """Multiply-adds × 2 of one token's forward pass, without merging cores (that is paid once a step)."""
        if self.is_removed:
            return 0
        if self.is_embedding:
            return 0 if self.shape is None else self.shape.flops_per_token
        return 2 * self.dense_parameters if self.shape is None else self.shape.flops_per_token

    @property
    def merge_flops(self) -> int:
        """FLOPs of merging the cores once."""
        return 0 if self.shape is None else self.shape.merge_flops

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


def plan_decoder(config: Config, vocab_size: int) -> Plan:
    """Plans every weight matrix of the decoder that `config` describes, by module name.

    Raises ConfigError where a rule of `tensor.layers` matches no layer or asks for an impossible shape.
    """
    model = config.model
    matrices = {f"model.layers.{i}.{name}": size for i in range(model.layers) for name, size in _block(config).items()}
    rules = config.tensor.layers
    _check_every_rule_matches(rules, [*matrices, "lm_head"])
    plan = {"model.embed_tokens": _embedding(config, vocab_size)}
    for name, (inputs, outputs) in matrices.items():
        kind = model.format.attention if ".self_attn." in name else model.format.mlp
        plan[name] = _linear(config, name, kind, inputs, outputs)
    if not model.tie_embeddings:
        plan["lm_head"] = _linear(config, "lm_head", model.format.head, model.d_model, vocab_size)
    return plan


def _block(config: Config) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the matrices of one transformer block, by LLaMA's names."""
    width, hidden = config.model.d_model, config.model.d_ff
    kv_width = width // config.model.heads * (config.model.kv_heads or config.model.heads)
    return {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width, kv_width),
        "self_attn.v_proj": (width, kv_width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (width, hidden),
        "mlp.up_proj": (width, hidden),
        "mlp.down_proj": (hidden, width),
    }


def _embedding(config: Config, vocab_size: int) -> LayerPlan:
    width = config.model.d_model
    shape = None
    if config.model.format.embedding == "tensor":
        shape = plan_ttm(vocab_size, width, config.tensor.embedding_order, config.tensor.embedding_rank)
    return LayerPlan(vocab_size, width, shape, is_embedding=True)


def _linear(config: Config, name: str, kind: str, inputs: int, outputs: int) -> LayerPlan:
    defaults = config.tensor
    rule = next((r for r in defaults.layers if fnmatchcase(name, r.match)), LayerRule(match="*"))
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


def _check_every_rule_matches(rules: tuple[LayerRule, ...], names: list[str]) -> None:
    for rule in rules:
        if not any(fnmatchcase(name, rule.match) for name in names):
            raise ConfigError(f"tensor.layers: the pattern {rule.match!r} matches no layer; names look like {names[0]}")
