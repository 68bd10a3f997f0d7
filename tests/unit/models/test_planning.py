"""Counts of published configurations, from the plan alone."""

from functools import cache

import pytest
from support import ROOT, WORKLOADS

from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.costs.parts import stored_parts
from comera_dist.models.family import known_facts, plan_model


@cache
def figures(name: str):
    config = read_config(ROOT / f"configs/{name}.yaml")
    plan = plan_model(config, known_facts(config))
    return stored_parts(config, plan), estimate(config, plan, 1, config.step_tokens)


def test_six_encoder_is_the_published_model():
    parts, found = figures("mnli_six_encoder")
    assert parts == {
        "word_embeddings": 167_904,
        "position_embeddings": 393_216,
        "token_type_embeddings": 1_536,
        "blocks: matrices": 838_272,
        "blocks: gates": 4_152,
        "blocks: biases": 51_456 - 9_984,
        "pooler: matrices": 20_448,
        "pooler: gates": 114,
        "pooler: biases": 768,
        "classifier: matrices": 2_304,
        "classifier: biases": 3,
        "norms: weights": 9_984,
        "norms: biases": 9_984,
    }
    assert (found.params, found.dense_params) == (1_490_157, 66_957_315)
    assert found.compression == pytest.approx(44.9, abs=0.05)


def test_dlrm_of_criteo_is_99_times_smaller_than_its_published_tables():
    parts, found = figures("dlrm_criteo")
    assert found.dense_params == 33_762_577 * 32 + 327_424 + 769 + 156_160 + 864
    assert parts["tables"] == 10_412_822
    assert found.params == 10_898_039
    assert found.compression == pytest.approx(99, abs=0.5)


def test_codebert_aims_at_the_published_compression():
    config = read_config(ROOT / "configs/codebert.yaml")
    _, found = figures("codebert")
    assert (found.params, found.dense_params) == (95_723_616, 355_360_768)
    assert found.dense_params / config.ranks.target_params == pytest.approx(4.23, abs=0.005)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_facts_come_from_the_corpus_unless_the_configuration_knows_them(kind):
    assert known_facts(read_config(None, WORKLOADS[kind])) is None
    known = {
        "classifier": ["model.vocab_size=50", "model.classes=2"],
        "masked_lm": ["model.vocab_size=50"],
        "dlrm": ["model.table_rows=[5,6]", "model.dense_features=0"],
    }
    assert known_facts(read_config(None, [*WORKLOADS[kind], *known[kind]])) is not None
