"""Sizes, work and memory of a run. They follow from its plan, so no tensor is made; a run prints them before step 1."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil, prod
from typing import Any, NamedTuple

from comera_dist.config.registry import OPTIMIZERS
from comera_dist.config.tree import Config
from comera_dist.costs.parts import stored_parts
from comera_dist.formats.base import BF16, FP32, Resizable, Unfoldings
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.family import kind_of
from comera_dist.optim.base import BLOCK, Method
from comera_dist.runtime.sharing import deal_out

# Of a training step as a multiple of the forward pass: a product has two in its backward pass, one for each factor.
FORWARD_AND_BACKWARD = 3
# Bytes of a number by `optim.moments`; a scale of a block is in fp32.
MOMENT_BYTES = {"fp32": FP32, "bf16": BF16, "8bit": 1 + FP32 / BLOCK}


@dataclass(frozen=True)
class Estimate:
    """Figures of a whole model. Params are stored numbers; FLOPs are of a training step and count merging the cores."""

    parts: dict[str, int]  # stored numbers by part of the model
    matrix_params: int  # stored by the weight matrices
    dense_params: int  # of the same model with dense matrices
    flops_per_token: float  # a DLRM: per row
    dense_flops_per_token: float
    state_bytes_per_process: int  # weights, gradients, masters and the optimizer's state, without activations
    num_processes: int
    gradient_bytes: int  # of one number, as the function of this name has it

    @property
    def params(self) -> int:
        return sum(self.parts.values())

    @property
    def size_bytes(self) -> int:
        return FP32 * self.params

    @property
    def compression(self) -> float:
        """Parameters of the dense model for each stored one."""
        return self.dense_params / self.params

    @property
    def matrix_compression(self) -> float:
        """Like `compression`, but of the weight matrices alone."""
        return (self.matrix_params + self.dense_params - self.params) / self.matrix_params

    @property
    def gradient_bytes_per_step(self) -> float:
        """Bytes that each process sends in a ring to average all gradients of a step."""
        return self._ring_bytes(self.params)

    @property
    def dense_gradient_bytes_per_step(self) -> float:
        """Like `gradient_bytes_per_step`, but for the dense model."""
        return self._ring_bytes(self.dense_params)

    def to_json(self) -> dict[str, Any]:
        """All fields and properties by name."""
        derived = [name for name, value in vars(type(self)).items() if isinstance(value, property)]
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def _ring_bytes(self, params: int) -> float:
        return (self.num_processes - 1) / self.num_processes * self.gradient_bytes * params


class Dealt(NamedTuple):
    """Parameters that one process steps as a whole."""

    size: int  # numbers of the parameters, by which they are dealt out
    kept: int  # numbers that the optimizer keeps of them


def estimate(
    config: Config, plan: Plan, num_processes: int, tokens_per_forward: int, device_type: str = "cpu"
) -> Estimate:
    """Figures of a model whose forward pass sees `tokens_per_forward` tokens (rows) on each of `num_processes`."""
    parts = stored_parts(config, plan)
    params, matrices = sum(parts.values()), sum(layer.parameters for layer in plan.values())
    flops, dense_flops = _training_flops(config, plan, tokens_per_forward, device_type)
    moment = MOMENT_BYTES[config.optim.moments]
    stage, kept = config.train.zero_stage, _optimizer_numbers(config, plan, params)
    return Estimate(
        parts=parts,
        matrix_params=matrices,
        dense_params=params - matrices + sum(layer.dense_parameters for layer in plan.values()),
        flops_per_token=flops,
        dense_flops_per_token=dense_flops,
        state_bytes_per_process=max(state_bytes(params, *numbers, stage, num_processes, moment) for numbers in kept),
        num_processes=num_processes,
        gradient_bytes=gradient_bytes(stage, gradient_itemsize(config), config.micro_batches(num_processes)),
    )


def with_teacher(student: Estimate, teacher: Estimate) -> Estimate:
    """The figures of a model that learns from another one: of that a step has the forward pass, and the weights.

    The dense model beside it learns from the same teacher.
    """
    lesson = teacher.flops_per_token / FORWARD_AND_BACKWARD
    return replace(
        student,
        flops_per_token=student.flops_per_token + lesson,
        dense_flops_per_token=student.dense_flops_per_token + lesson,
        state_bytes_per_process=student.state_bytes_per_process + teacher.size_bytes,
    )


def gradient_itemsize(config: Config) -> int:
    """Bytes of a number of a gradient on its way."""
    return BF16 if config.deepspeed.communication_data_type == "bf16" else FP32


def gradient_bytes(stage: int, itemsize: int = FP32, micro_batches: int = 1) -> int:
    """Bytes of each gradient that a process sends in a step, in a ring of very many processes.

    Reduce-scatter and all-gather send (p - 1) of p pieces each (Patarasuk and Yuan 2009). Stage 3 needs no all-gather,
    and stages 2 and 3 average the gradients of each micro batch.
    """
    return itemsize * (1 if stage == 3 else 2) * (micro_batches if stage >= 2 else 1)


def mean_rank(plan: Plan) -> float:
    """Mean of all inner bond ranks; 0 for a model without bonds."""
    ranks = [r for layer_ranks in bond_ranks(plan).values() for r in layer_ranks]
    return sum(ranks) / len(ranks) if ranks else 0.0


def bond_ranks(plan: Plan) -> dict[str, list[int]]:
    """Inner bond ranks by layer name; layers without bonds are left out."""
    return {name: list(layer.bonds) for name, layer in plan.items() if isinstance(layer, Resizable)}


def _training_flops(config: Config, plan: Plan, tokens: int, device_type: str) -> tuple[float, float]:
    """FLOPs of a training step for each token (row), of the planned model and of the dense one."""
    kind, stored, dense = kind_of(config.model), 0.0, 0.0
    for name, layer in plan.items():
        share = kind.token_share(config, name)
        seen = round(tokens * share)
        if name == kind.logits_layer:  # its product goes to the loss, by a path of its own
            stored += layer.step_cost(seen, device_type, FP32, is_head=True).flops / FORWARD_AND_BACKWARD / tokens
        else:
            stored += layer.forward_flops(seen, device_type) / tokens
        dense += 0 if layer.is_embedding else 2 * layer.dense_parameters * share
    for work in kind.unplanned_work(config, plan):
        stored += work.count * (work.flops_per_token + work.flops_once / tokens)
        dense += work.count * (work.dense_flops_per_token or work.flops_per_token)
    return FORWARD_AND_BACKWARD * stored, FORWARD_AND_BACKWARD * dense


def _optimizer_numbers(config: Config, plan: Plan, params: int) -> Iterator[tuple[int, dict[str, Dealt]]]:
    """Numbers that the optimizer keeps of the parameters that ZeRO slices, and those that are dealt out whole.

    Once, or for each part of the run if they change.
    """
    adamw: Method = OPTIMIZERS["adamw"](config.optim)
    chosen: Method = OPTIMIZERS[config.optim.kind](config.optim)
    shapes = parameters_in(plan, chosen.takes)
    others = adamw.numbers((params - sum(map(prod, shapes.values())),))
    for kept in chosen.numbers_in(config.total_steps, shapes):
        if chosen.needs_whole:
            yield others, _dealt(chosen, plan, shapes, kept)
        else:
            yield others + sum(kept.values()), {}


def _dealt(
    method: Method, plan: Plan, shapes: Mapping[str, tuple[int, ...]], kept: Mapping[str, int]
) -> dict[str, Dealt]:
    """Parameters that have one owner, alone or with the others of their layer."""
    dealt: dict[str, Dealt] = {}
    for name, shape in shapes.items():
        unit = layer_of(name, plan) if method.owns_layers else name
        one = dealt.get(unit, Dealt(0, 0))
        dealt[unit] = Dealt(one.size + prod(shape), one.kept + kept[name])
    return dealt


def dealt_numbers(config: Config, plan: Plan) -> int:
    """Numbers of the parameters that ZeRO above stage 0 deals out whole, because the optimizer cannot step slices."""
    method: Method = OPTIMIZERS[config.optim.kind](config.optim)
    return sum(map(prod, parameters_in(plan, method.takes).values())) if method.needs_whole else 0


def parameters_in(plan: Plan, groups: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the planned parameters in the optimizer's `groups` of weights: dense matrices of blocks, and cores.

    A matrix has the name of the module whose weight it is.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name, layer in plan.items():
        if "matrices" in groups and isinstance(layer, DensePlan) and IN_BLOCK.search(name):
            # A block that mixes the matrices of others has none.
            found |= {f"{name}.{part}".removesuffix(".weight"): layer.dense_size for part in layer.unfoldings}
        is_factored = "factors" in groups and isinstance(layer, Unfoldings) and IN_BLOCK.search(name)
        if "low_rank" in groups and isinstance(layer, Unfoldings) and layer.is_low_rank and IN_BLOCK.search(name):
            found |= {f"{name}.{part}": shape for part, shape in layer.tensors.items()}
        if "cores" in groups or is_factored:
            found |= {f"{name}.{part}": shape for part, shape in layer.cores.items()}
    return found


def layer_of(parameter: str, plan: Plan) -> str:
    """The layer of a parameter that `parameters_in` names."""
    return parameter if parameter in plan else parameter.rpartition(".")[0]


def state_bytes(
    params: int, sliced: int, dealt: dict[str, Dealt], stage: int, num_processes: int, moment: float = FP32
) -> int:
    """Bytes that the fullest process holds of weights and gradients in fp32, and of state of `moment` bytes a number.

    A ZeRO stage says what the processes share (Rajbhandari et al. 2020); stages 1 to 3 add a shared master copy of the
    weights. `sliced` counts the numbers of the optimizer's state that are shared, `dealt` are the parameters that
    have one owner each, or with the others of their layer.
    """
    states, masters = moment * sliced, FP32 * params if stage else 0
    kinds = [states + masters, FP32 * params, FP32 * params]  # state, gradients, weights: stage s shares the first s
    shared, whole = sum(kinds[:stage]), sum(kinds[stage:])
    owners = deal_out({name: one.size for name, one in dealt.items()}, num_processes if stage else 1)
    owned = [sum(one.kept for name, one in dealt.items() if owners[name] == owner) for owner in set(owners.values())]
    return ceil(whole + shared / num_processes + moment * max(owned, default=0))
