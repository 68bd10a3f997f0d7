"""Bytes and times of collectives against rings and trees that are played message by message."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from support import FACTS, TINY

from comera_dist.config.reader import read_config
from comera_dist.costs.exchange import AGREEMENTS, Cluster, Collective, collectives
from comera_dist.costs.machines import MACHINES, Protocol
from comera_dist.models.family import plan_model

ONE_RING = replace(MACHINES["h100"], rings=(Protocol(1.0, 2e-6, 3e-6, 10e-6),), trees=())
SHAPES = [(1, 2), (1, 5), (2, 1), (3, 2), (4, 4)]


def ring_of(cluster: Cluster, collective: Collective) -> tuple[list[list[set[int]]], float, float]:
    """Plays a ring: whose numbers are in each process's pieces in the end, bytes that each sends, and seconds.

    In each round every process sends one piece to its right; the round lasts as long as its slowest message.
    """
    n, machine = cluster.processes, cluster.machine
    piece, seconds, sent = collective.bytes / n, machine.rings[0].start, 0.0
    # added[p][k]: the processes whose numbers are summed in p's copy of piece k.
    added = [[{p} if collective.kind != "all_gather" or p == k else set() for k in range(n)] for p in range(n)]
    crossing = [p // cluster.per_node != (p + 1) % n // cluster.per_node for p in range(n)]
    phases = {"all_reduce": ("sum", "copy"), "reduce_scatter": ("sum",), "all_gather": ("copy",)}[collective.kind]
    for phase in phases:
        shift = 1 if phase == "copy" and len(phases) == 2 else 0
        for step in range(n - 1):
            messages = [(p, (p + 1) % n, (p + shift - step) % n) for p in range(n)]
            arrived = [(to, k, set(added[p][k])) for p, to, k in messages]
            for to, k, numbers in arrived:
                added[to][k] = added[to][k] | numbers if phase == "sum" else numbers
            sent += piece
            seconds += piece / cluster.bus
    protocol = machine.rings[0]
    # A message's way around: each of its hops waits for the one before it.
    hops = [protocol.network if crossing[p] else protocol.local for p in range(n - 1)]
    return added, sent, seconds + len(phases) * sum(hops)


@pytest.mark.parametrize(("nodes", "per_node"), SHAPES)
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_takes_the_bytes_and_seconds_of_its_messages(kind, nodes, per_node):
    cluster, collective = Cluster(ONE_RING, nodes, per_node), Collective(kind, 120e6)
    have, sent, seconds = ring_of(cluster, collective)
    everyone = set(range(cluster.processes))
    if kind == "all_reduce":
        assert all(piece == everyone for pieces in have for piece in pieces)
    elif kind == "all_gather":
        assert all(piece == {number} for pieces in have for number, piece in enumerate(pieces))
    else:  # each process has the sum of one piece, another one each
        assert {pieces.index(everyone) for pieces in have} == everyone
    assert cluster.bytes_sent(collective) == pytest.approx(sent)
    assert cluster.seconds(collective) == pytest.approx(seconds)


def test_nodes_send_through_all_their_interfaces():
    machine = ONE_RING
    assert Cluster(machine, 1, 8).bus == machine.local_link
    assert Cluster(machine, 2, 1).bus == machine.network
    assert Cluster(machine, 2, 8).bus == 8 * machine.network < machine.local_link
    assert Cluster(machine, 2, 16).bus == machine.local_link


def test_a_tree_is_as_deep_as_the_logarithm_of_the_nodes():
    machine = replace(ONE_RING, trees=ONE_RING.rings)
    small = Collective("all_reduce", 8)
    for nodes in (2, 8, 512):
        levels = 2 * (7 * 3e-6 + math.log2(nodes) * 10e-6)
        assert Cluster(machine, nodes, 8).seconds(small) == pytest.approx(2e-6 + levels, rel=1e-3)
    gathered = Collective("all_gather", 8)
    assert Cluster(machine, 512, 8).seconds(gathered) == Cluster(ONE_RING, 512, 8).seconds(gathered)


def test_times_grow_with_bytes_and_with_nodes():
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        by_bytes = [Cluster(MACHINES["h100"], 4, 8).seconds(Collective(kind, 10.0**k)) for k in range(2, 12)]
        by_nodes = [Cluster(MACHINES["h100"], 2**k, 8).seconds(Collective(kind, 1e9)) for k in range(10)]
        assert all(a < b for times in (by_bytes, by_nodes) for a, b in pairwise(times))
        assert Cluster(MACHINES["h100"], 1, 1).seconds(Collective(kind, 1e9)) == 0


# Of 4 · parameters bytes: at stage 1 the all-reduce sends two and the all-gather one; at stage 3 with nothing that
# stays whole, two all-gathers and a reduce-scatter.
@pytest.mark.parametrize(
    ("stage", "micro_batches", "whole"), [(0, 1, 2), (0, 3, 2), (1, 3, 3), (2, 1, 3), (2, 3, 7), (3, 1, 3), (3, 2, 6)]
)
def test_stages_send_what_deepspeed_sends(stage, micro_batches, whole):
    keys = ["deepspeed.zero_optimization.stage3_param_persistence_threshold=0"] if stage == 3 else []
    config = read_config(None, [*TINY, f"train.zero_stage={stage}", *keys])
    params, cluster = 10**6, Cluster(ONE_RING, 1, 4)
    found = collectives(config, plan_model(config, FACTS), params, 0, micro_batches, 4)
    agreed = AGREEMENTS * 2 * 4
    assert sum(map(cluster.bytes_sent, found)) == pytest.approx(0.75 * (whole * 4 * params + agreed))


def test_gradients_in_bf16_send_half():
    config = read_config(None, [*TINY, "train.zero_stage=0", "deepspeed.communication_data_type=bf16"])
    sent = [c.bytes * c.times for c in collectives(config, plan_model(config, FACTS), 10**6, 0, 1, 4)]
    assert max(sent) == 2 * 10**6
