"""What a run will cost, from its plan alone: no tensor is made. These figures are printed before step 1."""

from dataclasses import asdict, dataclass

from comera_dist.config.tree import Config
from comera_dist.formats.base import FP32, MatrixPlan, Resizable
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan
from comera_dist.models.planning import IN_BLOCK, stored_parts, tied_merge_flops, token_share, unplanned_flops


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

    def to_json(self) -> dict:
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
            params, _optimizer_numbers(config, plan, params), config.train.zero_stage, num_processes
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
    layers = sum(
        layer.forward_flops(round(tokens * token_share(config, name, layer)), device_type)
        for name, layer in plan.items()
    )
    return 3.0 * ((layers + tied_merge_flops(config, plan)) / tokens + unplanned_flops(config, plan))


def _dense_training_flops(config: Config, plan: Plan) -> float:
    layers = sum(
        2 * layer.dense_parameters * token_share(config, name, layer)
        for name, layer in plan.items()
        if not layer.is_embedding
    )
    return 3.0 * (layers + unplanned_flops(config, plan))


def _optimizer_numbers(config: Config, plan: Plan, params: int) -> int:
    """What the optimizer keeps: two moments of each parameter, and its own of the matrices that are not AdamW's."""
    kind, numbers = config.optim.kind, 2 * params
    if kind == "adamw":
        return numbers
    for name, layer in plan.items():
        if IN_BLOCK.search(name) and isinstance(layer, DensePlan):
            own = layer.parameters if kind == "muon" else _galore_numbers(layer, config.optim.galore.rank)
            numbers += own - 2 * layer.parameters
    return numbers


def _galore_numbers(layer: MatrixPlan, rank: int) -> int:
    """Two moments of the longer side at the projection's rank, and the projection's basis of the shorter side."""
    shorter, longer = sorted((layer.inputs, layer.outputs))
    return min(rank, shorter) * (2 * longer + shorter)


def state_bytes(params: int, kept: int, stage: int, num_processes: int) -> int:
    """Bytes of weights, gradients and optimizer, fp32 at either compute precision, as ZeRO stages shard them
    (Rajbhandari et al. 2020); stages 1-3 keep a sharded master copy."""
    weights = gradients = FP32 * params
    states, masters = FP32 * kept, FP32 * params if stage else 0
    shared = {0: 0, 1: states + masters, 2: states + masters + gradients}.get(
        stage, states + masters + gradients + weights
    )
    whole = weights + gradients + states + masters - shared
    return whole + -(-shared // num_processes)


def ring_bytes(params: int, num_processes: int) -> float:
    return 2 * (num_processes - 1) / num_processes * FP32 * params
