"""What the processes of a run send each other in a step, and how long it takes.

Shapes: n processes on N nodes of G, P numbers of parameters.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import gradient_itemsize
from comera_dist.costs.machines import Machine, Protocol
from comera_dist.costs.memory import AVERAGED_AT_ONCE, persistent_numbers
from comera_dist.formats.base import FP32
from comera_dist.formats.plan import Plan

GROUPS = 5  # groups of parameters, each gathered by itself at stages 1 and 2; a decoder has three to six
AGREEMENTS = 4  # all-reduces of a few numbers: that all rows were read, tokens, loss, norm of the gradients


class Collective(NamedTuple):
    """`times` equal collectives of `bytes` each: the whole vector that is reduced or gathered, or what a process has
    for all others."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    bytes: float
    times: int = 1


@dataclass(frozen=True)
class Cluster:
    """`nodes` nodes with `per_node` processes each."""

    machine: Machine
    nodes: int
    per_node: int

    @property
    def processes(self) -> int:
        return self.nodes * self.per_node

    @property
    def turns(self) -> float:
        """Processes for each core that computes."""
        return self.processes / self.running

    @property
    def running(self) -> int:
        """Processes that compute at the same time."""
        return min(self.processes, self.machine.cores or self.processes)

    @property
    def stream(self) -> float:
        """Bytes a second that each running process reads or writes of all its parameters; cores share the memory."""
        return self.machine.stream / (self.running if self.machine.cores else 1)

    @property
    def bus(self) -> float:
        """Bytes a second that each process sends in a ring. All interfaces of a node carry the ring that leaves it."""
        between = self.machine.network * self.per_node
        if self.nodes == 1:
            return self.machine.local_link
        return between if self.per_node == 1 else min(self.machine.local_link, between)

    def bytes_sent(self, collective: Collective) -> float:
        """By each process: rings send n - 1 of n pieces, an all-reduce twice (Patarasuk and Yuan 2009)."""
        return collective.times * _rounds(collective) * (self.processes - 1) / self.processes * collective.bytes

    def seconds(self, collective: Collective) -> float:
        """Of all `times`, one after the other, by the fastest of the machine's protocols.

        Latency and bytes over rate add up (Thakur, Rabenseifner and Gropp 2005), with NCCL's counts of hops.
        """
        if self.processes == 1:
            return 0.0
        ways = [self._ring(collective, protocol) for protocol in self.machine.rings]
        if collective.kind == "all_reduce":
            ways += [self._tree(collective, protocol) for protocol in self.machine.trees]
        return collective.times * min(ways)

    def _ring(self, collective: Collective, protocol: Protocol) -> float:
        rounds, crossing = _rounds(collective), self.nodes - 1
        latency = rounds * ((self.processes - 1 - crossing) * protocol.local + crossing * protocol.network)
        sent = self.bytes_sent(collective) / collective.times
        return protocol.start + latency + sent / (protocol.share * self.bus)

    def _tree(self, collective: Collective, protocol: Protocol) -> float:
        """Up and down: along the processes of a node, and over the levels of a binary tree of nodes."""
        levels = math.ceil(math.log2(self.nodes))
        latency = 2 * ((self.per_node - 1) * protocol.local + levels * protocol.network)
        return protocol.start + latency + 2 * collective.bytes / (protocol.share * self.bus)


def _rounds(collective: Collective) -> int:
    return 2 if collective.kind == "all_reduce" else 1


def collectives(
    config: Config, plan: Plan, params: int, dealt: int, micro_batches: int, processes: int
) -> Iterator[Collective]:
    """Of a step of a model of `params` numbers, `dealt` of which an optimizer steps as whole matrices.

    As DeepSpeed 0.19.8 makes them: weights travel in fp32, and gradients too unless `deepspeed.communication_data_type`
    is bf16. Stages 1 and 2 all-reduce gradients and gather the updated weights; stage 2 does the former for every micro
    batch. Stage 3 gathers weights for the forward and for the backward pass and scatters gradients, for every micro
    batch. Nothing is taken to overlap with computing.
    """
    stage, keys = config.train.zero_stage, config.deepspeed.zero_optimization
    itemsize = gradient_itemsize(config)
    bucket = AVERAGED_AT_ONCE if stage == 0 else keys.reduce_bucket_size or params
    buckets = -(-params // bucket)
    yield Collective("all_reduce", FP32, AGREEMENTS)
    if stage < 3:
        yield Collective("all_reduce", itemsize * params / buckets, buckets * (micro_batches if stage == 2 else 1))
    if stage in (1, 2):
        yield Collective("all_gather", FP32 * params / GROUPS, GROUPS)
    if stage == 3:
        whole = persistent_numbers(config, plan)
        layers = max(1, len(plan))
        yield Collective("all_gather", FP32 * (params - whole) / layers, 2 * layers * micro_batches)
        yield Collective("reduce_scatter", itemsize * params / buckets, buckets * micro_batches)
        yield Collective("all_gather", FP32 * whole)
    if stage and dealt:  # runtime/dealt_parameters.py: weights and gradients to the owners, new weights back
        yield Collective("all_to_all", 2 * FP32 * dealt / processes)
        yield Collective("all_to_all", FP32 * dealt / processes)
