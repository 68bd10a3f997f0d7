"""The benchmark of scaling, small: what it counts is what was sent, and a slow link is as slow as it says."""

import json
import random
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from support import ROOT, environment

pytestmark = pytest.mark.distributed
SIDES = ("tensorized", "dense")
# The table goes to a folder of the test instead of benchmarks/results.
QUICK = """
import sys
import threading
from contextlib import suppress
from pathlib import Path
from benchmarks import report, scaling
report.RESULTS = Path(sys.argv.pop())
scaling.main()
"""
# d=64, one layer, d_ff=128, 4096 tokens: embedding and head, four attention matrices, three of the MLP, three norms.
DENSE = 2 * 4096 * 64 + 4 * 64 * 64 + 3 * 64 * 128 + 3 * 64


@pytest.fixture
def benchmark():
    from benchmarks import link, scaling  # here, because they import torch

    return link, scaling


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-c", QUICK, "--quick", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "scaling_quick.json").read_text())


def row(table: dict, side: str, processes: int, link: str) -> dict:
    keys = (side, processes, link)
    return next(r for r in table["rows"] if (r["side"], r["processes"], r["link"]) == keys)


def built_parameters(scaling, side: str) -> int:
    """Counted from a model that is really built."""
    import torch

    from comera_dist.models.decoder.model import Decoder
    from comera_dist.models.decoder.plan import plan_decoder

    config = scaling.SMALL.cases["tiny"].config(side, 2)
    model = Decoder(config.model, plan_decoder(config, scaling.VOCABULARY), torch.Generator())
    return sum(p.numel() for p in model.parameters())


def step_ms(row: dict) -> float:
    return float(row["step ms"].split()[0])


def needs_links(table: dict) -> None:
    if "cannot be limited here" in table["title"]:
        pytest.skip(table["title"])


def test_every_side_of_one_process_and_of_two(table):
    links = {(r["side"], r["processes"]) for r in table["rows"]}
    assert links == {(side, count) for side in SIDES for count in (1, 2)}
    for side in SIDES:
        alone = row(table, side, 1, "none")
        assert (alone["gradient MiB"], alone["efficiency"]) == (0, "1.00")


def test_gradient_bytes_are_those_of_a_ring_over_all_parameters(table, benchmark):
    _, scaling = benchmark
    parameters = {side: built_parameters(scaling, side) for side in SIDES}
    assert parameters["dense"] == DENSE
    for found in (r for r in table["rows"] if r["processes"] == 2):
        assert found["parameters"] == parameters[found["side"]]
        # Two processes: each sends half of the gradients, then half of the sums.
        assert found["gradient MiB"] == pytest.approx(4 * found["parameters"] / 2**20, abs=1e-3)


@pytest.mark.parametrize("link", ["unlimited", "100 Mbit/s"])
def test_ports_count_the_gradients_and_the_gathered_weights(table, link):
    needs_links(table)
    for side in SIDES:
        found = row(table, side, 2, link)
        # ZeRO 1 gathers updated weights: each process sends its half of them. Headers and norms come on top.
        expected = 1.5 * found["gradient MiB"]
        assert expected < found["sent MiB"] < 1.05 * expected + 0.02


def test_no_step_is_faster_than_its_link(table):
    needs_links(table)
    for side in SIDES:
        found = row(table, side, 2, "100 Mbit/s")
        least_ms = found["sent MiB"] * 2**20 * 8 / 100e6 * 1000
        # A pause lets the next 70 kB pass at once, and the small side sends little more than that.
        bursts_ms = 4 * 70e3 * 8 / 100e6 * 1000
        assert step_ms(found) > least_ms - bursts_ms
    assert least_ms > 2 * bursts_ms


def test_no_step_is_faster_than_the_delay_of_its_link(table, benchmark):
    needs_links(table)
    link, _ = benchmark
    if not link.can_relay():
        pytest.skip(f"{link.TUN} cannot be opened")
    for side in SIDES:
        # Gradients are summed and then weights gathered: each waits for what the other process sends.
        assert step_ms(row(table, side, 2, "20 ms")) > 2 * 20


def test_a_relay_loses_the_share_that_it_is_told():
    from benchmarks import relay

    (near, port), (far, outside), (end, other_end) = (socket.socketpair(type=socket.SOCK_DGRAM) for _ in range(3))
    near.settimeout(10)
    arguments = (port.fileno(), far.fileno(), end.fileno(), 0.0, 0.25, random.Random(0))
    carrier = threading.Thread(target=relay.carry, args=arguments, daemon=True)
    carrier.start()
    arrived = []
    for i in range(400):
        near.send(b"%d" % i)
        outside.send(b"back")
        assert near.recv(10) == b"back"
        with suppress(BlockingIOError):
            while True:
                arrived.append(outside.recv(10, socket.MSG_DONTWAIT))
    other_end.send(b"end")
    carrier.join(timeout=10)
    assert 250 < len(arrived) < 350
    assert arrived == sorted(arrived, key=int)


def test_refused_namespaces_give_their_reason(benchmark, tmp_path, monkeypatch):
    link, _ = benchmark
    refuses = tmp_path / "unshare"
    refuses.write_text("#!/bin/sh\necho not allowed >&2\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(PermissionError, match="not allowed"), link.Switch():
        pass


def test_without_a_switch_rows_say_that_nothing_is_limited(benchmark, monkeypatch):
    _, scaling = benchmark
    side = {"parameters": 1, "gradient_bytes": 4, "sent_bytes": None, "tokens": 8, "seconds": [1.0, 2.0, 4.0]}
    monkeypatch.setattr(scaling, "launch", lambda count, task, switch: {task["links"][0]: dict.fromkeys(SIDES, side)})
    rows = scaling.compare(scaling.SMALL, "tiny", False, [2])
    assert [(r["link"], r["sent MiB"], r["tokens/s"]) for r in rows] == [(scaling.UNSHAPED, None, 4)] * 2


def test_a_failing_process_is_told_with_its_last_words(benchmark):
    _, scaling = benchmark
    with pytest.raises(SystemExit, match="KeyError: 'no such case'"):
        scaling.launch(1, {"size": "scaling_quick", "case": "no such case", "links": ["none"]}, False)
