"""What a run will cost, from its plan alone: no tensor is made. These figures are printed before step 1."""

from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from comera_dist.config.registry import OPTIMIZERS
from comera_dist.config.tree import Config
from comera_dist.costs.parts import stored_parts
from comera_dist.formats.base import FP32, Resizable
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.family import kind_of
from comera_dist.runtime.sharing import deal_out


@dataclass(frozen=True)
class Estimate:
    """Sizes in numbers or bytes, work in FLOPs; of a whole model unless a field says otherwise."""

    params: int
    dense_params: int
    size_bytes: int
    compression: float
    matrix_compression: float
    flops_per_token: float  # of a DLRM: per row; forward and backward (twice the forward), merging the cores included
    dense_flops_per_token: float
    state_bytes_per_process: int  # weights, gradients, masters, optimizer's state; activations come on top
    gradient_bytes_per_step: float  # sent by each process of a ring all-reduce
    dense_gradient_bytes_per_step: float
    parts: dict[str, int]  # stored parameters by part of the model

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate(
    config: Config, plan: Plan, num_processes: int, tokens_per_forward: int, device_type: str = "cpu"
) -> Estimate:
    """Figures of a model whose forward pass sees `tokens_per_forward` tokens (rows) on each of `num_processes`."""
    matrices = sum(layer.parameters for layer in plan.values())
    dense_matrices = sum(layer.dense_parameters for layer in plan.values())
    parts = stored_parts(config, plan)
    params = sum(parts.values())
    dense_params = params - matrices + dense_matrices
    return Estimate(
        params=params,
        dense_params=dense_params,
        size_bytes=params * FP32,
        compression=dense_params / params,
        matrix_compression=dense_matrices / matrices,
        flops_per_token=_training_flops(config, plan, tokens_per_forward, device_type),
        dense_flops_per_token=_dense_training_flops(config, plan),
        state_bytes_per_process=state_bytes(
            params, *_optimizer_numbers(config, plan, params), config.train.zero_stage, num_processes
        ),
        gradient_bytes_per_step=ring_bytes(params, num_processes),
        dense_gradient_bytes_per_step=ring_bytes(dense_params, num_processes),
        parts=parts,
    )


def mean_rank(plan: Plan) -> float:
    """Mean of all inner bond ranks; 0 for a model without tensor trains."""
    ranks = [r for layer_ranks in bond_ranks(plan).values() for r in layer_ranks]
    return sum(ranks) / len(ranks) if ranks else 0.0


def bond_ranks(plan: Plan) -> dict[str, list[int]]:
    """Inner bond ranks by layer name, layers without bonds left out."""
    return {name: list(layer.bonds) for name, layer in plan.items() if isinstance(layer, Resizable)}


def _training_flops(config: Config, plan: Plan, tokens: int, device_type: str) -> float:
    kind = kind_of(config.model)
    layers = sum(
        layer.forward_flops(round(tokens * kind.token_share(config, name)), device_type) for name, layer in plan.items()
    )
    once = sum(work.count * work.flops_once for work in kind.unplanned_work(config, plan))
    return 3.0 * ((layers + once) / tokens + _unplanned_flops(config, plan))


def _dense_training_flops(config: Config, plan: Plan) -> float:
    kind = kind_of(config.model)
    layers = sum(
        2 * layer.dense_parameters * kind.token_share(config, name)
        for name, layer in plan.items()
        if not layer.is_embedding
    )
    return 3.0 * (layers + _unplanned_flops(config, plan))


def _unplanned_flops(config: Config, plan: Plan) -> float:
    """Forward FLOPs a token (a row) that belong to no planned layer."""
    return sum(work.count * work.flops_per_token for work in kind_of(config.model).unplanned_work(config, plan))


def _optimizer_numbers(config: Config, plan: Plan, params: int) -> tuple[int, dict[str, int]]:
    """Numbers that the optimizer keeps of the parameters that ZeRO slices, and of each that is dealt out whole."""
    adamw, chosen = OPTIMIZERS["adamw"](config.optim), OPTIMIZERS[config.optim.kind](config.optim)
    shapes = _parameters_in(plan, chosen.takes)
    others = adamw.numbers((params - sum(map(prod, shapes.values())),))
    own = {name: chosen.numbers(shape) for name, shape in shapes.items()}
    return (others, own) if chosen.needs_whole else (others + sum(own.values()), {})


def _parameters_in(plan: Plan, groups: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Shapes of the planned parameters in the optimizer's `groups` of weights: dense matrices of blocks, and cores."""
    found: dict[str, tuple[int, ...]] = {}
    for name, layer in plan.items():
        if "matrices" in groups and isinstance(layer, DensePlan) and IN_BLOCK.search(name):
            found[name] = (layer.outputs, layer.inputs)
        if "cores" in groups and isinstance(layer, Resizable):
            cores = {part: shape for part, shape in layer.tensors.items() if not part.startswith("gate_")}
            found |= {f"{name}.{part}": shape for part, shape in cores.items()}
    return found


def state_bytes(params: int, sliced: int, dealt: dict[str, int], stage: int, num_processes: int) -> int:
    """Bytes of weights, gradients and optimizer, fp32 at either compute precision, as ZeRO stages shard them
    (Rajbhandari et al. 2020); stages 1-3 keep a sharded master copy.

    `sliced` and `dealt` are the optimizer's numbers. Of what is dealt out the fullest process counts.
    """
    weights = gradients = FP32 * params
    states, masters = FP32 * sliced, FP32 * params if stage else 0
    shared = {0: 0, 1: states + masters, 2: states + masters + gradients}.get(
        stage, states + masters + gradients + weights
    )
    whole = weights + gradients + states + masters - shared
    return whole + -(-shared // num_processes) + FP32 * _most_dealt(dealt, num_processes if stage else 1)


def _most_dealt(dealt: dict[str, int], num_processes: int) -> int:
    owners = deal_out(dealt, num_processes)
    return max(sum(size for name, size in dealt.items() if owners[name] == process) for process in range(num_processes))


def ring_bytes(params: int, num_processes: int) -> float:
    return 2 * (num_processes - 1) / num_processes * FP32 * params
