"""What is printed about a step against what a step does."""

import pytest
import torch
from support import TINY, VOCAB
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.commands.estimate import main
from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.costs.step_costs import step_costs
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.lookup_plan import plan_lookup
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.models.dlrm.plan import DLRMFacts
from comera_dist.models.family import build_model, known_facts, plan_model

# A wide middle between narrow outer bonds.
CHAIN = ["model.d_model=768", "model.d_ff=2048", "tensor.order=3", "tensor.rank=192", "tensor.outer_rank=32"]


def costs_of(*overrides, tokens=512):
    config = read_config(None, [*TINY, "data.seq_len=128", *overrides])
    plan = plan_decoder(config, VOCAB)
    return config, plan, {cost.name: cost for cost in step_costs(config, plan, tokens, "cpu")}


def flop_counter():
    """Torch's counter, which does not know a product that is added in place by itself."""

    def added_in_place(total, left, right, **_):
        return 2 * left[0] * left[1] * right[1]

    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added_in_place})


TIED = ["model.tie_embeddings=true"]


BLOCKS = ["model.format=block_train", "tensor.block_train.rank=2"]
SLTRAIN = ["model.format={rest: sltrain, embedding: dense}", "tensor.sltrain.rank=6"]


@pytest.mark.parametrize(
    "overrides", [["model.format=dense"], [], BLOCKS, SLTRAIN, TIED, [*TIED, "model.format=dense"]], ids=str
)
def test_flops_of_a_step_are_counted_ones(overrides):
    config, plan, costs = costs_of(*overrides)
    model = Decoder(config.model, plan, torch.Generator().manual_seed(0))
    tokens = torch.arange(512).remainder(VOCAB).reshape(4, 128)
    with sdpa_kernel(SDPBackend.MATH), flop_counter() as counter:
        model(tokens, tokens).backward()
    # Attention is counted whole here, and by half in the costs: a token sees half of the others on average.
    expected = sum(cost.flops for cost in costs.values()) + costs["attention"].flops
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


VOCABULARIES = ["dense", "low_rank", "tensor", "block_train", "mixed_dimension"]


@pytest.mark.parametrize("head", VOCABULARIES)
def test_both_tables_of_an_estimate_count_the_same_flops(head):
    """A head hands two factors or a whole weight to the loss, and never takes the path of a block's layer."""
    formats = f"model.format={{attention: dense, mlp: dense, embedding: dense, head: {head}}}"
    wide = ("model.d_model=256", "model.tie_embeddings=false", "tensor.block_train.rank=1")
    config = read_config(None, [*TINY, formats, *wide])
    plan = plan_decoder(config, 8192)  # so many that a block's layer would multiply by its blocks
    rows = step_costs(config, plan, 512, "cpu")
    assert estimate(config, plan, 1, 512).flops_per_token * 512 == pytest.approx(sum(row.flops for row in rows))


@pytest.mark.parametrize("ties", ["true", "false"])
def test_the_dense_twin_does_not_depend_on_the_vocabulary(ties):
    found = set()
    for vocabulary in VOCABULARIES:
        formats = f"model.format={{attention: dense, mlp: dense, embedding: {vocabulary}, head: {vocabulary}}}"
        more = ("tensor.embedding_rank=4", "tensor.block_train.rank=1")
        config, plan, _ = costs_of(formats, f"model.tie_embeddings={ties}", *more)
        costs = estimate(config, plan, 1, 512)
        found.add((costs.dense_params, costs.dense_flops_per_token))
        if vocabulary == "dense":
            assert costs.flops_per_token == costs.dense_flops_per_token
    assert len(found) == 1


ENCODER = (
    *("model.kind=encoder", "model.vocab_size=64", "model.d_model=48", "model.heads=2"),
    *("model.d_ff=64", "model.layers=1", "model.dropout=0", "model.positions=32", "data.seq_len=32"),
    *("train.batch_size=4", "train.steps=1", "tensor.order=2", "tensor.rank=16"),
    *("tensor.outer_rank=4", "tensor.embedding_order=2", "tensor.embedding_rank=4", "tensor.block_train.rank=2"),
)


@pytest.mark.parametrize("sequences", [3, 4])
@pytest.mark.parametrize("kind", ["dense", "tensor", "low_rank", "mixed_dimension", "block_train"])
@pytest.mark.parametrize(
    ("head", "more"), [("classification", ["model.classes=3"]), ("masked_lm", ["data.masked_fraction=0.25"])]
)
def test_flops_of_an_encoder_are_counted_ones_to_the_last(head, more, kind, sequences):
    """One token of 32 is pooled and classified, 8 are predicted. All distinct ids are there, as estimates suppose."""
    config = read_config(None, [*ENCODER, f"model.head={head}", f"model.format={kind}", *more])
    plan = plan_model(config, known_facts(config))
    tokens_BS = torch.arange(32 * sequences).remainder(64).reshape(sequences, 32)
    of_head = {
        "classification": (torch.zeros(sequences, dtype=torch.long),),
        "masked_lm": (torch.arange(8).expand(sequences, 8), torch.ones(sequences, 8, dtype=torch.long)),
    }
    model = build_model(config.model, plan, torch.Generator().manual_seed(0))
    with sdpa_kernel(SDPBackend.MATH), flop_counter() as counter:
        model(tokens_BS, torch.zeros_like(tokens_BS), *of_head[head]).backward()
    counted, figures = counter.get_total_flops(), estimate(config, plan, 1, tokens_BS.numel())
    assert figures.flops_per_token * tokens_BS.numel() == pytest.approx(counted, rel=1e-12)
    assert sum(cost.flops for cost in step_costs(config, plan, tokens_BS.numel(), "cpu")) == counted
    if kind == "dense":
        assert figures.dense_flops_per_token == figures.flops_per_token


def test_a_tied_head_merges_its_table_once():
    _, plan, costs = costs_of(*TIED)
    table = plan["model.embed_tokens"]
    embedding = TTMEmbedding(table)
    with FlopCounterMode(display=False) as counter:
        embedding.to_dense()
    assert counter.get_total_flops() > 0
    assert costs["tied head"].flops == 3 * (2 * 512 * table.dense_parameters + counter.get_total_flops())
    assert costs["tied head"].path == "merged table"


def test_layers_of_a_kind_are_one_row_and_shares_are_of_the_whole():
    _, plan, costs = costs_of()
    assert len(costs) == 1 + 7 + 1 + 1
    assert costs["model.layers.*.self_attn.q_proj"].count == 2
    assert sum(cost.count for cost in costs.values()) == len(plan) + 2
    assert sum(cost.share for cost in costs.values()) == pytest.approx(1)


def test_lookups_are_planned_as_in_the_model_and_counted_as_in_the_estimate():
    rows = (2_000_000, 4096)
    tables = ["model.kind=dlrm", "model.embedding_dim=32", "tensor.embedding_rank=32", "tensor.embedding_order=3"]
    config = read_config(None, [*tables, "train.steps=1", "train.batch_size=512"])
    plan = plan_model(config, DLRMFacts(3, rows))
    ways = set()
    for tokens in (8, 512, 8192):
        costs = step_costs(config, plan, tokens, "cpu")
        for cost, size in zip(costs, rows, strict=False):
            parts = plan_lookup(plan[cost.name], min(tokens, size))
            assert cost.path == "distinct rows, cores " + "+".join(str(stop - first) for first, stop in parts)
            ways.add(cost.path)
        per_row = estimate(config, plan, 1, tokens).flops_per_token
        assert sum(cost.flops for cost in costs) == pytest.approx(per_row * tokens, rel=1e-12)
    assert len(ways) > 2


def test_paths_are_those_that_the_model_takes():
    _, _, costs = costs_of(*CHAIN)
    assert costs["model.layers.*.mlp.up_proj"].path == "chain"
    assert costs["lm_head"].path == "sides"


def shown_by_the_command(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["estimate.py", "--plans", "--config", *arguments])
    assert main() == 0
    return capsys.readouterr().out


def test_the_rows_of_a_dlrm_are_not_called_tokens(capsys, monkeypatch, tmp_path):
    file = tmp_path / "clicks.yaml"
    file.write_text("model: {kind: dlrm, table_rows: [500, 60], dense_features: 2}\ntrain: {steps: 1, batch_size: 64}")
    shown = shown_by_the_command(capsys, monkeypatch, str(file))
    assert "training FLOPs per row " in shown
    assert "forward and backward over 32 rows, planned for cpu" in shown
    assert "token" not in shown


def test_a_decoder_without_a_corpus_is_told_of_the_vocabulary_argument(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["estimate.py", "--config", "configs/quickstart.yaml", "data.corpus=nowhere"])
    assert main() == 2
    assert "there is no data set at nowhere" in (told := capsys.readouterr().err)
    assert told.endswith("; or estimate without data: give --vocab-size\n")


def test_an_encoder_takes_the_vocabulary_argument(capsys, monkeypatch):
    shown = shown_by_the_command(capsys, monkeypatch, "configs/codebert_small.yaml", "--vocab-size", "4096")
    assert "bert.embeddings.word_embeddings" in shown


@pytest.mark.parametrize("argument", ["--processes", "--vocab-size"])
def test_counts_of_nothing_are_refused(capsys, monkeypatch, argument):
    monkeypatch.setattr("sys.argv", ["estimate.py", "--config", "configs/quickstart.yaml", argument, "0"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert f"argument {argument}: 0 is not possible; give 1 or more" in capsys.readouterr().err


def test_the_command_prints_one_row_a_kind(capsys, monkeypatch):
    shown = shown_by_the_command(capsys, monkeypatch, "configs/quickstart.yaml", "--vocab-size", "4096")
    assert "training FLOPs per token " in shown
    assert "planned for cpu" in shown
    assert "model.layers.*.mlp.down_proj" in shown
    assert "attention" in shown
