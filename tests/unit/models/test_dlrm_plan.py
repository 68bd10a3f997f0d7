"""Which matrices a recommendation model has, and how each of them is stored."""

import pytest

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.formats.dense import DensePlan
from comera_dist.models.dlrm.plan import DLRMFacts
from comera_dist.models.family import known_facts, plan_model

ROWS = (50, 3, 1000)
BASE = [
    "model.kind=dlrm",
    "model.embedding_dim=8",
    "model.bottom=[12,10]",
    "model.top=[9]",
    "train.steps=1",
    "train.batch_size=4",
]


def plan(*overrides, dense_features=5, rows=ROWS):
    return plan_model(read_config(None, [*BASE, *overrides]), DLRMFacts(dense_features, rows))


def sizes(layers):
    return {name: (layer.inputs, layer.outputs) for name, layer in layers.items()}


def is_tensor(layers, index):
    return not isinstance(layers[f"tables.{index}"], DensePlan)


def test_each_layer_reads_what_the_one_before_it_gives():
    pairs = 4 * 3 // 2
    assert sizes(plan()) == {
        "tables.0": (50, 8),
        "tables.1": (3, 8),
        "tables.2": (1000, 8),
        "bottom.0": (5, 12),
        "bottom.1": (12, 10),
        "bottom.2": (10, 8),
        "top.0": (8 + pairs, 9),
        "top.1": (9, 1),
    }


def test_without_numbers_there_is_no_bottom_mlp():
    layers = sizes(plan(dense_features=0))
    assert not any(name.startswith("bottom") for name in layers)
    assert layers["top.0"] == (3 * 2 // 2, 9)


@pytest.mark.parametrize(("dense_features", "rows"), [(0, (50,)), (5, ())])
def test_a_single_vector_has_nothing_to_interact_with(dense_features, rows):
    found = f"the data have {len(rows)} categories and {dense_features} numbers; prepare them with another category"
    with pytest.raises(ConfigError, match=found):
        plan(dense_features=dense_features, rows=rows)
    assert sizes(plan(dense_features=3, rows=(50,)))["top.0"] == (8 + 1, 9)


def test_tables_of_few_rows_stay_dense():
    assert [is_tensor(plan("tensor.embedding_min_rows=50"), index) for index in range(3)] == [True, False, True]
    assert [is_tensor(plan("tensor.embedding_min_rows=51"), index) for index in range(3)] == [False, False, True]
    dense = plan("model.format.embedding=dense")
    assert not any(is_tensor(dense, index) for index in range(3))


def test_a_table_that_its_train_would_not_make_smaller_is_stored_whole():
    layers = plan("tensor.embedding_rank=64")
    assert layers["tables.1"].ranks == (1, 1)
    assert layers["tables.1"].parameters == 3 * 8


def test_rules_say_how_single_tables_are_stored():
    rules = (
        "[{match: tables.1, format: tensor}, {match: tables.2, rank: 2, vocab_modes: [40, 25], width_modes: [2, 4]}]"
    )
    layers = plan("tensor.embedding_min_rows=51", f"tensor.embeddings={rules}")
    assert [is_tensor(layers, index) for index in range(3)] == [False, True, True]
    assert (layers["tables.2"].in_modes, layers["tables.2"].ranks) == ((40, 25), (1, 2, 1))
    assert not is_tensor(plan("tensor.embeddings=[{match: tables.2, format: dense}]"), 2)


def test_an_order_of_its_own_for_a_table():
    small = ["tensor.embedding_order=3", "tensor.embedding_rank=4"]
    layers = plan("tensor.embeddings=[{match: tables.2, order: 2}]", *small)
    assert len(layers["tables.2"].in_modes) == 2
    assert len(plan(*small)["tables.2"].in_modes) == 3


def test_mlps_are_dense_unless_asked_for():
    assert isinstance(plan()["top.0"], DensePlan)
    assert plan("model.format.mlp=tensor", "tensor.rank=2")["bottom.1"].middle_rank == 2


def test_a_rule_without_a_table_is_an_error():
    with pytest.raises(
        ConfigError, match=r"tensor.embeddings: the pattern 'table\.\*' matches no embedding; .*tables.0"
    ):
        plan("tensor.embeddings=[{match: 'table.*', rank: 2}]")


def test_a_configuration_that_knows_its_data_needs_none():
    named = read_config(None, [*BASE, f"model.table_rows={list(ROWS)}", "model.dense_features=5"])
    assert plan_model(named, known_facts(named)) == plan()
    assert known_facts(read_config(None, BASE)) is None
