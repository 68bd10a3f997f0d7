import json
import os
import signal
import sys

import pytest
import torch

from benchmarks import blocks, cross_entropy, dropout, embedding, layers, optimizer_cost, products, report
from benchmarks.layers import Case, Grid, Result
from benchmarks.rivals.tensorly_layer import is_installed
from benchmarks.roofline import Rates, floor_ms, linear_bytes, linear_flops, measured_rates
from comera_dist.formats.block_train import plan_blocks
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import TTMShape, plan_tt
from comera_dist.ops.dropout import Dropout

CPU = torch.device("cpu")
RATES = Rates(bytes_per_ms=1000.0, flops_per_ms=4000.0)
TINY = Grid({(64, 64): (8, 4), (27, 64): (8,)}, (2, 4, 32), warm_up=0, repeats=2, copy_bytes=1 << 12, matrix_size=16)
TABLE = TTMShape(30, 16, (2, 4, 2, 2), (2, 2, 2, 2), (1, 2, 3, 2, 1))


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs a benchmark's command on the CPU and returns the tables that it wrote, by name."""

    def command(benchmark, *arguments):
        monkeypatch.setattr(report, "RESULTS", tmp_path)
        monkeypatch.setattr(sys, "argv", [benchmark.__name__, *arguments])
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
        benchmark.main()
        return {path.stem: json.loads(path.read_text())["rows"] for path in tmp_path.iterdir()}

    usual = signal.getsignal(signal.SIGTERM)
    yield command
    signal.signal(signal.SIGTERM, usual)


def test_flops_of_a_factored_layer_are_those_of_its_six_products():
    n, m, rank, tokens = 5, 7, 3, 11
    products = [
        (tokens, n, rank),  # h = x U
        (tokens, rank, m),  # y = h V
        (tokens, m, rank),  # gradient of h
        (rank, tokens, m),  # gradient of V
        (tokens, rank, n),  # gradient of x
        (n, tokens, rank),  # gradient of U
    ]
    assert linear_flops(n, m, tokens, rank) == sum(2 * a * b * c for a, b, c in products)
    assert linear_flops(n, m, tokens, None) == 3 * 2 * tokens * n * m


def test_bytes_are_each_tensor_as_often_as_it_has_to_move():
    n, m, rank, tokens, parameters = 5, 7, 3, 11, 40
    x, y, h = tokens * n, tokens * m, tokens * rank
    activations = x + h + y  # forward: read x, write h and y
    activations += y + h + x + x  # backward: read the gradient of y, h and x; write the gradient of x
    assert linear_bytes(n, m, tokens, rank, parameters, 2) == 2 * activations + 4 * 3 * parameters
    assert linear_bytes(n, m, tokens, None, parameters, 2) == 2 * (activations - 2 * h) + 4 * 3 * parameters


def test_the_floor_is_the_slower_of_moving_and_computing():
    moved, computed = linear_bytes(5, 7, 11, 3, 40, 4) / 1000, linear_flops(5, 7, 11, 3) / 4000
    assert moved > computed
    assert floor_ms(5, 7, 11, 3, 40, torch.float32, RATES) == moved
    assert floor_ms(5, 7, 11, 3, 40, torch.float32, Rates(1e9, 4000.0)) == computed


def test_rates_count_what_was_copied_and_multiplied():
    rates = measured_rates(1000, 10, CPU, torch.float32, timed=lambda call, device: 2.0)
    assert rates == Rates(2 * 1000 / 2.0, 2 * 10**3 / 2.0)


def test_ranks_end_where_two_factors_need_the_flops_of_the_dense_layer():
    assert list(TINY.shapes()) == [(64, 64, 2), (64, 64, 4), (64, 64, 32), (27, 64, 2), (27, 64, 4)]
    assert layers.equal_flops_rank(768, 3072) == 614


def test_a_side_times_the_gradients_of_the_input_and_of_every_parameter():
    layer = TTLinear(plan_tt(64, 64, 3, 4))
    x, grad = torch.randn(8, 64), torch.randn(8, 64)
    gradients = layers.Side(layer, x, grad).step()
    assert len(gradients) == 1 + len(list(layer.parameters()))
    torch.testing.assert_close(gradients[0], grad @ layer.to_dense())


def test_all_sides_of_a_case_are_compared():
    modules = layers.layers_of(64, 64, 4, CPU)
    results = layers.compare(Case(64, 64, 4, 8), modules, RATES, TINY)
    assert [r.side for r in results] == list(modules)
    assert set(modules) - {"tensorly-torch"} == {"dense", "low rank", "CoMERA's scheme", "ours"}
    assert ("tensorly-torch" in modules) == is_installed()
    for result in results:
        assert result.parameters == sum(p.numel() for p in modules[result.side].parameters())
        assert len(result.times) == len(result.speedups) == TINY.repeats
        assert (result.floor is None) == (result.side == "tensorly-torch")
    dense, ours = results[0], results[-1]
    assert ours.speedups == [a / b for a, b in zip(dense.times, ours.times, strict=True)]
    assert dense.floor == floor_ms(64, 64, 8, None, dense.parameters, torch.float32, RATES)
    assert ours.floor == floor_ms(64, 64, 8, 4, ours.parameters, torch.float32, RATES)


def test_ours_and_comeras_scheme_store_the_same_cores_where_no_side_is_merged():
    modules = layers.layers_of(512, 512, 16, CPU)
    counts = {name: sum(p.numel() for p in layer.parameters()) for name, layer in modules.items()}
    assert counts["ours"] == counts["CoMERA's scheme"]


def test_the_crossover_is_the_largest_rank_that_is_faster():
    def result(rank, speedups, tokens=8, side="ours"):
        return Result(Case(64, 64, rank, tokens), side, 1, [1.0], speedups, None)

    results = [
        result(2, [3.0, 2.0, 0.5]),
        result(4, [1.1, 1.2, 0.9]),
        result(16, [0.9, 0.8, 5.0]),
        result(16, [9.0], side="low rank"),
        result(2, [0.5], tokens=4),
    ]
    first, second = layers.crossover(results)
    assert first == {
        "size": "64 x 64",
        "tokens": 8,
        "largest measured rank faster than dense": 4,
        "measured ranks": "2, 4, 16",
        "rank of equal FLOPs": 32,
    }
    assert second["largest measured rank faster than dense"] == "none"


def test_layers_write_a_row_for_each_side_and_the_crossover(run, monkeypatch):
    monkeypatch.setitem(layers.GRIDS, "cpu", TINY)
    tables = run(layers)
    rows = tables["layers_cpu"]
    assert list(rows[0]) == [
        "size",
        "tokens",
        "rank",
        "side",
        "parameters",
        "ms: median (range)",
        "times as fast as dense",
        "achieved over floor",
    ]
    cases = 3 * 2 + 2 * 1
    assert len(rows) == cases * (4 + is_installed())
    assert [(row["size"], row["tokens"]) for row in tables["layers_crossover_cpu"]] == [
        ("64 x 64", 8),
        ("64 x 64", 4),
        ("27 x 64", 8),
    ]


@pytest.mark.parametrize(
    ("benchmark", "work"), [(layers, "compare"), (embedding, "compare"), (blocks, "rows_of")], ids=str
)
def test_a_benchmark_that_runs_out_of_time_reports_its_finished_rows(benchmark, work, run, monkeypatch, tmp_path):
    done = []

    def row(*_):
        if done:
            os.kill(os.getpid(), signal.SIGTERM)
        done.append({"row": 1})
        return done[:1]

    monkeypatch.setattr(layers, "row", lambda result: result)
    monkeypatch.setattr(layers, "crossover", lambda results: results)
    monkeypatch.setattr(benchmark, "measured_rates", lambda *_: None, raising=False)
    monkeypatch.setattr(blocks, "tune_cpu", lambda: None)
    monkeypatch.setattr(benchmark, work, row)
    with pytest.raises(SystemExit, match="stopped by a signal"):
        run(benchmark)
    assert all(json.loads(path.read_text())["rows"] == done[:1] for path in tmp_path.iterdir())
    assert len(done) == 1
    assert list(tmp_path.iterdir())


def test_quick_runs_write_nothing(run, monkeypatch):
    monkeypatch.setitem(layers.GRIDS, "quick", TINY)
    assert run(layers, "--quick") == {}


def test_tokens_follow_zipfs_law():
    tokens = embedding.zipf_tokens(1000, 100_000)
    counts = tokens.bincount(minlength=1000).double()
    harmonic = sum(1 / k for k in range(1, 1001))
    assert counts[0] / 100_000 == pytest.approx(1 / harmonic, rel=0.05)
    assert counts[0] / counts[4] == pytest.approx(5, rel=0.1)
    assert torch.equal(tokens, embedding.zipf_tokens(1000, 100_000))


def test_embeddings_write_a_row_for_each_side(run, monkeypatch):
    monkeypatch.setattr(embedding, "TABLES", {"tiny": TABLE})
    monkeypatch.setattr(embedding, "CASES", [("tiny", 30), ("tiny", 60)])
    measured = []
    monkeypatch.setattr(
        embedding, "extra_bytes", lambda table, indices, name, side: measured.append((indices, name)) or 3 << 19
    )
    rows = run(embedding)["embedding_cpu"]
    assert [row["side"] for row in rows] == ["nn.Embedding", "plain TTM", "CoMERA's scheme", "ours"] * 2
    assert measured == [(indices, name) for indices in (30, 60) for name in embedding.SIDES]
    assert list(rows[0]) == [
        "table",
        "indices (distinct)",
        "side",
        "parameters",
        "ms: median (range)",
        "times as fast as plain TTM",
        "extra memory MiB",
    ]
    assert rows[0]["parameters"] == 30 * 16
    assert rows[1]["parameters"] == TABLE.num_parameters
    assert rows[2]["parameters"] == rows[3]["parameters"] == TABLE.num_parameters + TABLE.num_gates
    assert rows[1]["times as fast as plain TTM"] == "1"
    assert rows[3]["extra memory MiB"] == "1.5"


def test_every_table_is_measured_and_the_largest_once():
    assert {table for table, _ in embedding.CASES} == set(embedding.TABLES)
    large = embedding.TABLES["ten million rows"]
    assert large.inputs == 10**7
    assert large.num_parameters < large.dense_parameters / 500
    assert [indices for table, indices in embedding.CASES if table == "ten million rows"] == [20_000]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of resident memory is restarted on Linux")
def test_extra_memory_holds_the_gradient_of_the_table_and_not_the_table(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    table = torch.nn.Embedding(40_000, 256)
    ids = torch.zeros(10, dtype=torch.long)
    extra = embedding.Side(table, ids, 256).extra_bytes()
    gradient = table.weight.numel() * 4
    assert 0.9 * gradient < extra < 1.9 * gradient


def test_the_cost_of_optimizers_has_a_row_for_each_side(run, monkeypatch):
    monkeypatch.setattr(optimizer_cost, "FULL", optimizer_cost.QUICK)
    rows = run(optimizer_cost)["optimizer_cost_cpu"]
    sides = [(row["format"], row["optimizer"]) for row in rows]
    assert sides[:3] == [("dense", "adamw"), ("dense", "muon"), ("dense", "spectral")]
    assert {format for format, kind in sides if kind == "spectral"} == set(optimizer_cost.FORMATS)
    for row in rows:
        small, large = (float(row[column]) for column in list(row)[-2:])
        assert 0 < large < small < 100
    assert optimizer_cost.share([30.0, 30.0, 90.0], [10.0, 10.0, 10.0], 3) == "10.00"


def test_products_are_measured_by_all_kernels_and_in_whole_steps(run, monkeypatch):
    monkeypatch.setattr(optimizer_cost, "FULL", optimizer_cost.QUICK)
    monkeypatch.setattr(products, "SIZES", products.QUICK_SIZES)
    tables = run(products)
    assert [row["product"] for row in tables["products_cpu"]] == ["y", "gradient of x", "gradient of W"]
    assert all(float(rate) >= 0 for row in tables["products_cpu"] for rate in list(row.values())[2:])
    assert {row["format"] for row in tables["products_step_cpu"]} == set(optimizer_cost.FORMATS)


def test_the_sides_of_the_cross_entropy_compute_one_loss(run, monkeypatch):
    monkeypatch.setattr(cross_entropy, "SIZES", cross_entropy.QUICK_SIZES)
    monkeypatch.setattr(cross_entropy, "tune_cpu", lambda: None)  # it would stay for the tests that follow
    (row,) = run(cross_entropy)["cross_entropy_cpu"]
    assert row["tokens × width → vocabulary"] == "64 × 16 → 40"
    hidden, weight, targets = torch.randn(64, 16), torch.randn(40, 16), torch.randint(40, (64,))
    found = [float(loss(hidden, weight, targets)) for loss in cross_entropy.losses().values()]
    assert found == pytest.approx([found[-1]] * 3, rel=1e-5)


def test_the_sides_of_dropout_are_ours_and_torchs(run, monkeypatch):
    monkeypatch.setattr(dropout, "tune_cpu", lambda: None)
    monkeypatch.setattr(dropout, "MODELS", {name: (*more, *dropout.QUICK) for name, more in dropout.MODELS.items()})
    rows = run(dropout)["dropout_cpu"]
    assert [row["six-encoder"] for row in rows] == list(dropout.MODELS)
    ones = torch.ones(1000)
    module = Dropout(0.5)
    torch.manual_seed(1)
    ours = module(ones)
    with dropout.torch_dropout():
        torch.manual_seed(1)
        theirs = module(ones)
    torch.manual_seed(1)
    assert torch.equal(theirs, torch.nn.functional.dropout(ones, 0.5))
    assert not torch.equal(ours, theirs)


@pytest.mark.parametrize(("arguments", "name"), [([], "blocks_cpu"), (["--bf16"], "blocks_cpu_bf16")])
def test_block_trains_by_each_path_stand_beside_dense_layers(arguments, name, run, monkeypatch):
    monkeypatch.setattr(blocks, "tune_cpu", lambda: None)
    sizes, ranks, _, tokens = blocks.QUICK
    quick = {"SIZES": sizes, "RANKS": ranks, "SHARES": (1 / 4, 1 / 2), "TOKENS": tokens}
    quick["RATES"] = {"cpu": (1 << 20, 64)}
    for constant, value in quick.items():
        monkeypatch.setattr(blocks, constant, value)
    rows = run(blocks, *arguments)[name]
    assert [row["side"].split(":")[0] for row in rows] == 3 * ["dense", "blocks", "merged weight", "as planned"]
    assert [row["share of dense numbers"] for row in rows if row["side"] == "blocks"] == ["0.50", "0.25", "0.50"]
    assert {row["blocks"] for row in rows} == {8}


def test_the_floor_of_block_trains_counts_both_products():
    plan = plan_blocks(64, 64, 2)
    (n, c), (m, b), r = plan.in_blocks, plan.out_blocks, plan.rank
    flops = 3 * (2 * 32 * n * c * m * r + 2 * 32 * n * m * r * b)
    slow = Rates(bytes_per_ms=1e12, flops_per_ms=1.0)
    assert blocks.floor(plan, "blocks", 32, 4, slow) == flops
    assert blocks.floor(plan, "weight", 32, 4, slow) == 3 * 2 * 32 * 64 * 64
    moved = 4 * 32 * (3 * 64 + 2 * 64 + 2 * n * m * r) + 12 * plan.parameters
    assert blocks.floor(plan, "blocks", 32, 4, Rates(bytes_per_ms=1.0, flops_per_ms=1e12)) == moved
