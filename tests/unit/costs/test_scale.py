"""Predictions for clusters: deep models from shallow ones, what grows with what, the command and its errors."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from support import FACTS, TINY, VOCAB, WORKLOADS

from comera_dist.commands.estimate import main
from comera_dist.config.reader import read_config
from comera_dist.costs.deep_step import deep_step
from comera_dist.costs.exchange import Cluster
from comera_dist.costs.machines import MACHINES
from comera_dist.costs.memory import step_of
from comera_dist.costs.scale import ZERO_STAGES, needs_of, plan_scale, sides_of
from comera_dist.models.family import plan_model

H100 = MACHINES["h100"]
BLOCKS = ["model.format=block_train", "data.seq_len=64", "train.batch_tokens=256"]
SHARED = ["model.format={attention: shared, mlp: shared, embedding: dense, head: dense}"]
ONE_BLOCK = [*TINY, *BLOCKS, "model.layers=1"]


@pytest.mark.parametrize(
    ("base", "overrides", "mode", "micro_batches"),
    [
        (TINY, ["model.format=dense"], "none", 1),
        (TINY, BLOCKS, "block", 2),
        (TINY, [], "none", 2),
        (TINY, [], "block", 1),
        (WORKLOADS["masked_lm"], [], "block", 2),
        (TINY, [*SHARED, "tensor.shared.matrices=1"], "none", 1),
        (TINY, [*SHARED, "tensor.shared.matrices=2"], "block", 2),
        (TINY, ["tensor.layers=[{match: '*.1.mlp.*', format: dense}]"], "none", 1),
    ],
)
def test_a_deep_step_is_the_step_of_all_blocks(base, overrides, mode, micro_batches):
    config = read_config(None, [*base, *overrides, "model.layers=5", f"train.activation_checkpointing={mode}"])
    plan = plan_model(config, FACTS)
    found, whole = deep_step(config, plan, 2, micro_batches), step_of(config, plan, 2, micro_batches)
    assert found.kept == whole.kept
    assert found.peak == pytest.approx(whole.peak, rel=0.02)
    for total in (lambda o: o.flops, lambda o: o.bytes_moved):
        assert sum(n * total(o) for o, n in found.work.items()) == sum(n * total(o) for o, n in whole.work.items())


def test_blocks_that_differ_are_all_counted():
    config = read_config(
        None, [*TINY, *BLOCKS, "model.layers=5", "tensor.layers=[{match: '*.3.mlp.*', format: dense}]"]
    )
    plan = plan_model(config, FACTS)
    assert deep_step(config, plan, 1, 1) == step_of(config, plan, 1, 1)


def rows_on(nodes, per_node, *overrides):
    config = read_config(None, [*ONE_BLOCK, *overrides])
    plan = plan_scale(config, VOCAB, Cluster(H100, nodes, per_node))
    return plan, {(row.side, row.zero_stage): row for row in plan.rows}


def test_one_gpu_exchanges_nothing():
    plan, rows = rows_on(1, 1)
    assert set(rows) == {(side, stage) for side in ("this run", "dense twin") for stage in ZERO_STAGES}
    for row in rows.values():
        assert row.exchange == row.sent_bytes == 0
        assert row.efficiency == 1
        assert row.tokens_per_second == pytest.approx(256 / row.seconds)
    assert plan.step_tokens == 256


def test_more_gpus_send_more_and_hold_less():
    config = read_config(None, ONE_BLOCK)
    clusters = [Cluster(H100, nodes, per) for nodes, per in ((1, 1), (1, 8), (8, 8), (512, 8))]
    for side in sides_of(config, VOCAB):
        for stage in ZERO_STAGES:
            rows = [side.row(stage, cluster) for cluster in clusters]
            assert all(a.sent_bytes < b.sent_bytes and a.exchange < b.exchange for a, b in pairwise(rows))
            assert all(a.memory_bytes >= b.memory_bytes for a, b in pairwise(rows))
            assert {row.compute for row in rows} == {rows[0].compute}
            assert all(a.tokens_per_second < b.tokens_per_second for a, b in pairwise(rows))


def test_every_gpu_makes_the_configured_micro_batches():
    plan, rows = rows_on(2, 4, "train.batch_tokens=512", "train.micro_batch=4")
    _, one = rows_on(2, 4)
    assert plan.step_tokens == 8 * 512
    row = rows["this run", 0]
    assert row.compute == pytest.approx(2 * one["this run", 0].compute, rel=0.1)
    assert row.sent_bytes == one["this run", 0].sent_bytes
    assert rows["this run", 2].sent_bytes > one["this run", 2].sent_bytes


def test_a_dense_run_has_no_twin():
    config = read_config(None, [*TINY, "model.format=dense"])
    assert [side.name for side in sides_of(config, VOCAB)] == ["this run"]


WIDE = ["model.d_model=1024", "model.heads=8", "model.d_ff=2816", "model.layers=12", "model.format=dense"]
LONG = ["model.heads=1", "model.layers=4", "model.format=dense"]


@pytest.mark.parametrize(
    ("overrides", "gigabytes", "words"),
    [
        (["model.format=dense"], 1, "without ZeRO"),
        ([*WIDE, "data.seq_len=32", "train.batch_tokens=32"], 2.5, "suffices from ZeRO stage 1 on"),
        (
            [*LONG, "data.seq_len=2048", "train.batch_tokens=16384"],
            0.01,
            "with train.activation_checkpointing=block and train.micro_batch=1",
        ),
        ([*LONG, "data.seq_len=65536", "train.batch_tokens=65536"], 0.05, "(sequence parallelism)"),
        ([*WIDE, "data.seq_len=32", "train.batch_tokens=32"], 0.2, "(tensor or pipeline parallelism)"),
    ],
)
def test_the_sentence_names_what_a_run_needs(overrides, gigabytes, words):
    cluster = Cluster(replace(H100, memory=gigabytes * 1e9 / 0.9), 8, 8)
    (side,) = sides_of(read_config(None, [*TINY, *overrides]), VOCAB)
    assert words in needs_of(side, cluster)


def run(monkeypatch, tmp_path, *words):
    (tmp_path / "empty.yaml").write_text("{}")
    command = ["estimate", "--config", str(tmp_path / "empty.yaml"), "--vocab-size", str(VOCAB), *ONE_BLOCK]
    monkeypatch.setattr("sys.argv", [*command, *words])
    return main()


def test_the_command_prints_a_table(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, tmp_path, "--nodes", "2", "--machine", "a100", "train.teacher.run=runs/a") == 0
    shown = capsys.readouterr().out
    assert "2 node(s) of 8 A100 SXM 80 GB" in shown
    assert shown.count("this run") == shown.count("dense twin") == 4
    expected = ["data parallelism suffices", "Weak scaling", "4,096 tokens", "predicted, not measured"]
    for words in [*expected, "Without the weights and the forward pass of the teacher."]:
        assert words in " ".join(shown.split())


def test_the_command_says_what_the_prediction_does_not_know(monkeypatch, capsys, tmp_path):
    others = ["train.precision=fp8", "train.cuda_graphs=true", "train.compile=true"]
    keys = ["run.start_from=runs/a", "ranks.adapt=true", "ranks.sync_every=1", *others]
    assert run(monkeypatch, tmp_path, "--nodes", "1", *keys) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "ranks: the run takes those of run.start_from = runs/a, which was not read." in shown
    assert "Of the ranks as they are planned, before any is cut." in shown
    assert "FP8 products are predicted as a device without them emulates them, in bf16; others take less time." in shown
    assert "Times are those of eager steps, without train.cuda_graphs and train.compile." in shown


def test_the_command_prints_json(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, tmp_path, "--gpus-per-node", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["machine"], found["nodes"], found["per_node"], found["step_tokens"]) == ("H100 SXM", 1, 4, 1024)
    _, rows = rows_on(1, 4)
    assert found["rows"] == [row.to_json() for row in rows.values()]
    assert "not measured" in found["basis"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nodes", "2", "--processes", "4"], "--processes was given with --nodes, --gpus-per-node or --machine"),
        (["--machine", "h200", "--plans"], "leave out either"),
        (["--fits", "24", "--nodes", "2"], "--nodes was given with --fits, which looks for models of one process"),
        (["--nodes", "9000"], "9000 nodes of 8 processes are 72,000 processes; give at most 65,536"),
        (["--nodes", "2", *WORKLOADS["dlrm"]], "model.kind = dlrm has no prediction at scale"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence, monkeypatch, capsys, tmp_path):
    if "model.kind=dlrm" in words:
        (tmp_path / "empty.yaml").write_text("{}")
        monkeypatch.setattr("sys.argv", ["estimate", "--config", str(tmp_path / "empty.yaml"), *words])
        assert main() == 2
    else:
        assert run(monkeypatch, tmp_path, *words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
