"""Turns the dense layers of any torch model into tensor trains by name, and back.

Shapes: a weight (M, N) of nn.Linear, a table (V, D) of nn.Embedding.
"""

import logging
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.utils import parametrize

from comera_dist.config.fields import Section
from comera_dist.config.registry import FORMATS
from comera_dist.errors import ConfigError
from comera_dist.formats.base import Format, FromDense, MatrixPlan
from comera_dist.formats.capabilities import ToDense, plan_of
from comera_dist.formats.compiled import plans_are_constants
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.dense_layers import DenseLinear, build_dense
from comera_dist.formats.hooks import hand_over, has_hooks
from comera_dist.formats.plan import format_of_tables

logger = logging.getLogger(__name__)

Dense = nn.Linear | nn.Embedding
USUAL = (nn.Linear.forward, nn.Embedding.forward, DenseLinear.forward)  # a subclass may compute something else
L = TypeVar("L", bound=nn.Module)


class _Choice:
    """A format by its name, and its options."""

    def __init__(self, format: str = "tensor", **options: Any):
        self.format, self._options = format, options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.format!r})"

    def _known(self) -> str:
        if self.format not in FORMATS.names():
            raise ConfigError(f"{self} names no format, expected one of {', '.join(FORMATS.names())}; choose another")
        return self.format

    def _read(self, kind: type[Section]) -> Section:
        try:
            return kind.model_validate(self._options)
        except ValidationError as error:
            raise ConfigError(f"{self}: {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg'].lower()}") from error


class LinearFormat(_Choice):
    """How linear layers are stored: a format of the key `model.format`, and its options, e.g. order and rank."""

    def plan(self, inputs: int, outputs: int) -> MatrixPlan:
        found: Format = FORMATS[self._known()]
        return found.plan_linear(inputs, outputs, self._read(found.options))


class TableFormat(_Choice):
    """How embeddings are stored: a format of the key `model.format.embedding`, and its options for tables.

    Planning raises ConfigError for a format that stores no tables.
    """

    def plan(self, rows: int, width: int) -> MatrixPlan:
        found = format_of_tables(self._known())
        return found.plan_table(rows, width, self._read(found.table_options))


Choice = LinearFormat | TableFormat | Literal["dense"]
Plan = Mapping[str, Choice]


def tensorize(
    module: nn.Module, plan: Plan, from_weights: bool = False, generator: torch.Generator | None = None
) -> nn.Module:
    """Replaces, in place, every nn.Linear and nn.Embedding whose name matches a shell-style pattern of the plan.

    A LinearFormat applies to linear layers and a TableFormat to embeddings, "dense" to both. The first pattern that
    applies wins; a layer to which none applies stays dense, as does one for which `auto` finds no smaller format. With
    `from_weights` new layers approximate the old weight, e.g. by TT-SVD; otherwise they are drawn anew with the old
    weight's root mean square, but for sltrain, which begins as its authors draw it. Biases and dtypes are kept, and
    factors of a frozen weight are frozen. A layer that has several names stays one layer. Returns the module, or the
    new layer if the module is a layer itself.

    Some layers stay dense, and a log line names them: those inside nn.MultiheadAttention, which reads their weights
    without calling them; those that compute something else than their class, or hold more than a weight and a bias; and
    those with hooks or parametrizations, which would be lost. Another line names layers with more numbers than before.
    Raises ConfigError for a pattern that applies to no layer, for weights that a format cannot approximate, and for NaN
    or infinities in them.
    """
    layers = _replaceable(module, plan)
    chosen = _choose(plan, layers)
    _check_not_tied(module, chosen)
    larger: list[str] = []

    def build(name: str, layer: Dense) -> nn.Module:
        shown = name or "the layer"  # a module that is a layer itself
        new = _frozen_as(layer, _build(shown, layer, chosen[name], from_weights, generator))
        before, after = (sum(p.numel() for p in one.parameters()) for one in (layer, new))
        if after > before:
            larger.append(f"{shown} ({after:,} instead of {before:,})")
        return new

    module = _replaced(module, {name: layers[name] for name in chosen}, build)
    _leave_fused_paths(module)
    plans_are_constants()  # here, because the caller may compile the module
    if larger:
        logger.warning("more numbers than in dense layers, give lower ranks: %s", ", ".join(larger))
    return module


def densify(module: nn.Module, partly: bool = False) -> nn.Module:
    """Replaces, in place, every planned layer by a dense layer that computes the same; returns the module.

    Hooks of the layers are handed over. ConfigError for a layer that no dense layer equals, unless it may do so
    `partly`: then such layers stay.
    """
    named = module.named_modules(remove_duplicate=False)
    planned = {name: layer for name, layer in named if plan_of(layer) is not None}
    wanted = {name: layer for name, layer in planned.items() if isinstance(layer, ToDense) or not partly}
    return _replaced(module, wanted, _dense_copy)


def _replaceable(module: nn.Module, plan: Plan) -> dict[str, Dense]:
    """Layers that may be replaced, by name. A log line names those of `plan` that may not."""
    layers: dict[str, Dense] = {}
    left: dict[str, list[str]] = {}
    modules = list(module.named_modules(remove_duplicate=False))
    fused = [name for name, part in modules if isinstance(part, nn.MultiheadAttention)]
    for name, layer in modules:
        if isinstance(layer, Dense):
            is_fused = any(name.startswith(f"{prefix}." if prefix else "") for prefix in fused)
            reason = "nn.MultiheadAttention reads their weights itself" if is_fused else _why_left(layer)
            if reason is None:
                layers[name] = layer
            elif any(fnmatchcase(name, pattern) for pattern in plan):
                left.setdefault(reason, []).append(name)
    for reason, names in left.items():
        logger.warning("left dense, %s: %s", reason, ", ".join(names))
    return layers


def _why_left(layer: Dense) -> str | None:
    """Why a layer must stay as it is; None if it need not."""
    kind = type(layer)
    if parametrize.is_parametrized(layer):
        return "their parametrizations would be lost"
    if kind.forward not in USUAL or kind.__call__ is not nn.Module.__call__ or "forward" in vars(layer):
        return "they compute something of their own"
    if has_hooks(layer):
        return "their hooks would be lost"
    named = [*layer.named_parameters(), *layer.named_buffers(), *layer.named_children()]
    return None if {name for name, _ in named} <= {"weight", "bias"} else "they hold more than a weight and a bias"


def _applies(choice: Choice, layer: nn.Module) -> bool:
    return choice == "dense" or isinstance(choice, TableFormat) == isinstance(layer, nn.Embedding)


def _choose(plan: Plan, layers: Mapping[str, nn.Module]) -> dict[str, LinearFormat | TableFormat]:
    """The first choice that applies to each layer, if it is not "dense". ConfigError for a choice without a layer."""
    chosen: dict[str, Choice] = {}
    for pattern, choice in plan.items():
        if not isinstance(choice, _Choice) and choice != "dense":
            raise ConfigError(
                f"{pattern!r} has {choice!r}, expected a LinearFormat, a TableFormat or 'dense'; give e.g. "
                f"LinearFormat('low_rank')"
            )
        candidates = [name for name, layer in layers.items() if _applies(choice, layer)]
        named = [name for name in layers if fnmatchcase(name, pattern)]
        matching = [name for name in candidates if name in named]
        if named and not matching:
            is_table = isinstance(layers[named[0]], nn.Embedding)
            kind, wanted = ("an embedding", "TableFormat") if is_table else ("a linear layer", "LinearFormat")
            raise ConfigError(
                f"the pattern {pattern!r} ({choice}) applies to no layer: {named[0]} is {kind}; give a {wanted}"
            )
        if not matching:
            nearest = get_close_matches(pattern, candidates, n=3, cutoff=0.0)
            raise ConfigError(
                f"the pattern {pattern!r} ({choice}) applies to no layer; nearest layer names: "
                f"{', '.join(nearest) or 'none'}"
            )
        chosen = dict.fromkeys(matching, choice) | chosen
    by_layer = {id(layers[name]): choice for name, choice in chosen.items()}  # also for its other names
    return {name: found for name, layer in layers.items() if isinstance(found := by_layer.get(id(layer)), _Choice)}


def _check_not_tied(module: nn.Module, chosen: Mapping[str, object]) -> None:
    """Replacing one of two layers that share a weight would silently separate them."""
    first_owner: dict[int, str] = {}
    for name, layer in module.named_modules():
        for parameter in layer.parameters(recurse=False):
            owner = first_owner.setdefault(id(parameter), name)
            if owner != name and (owner in chosen or name in chosen):
                raise ConfigError(
                    f"{owner} and {name} share one weight, which a replacement would separate; plan both as dense, or "
                    "give one of them a weight of its own first"
                )


def _bias_of(layer: nn.Module) -> Tensor | None:
    bias: Tensor | None = getattr(layer, "bias", None)
    return None if bias is None else bias.detach()


def _build(
    name: str,
    layer: Dense,
    choice: LinearFormat | TableFormat,
    from_weights: bool,
    generator: torch.Generator | None,
) -> nn.Module:
    weight, bias = layer.weight.detach(), _bias_of(layer)
    if isinstance(layer, nn.Embedding) and _singles_out_rows(layer):
        raise ConfigError(
            f"{name} has a padding_idx, max_norm, scale_grad_by_freq or sparse, which single out rows, and no row is "
            "stored by itself; remove it, or plan this layer as dense"
        )
    if weight.is_meta:
        raise ConfigError(
            f"{name} is on the meta device, where weights have no values; build the module on another device"
        )
    plan = choice.plan(*(weight.shape if isinstance(layer, nn.Embedding) else weight.T.shape))
    if plan.tag == "dense":  # `auto` chose so: no format makes it smaller
        return layer
    if not weight.isfinite().all():  # which would spread to all of the new layer
        raise ConfigError(
            f"the weight of {name} holds NaN or infinities, expected numbers; load or draw it before "
            "the layer is replaced"
        )
    if from_weights:
        if not isinstance(plan, FromDense):
            raise ConfigError(f"the format of {name}, {plan.tag}, cannot take over a weight; set from_weights=False")
        return plan.from_dense(weight, bias).to(weight.dtype)
    std = float(weight.double().square().mean().sqrt())
    new = plan.build(std, generator or torch.default_generator, bias is not None).to(weight)
    if bias is not None:
        new.get_parameter("bias").data.copy_(bias)
    return new


def _singles_out_rows(table: nn.Embedding) -> bool:
    return table.padding_idx is not None or table.max_norm is not None or table.scale_grad_by_freq or table.sparse


def _frozen_as(old: Dense, new: nn.Module) -> nn.Module:
    """`new`, with factors that are trained if the old weight was, and a bias that is if the old bias was."""
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(old.get_parameter("bias" if name == "bias" else "weight").requires_grad)
    return new


def _replaced(root: nn.Module, layers: Mapping[str, L], build: Callable[[str, L], nn.Module]) -> nn.Module:
    """The root after new layers took the places of `layers`, by name ("" is the root itself).

    A layer that has several names stays one layer.
    """
    built: dict[int, nn.Module] = {}
    for name, layer in layers.items():
        if id(layer) not in built:
            built[id(layer)] = build(name, layer)
    for name, layer in layers.items():  # after all are built: an error half-way changes nothing
        if not name:
            return built[id(layer)]
        root.set_submodule(name, built[id(layer)])
    return root


def _leave_fused_paths(module: nn.Module) -> None:
    """Turns off torch's fused inference paths, which read `linear1.weight`; the two attributes have no other use."""
    for part in module.modules():
        tensorized = any(plan_of(child) is not None for child in part.modules())
        if isinstance(part, nn.TransformerEncoderLayer) and tensorized:
            part.activation_relu_or_gelu = 0
        if isinstance(part, nn.TransformerEncoder) and tensorized:
            part.use_nested_tensor = False


def _dense_copy(name: str, layer: nn.Module) -> nn.Module:
    plan, bias = plan_of(layer), _bias_of(layer)
    assert plan is not None
    if not isinstance(layer, ToDense):
        raise ConfigError(f"{name} is stored in the format {plan.tag}, which has no dense equal; keep it as it is")
    weight = layer.to_dense().detach()
    dense = build_dense(DensePlan(plan.inputs, plan.outputs, plan.is_embedding), 0.0, None, bias is not None)
    dense.to(weight)
    dense.weight.data.copy_(weight)
    dense.weight.requires_grad_(any(p.requires_grad for name, p in layer.named_parameters() if name != "bias"))
    if bias is not None:
        dense.get_parameter("bias").data.copy_(bias)
        dense.get_parameter("bias").requires_grad_(layer.get_parameter("bias").requires_grad)
    hand_over(layer, dense)
    return dense
