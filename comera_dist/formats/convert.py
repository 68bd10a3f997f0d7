"""Turns the dense layers of any torch model into tensor trains by name, and back.

Shapes: a weight (M, N) of nn.Linear, a table (V, D) of nn.Embedding.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Literal

import torch
from torch import nn

from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import Modes, plan_tt, plan_ttm

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TTPlan:
    """How linear layers are stored; the arguments of plan_tt."""

    order: int
    rank: int
    outer_rank: int | None = None
    in_modes: Modes | None = None
    out_modes: Modes | None = None


@dataclass(frozen=True)
class TTMPlan:
    """How embeddings are stored; the arguments of plan_ttm."""

    order: int
    rank: int
    vocab_modes: Modes | None = None
    width_modes: Modes | None = None


Plan = Mapping[str, TTPlan | TTMPlan | Literal["dense"]]


def tensorize(
    module: nn.Module, plan: Plan, from_weights: bool = False, generator: torch.Generator | None = None
) -> nn.Module:
    """Replaces, in place, every nn.Linear and nn.Embedding whose name matches a shell-style pattern of the plan.

    A TTPlan applies to linear layers and a TTMPlan to embeddings, "dense" to both; the first pattern that
    applies wins, and a layer that none applies to stays dense. New layers take over the weight by TT-SVD
    (`from_weights`), or start anew with the old weight's root mean square; biases are kept. Returns the
    module (the new layer where the module is one itself).

    Layers inside nn.MultiheadAttention stay dense, because it reads their weights past them; a log line names
    them. Raises ConfigError for a pattern that applies to no layer, and for weights that a train cannot stand
    for.
    """
    layers = _replaceable(module)
    _check_patterns(plan, layers)
    chosen = {name: _choose(plan, name, layer) for name, layer in layers.items()}
    chosen = {name: choice for name, choice in chosen.items() if choice not in (None, "dense")}
    _check_not_tied(module, chosen)
    built: dict[int, nn.Module] = {}
    for name, choice in chosen.items():
        layer = layers[name]
        if id(layer) not in built:
            built[id(layer)] = _build(name, layer, choice, from_weights, generator)
    for name in chosen:  # after all are built: a plan that is refused half-way changes nothing
        module = _put(module, name, built[id(layers[name])])
    _leave_fused_paths(module)
    return module


def densify(module: nn.Module) -> nn.Module:
    """Replaces, in place, every TTLinear and TTMEmbedding by its dense equal; returns the module."""
    built: dict[int, nn.Module] = {}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, TTLinear | TTMEmbedding):
            if id(layer) not in built:
                built[id(layer)] = _dense_copy(layer)
            module = _put(module, name, built[id(layer)])
    return module


def _replaceable(module: nn.Module) -> dict[str, nn.Module]:
    layers, skipped = {}, []
    fused = [name for name, part in module.named_modules() if isinstance(part, nn.MultiheadAttention)]
    for name, layer in module.named_modules(remove_duplicate=False):
        if isinstance(layer, nn.Linear | nn.Embedding):
            inside_fused = any(name.startswith(f"{prefix}." if prefix else "") for prefix in fused)
            skipped.append(name) if inside_fused else layers.update({name: layer})
    if skipped:
        logger.warning("left dense, nn.MultiheadAttention reads their weights itself: %s", ", ".join(skipped))
    return layers


def _applies(choice: TTPlan | TTMPlan | str, layer: nn.Module) -> bool:
    kind = {TTPlan: nn.Linear, TTMPlan: nn.Embedding}.get(type(choice), nn.Module)
    return isinstance(layer, kind)


def _choose(plan: Plan, name: str, layer: nn.Module) -> TTPlan | TTMPlan | str | None:
    fitting = (choice for pattern, choice in plan.items() if fnmatchcase(name, pattern) and _applies(choice, layer))
    return next(fitting, None)


def _check_patterns(plan: Plan, layers: dict[str, nn.Module]) -> None:
    for pattern, choice in plan.items():
        candidates = [name for name, layer in layers.items() if _applies(choice, layer)]
        if any(fnmatchcase(name, pattern) for name in candidates):
            continue
        nearest = get_close_matches(pattern, candidates, n=3, cutoff=0.0)
        kind = choice if choice == "dense" else type(choice).__name__
        raise ConfigError(
            f"the pattern {pattern!r} ({kind}) applies to no layer; nearest layer names: {', '.join(nearest) or 'none'}"
        )


def _check_not_tied(module: nn.Module, chosen: Mapping[str, object]) -> None:
    """Replacing one of two layers that share a weight would silently part them."""
    first_owner: dict[int, str] = {}
    for name, layer in module.named_modules():
        for parameter in layer.parameters(recurse=False):
            owner = first_owner.setdefault(id(parameter), name)
            if owner != name and (owner in chosen or name in chosen):
                raise ConfigError(
                    f"{owner} and {name} share one weight, which a replacement would part; plan both as dense, or give "
                    "one of them a weight of its own first"
                )


def _build(
    name: str,
    layer: nn.Module,
    choice: TTPlan | TTMPlan,
    from_weights: bool,
    generator: torch.Generator | None,
) -> nn.Module:
    weight = layer.weight.detach()
    std = float(weight.double().square().mean().sqrt())
    if isinstance(layer, nn.Embedding):
        if layer.padding_idx is not None or layer.max_norm is not None:
            raise ConfigError(
                f"{name} has a padding_idx or max_norm, which single out rows that a tensor train does not store; set "
                "both to None, or plan this layer as dense"
            )
        shape = plan_ttm(layer.num_embeddings, layer.embedding_dim, **asdict(choice))
        if from_weights:
            return TTMEmbedding.from_dense(weight, shape)
        return TTMEmbedding(shape, std, generator, device=weight.device)
    shape = plan_tt(layer.in_features, layer.out_features, **asdict(choice))
    bias = None if layer.bias is None else layer.bias.detach()
    if from_weights:
        return TTLinear.from_dense(weight, shape, bias)
    new = TTLinear(shape, bias is not None, std, generator, device=weight.device)
    if bias is not None:
        new.bias.data.copy_(bias)
    return new


def _put(root: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """The root after `layer` took the place called `name` ("" is the root itself)."""
    if not name:
        return layer
    parent, _, attribute = name.rpartition(".")
    setattr(root.get_submodule(parent), attribute, layer)
    return root


def _leave_fused_paths(module: nn.Module) -> None:
    """torch's fused inference paths read `linear1.weight`; these two attributes serve only to choose them."""
    for part in module.modules():
        tensorized = any(isinstance(child, TTLinear) for child in part.modules())
        if isinstance(part, nn.TransformerEncoderLayer) and tensorized:
            part.activation_relu_or_gelu = 0
        if isinstance(part, nn.TransformerEncoder) and tensorized:
            part.use_nested_tensor = False


def _dense_copy(layer: TTLinear | TTMEmbedding) -> nn.Linear | nn.Embedding:
    weight = layer.to_dense().detach()
    kind = {"device": weight.device, "dtype": weight.dtype}
    if isinstance(layer, TTMEmbedding):
        dense = nn.Embedding(layer.num_embeddings, layer.embedding_dim, **kind)
    else:
        dense = layer.dense_class(layer.in_features, layer.out_features, bias=layer.bias is not None, **kind)
        if layer.bias is not None:
            dense.bias.data.copy_(layer.bias)
    dense.weight.data.copy_(weight)
    return dense
