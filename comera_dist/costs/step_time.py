"""The time of a training step on a cluster: computing, updating and exchanging, one after the other.

Shapes: n processes, P numbers of parameters.
"""

from dataclasses import dataclass

from comera_dist.config.registry import OPTIMIZERS
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import dealt_numbers, layer_of, parameters_in
from comera_dist.costs.exchange import Cluster, collectives
from comera_dist.costs.machines import Machine
from comera_dist.costs.operations import Operation, Work
from comera_dist.formats.base import FP32, Unfoldings
from comera_dist.formats.plan import Plan
from comera_dist.models.base import IN_BLOCK
from comera_dist.optim.base import Method

# How often a step reads or writes P numbers, besides the model's own operations: whole on each process, and shared by
# all. Counted in steps of DeepSpeed 0.19.8 with AdamW on one, two and four processes: 24 of the update at stage 0 and
# 33 / n above; buckets, their flat copies and averages are the rest.
PASSES = {0: (31, 0), 1: (7, 39), 2: (7, 39), 3: (9, 39)}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, and bytes that each process sends in it."""

    compute: float
    update: float
    exchange: float
    bytes_sent: float

    @property
    def total(self) -> float:
        """Nothing overlaps, which DeepSpeed does by default at stage 3 alone."""
        return self.compute + self.update + self.exchange


def operation_seconds(operation: Operation, machine: Machine) -> float:
    """The longest of computing its products, moving its bytes and starting it (Williams et al. 2009, the roofline)."""
    products = operation.flops / machine.flops[2 if operation.itemsize == 2 else 4]
    return max(products, operation.bytes_moved / machine.bandwidth, machine.launch)


def step_time(config: Config, plan: Plan, params: int, work: Work, micro_batches: int, cluster: Cluster) -> StepTime:
    """Of a model of `params` numbers whose micro batches are `work` each; every process makes `micro_batches`."""
    machine, n, stage = cluster.machine, cluster.processes, config.train.zero_stage
    once = sum(count * operation_seconds(operation, machine) for operation, count in work.items())
    whole, shared = PASSES[stage]
    moved = FP32 * params * (whole + shared / n)
    update = moved / cluster.stream
    method: Method = OPTIMIZERS[config.optim.kind](config.optim)
    flops, largest = _products(method, plan)
    products = max(flops / n, largest) if stage else flops
    exchanged = list(collectives(config, plan, params, dealt_numbers(config, plan), micro_batches, n))
    sent = sum(map(cluster.bytes_sent, exchanged))
    on_cores = cluster.turns * (sent / machine.host_rate + machine.waiting) if n > 1 else 0.0
    return StepTime(
        compute=cluster.turns * micro_batches * once,
        update=cluster.turns * (update + products / machine.flops[method.product_bytes]),
        exchange=sum(map(cluster.seconds, exchanged)) + on_cores,
        bytes_sent=sent,
    )


def _products(method: Method, plan: Plan) -> tuple[int, int]:
    """FLOPs of the products with which the optimizer steps whole matrices: of all, and of the layer that has most,
    which one process steps."""
    if not method.needs_whole:
        return 0, 0
    names = {layer_of(name, plan) for name in parameters_in(plan, method.takes)}
    layers = [layer for name in names if isinstance(layer := plan[name], Unfoldings) and IN_BLOCK.search(name)]
    flops = [sum(method.product_flops(*size) for size in layer.unfoldings.values()) for layer in layers]
    return sum(flops), max(flops, default=0)
