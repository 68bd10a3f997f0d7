"""What none of the formats of a configuration can do is refused when it is read, and nothing else is."""

import pytest
from added_optimizer import added
from diagonal_format import DiagonalFormat
from support import FACTS, TINY, VOCAB, WORKLOADS

from comera_dist.config.reader import read_config
from comera_dist.config.registry import FORMATS
from comera_dist.errors import ConfigError
from comera_dist.formats.base import MatrixPlan, Resizable
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.named import may_store
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.models.family import kind_of, plan_model

KINDS = {"decoder": TINY, **WORKLOADS}
ADAPTS = ["ranks.adapt=true", "ranks.sync_every=1"]
NO_TABLES = "is not possible: this format stores no tables; set it to another"
NO_RANKS = "ranks.adapt = true and no layer has ranks that can change; set model.format=tensor or ranks.adapt=false"
NO_MATRICES = "updates the dense matrices of transformer blocks and the model has none; store some of them as dense "
ALWAYS_DENSE = ("position_embeddings", "token_type_embeddings", "classifier")  # matrices of an encoder
TIED = "model.tie_embeddings=true"


@pytest.fixture
def diagonal():
    """A format without any capability."""
    FORMATS.add("diagonal", DiagonalFormat())
    yield
    FORMATS.remove("diagonal")


def problems(kind, *overrides):
    with pytest.raises(ConfigError) as caught:
        read_config(None, [*KINDS[kind], *overrides])
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["model.format.embedding=bottleneck"], f"model.format.embedding = bottleneck {NO_TABLES}"),
        (["model.format.embedding=diagonal"], f"model.format.embedding = diagonal {NO_TABLES}"),
        (
            ["tensor.embeddings=[{match: a, rank: 2}, {match: '*', format: bottleneck}]"],
            f"tensor.embeddings.1.format = bottleneck {NO_TABLES}",
        ),
        # The head of a tied model is a table.
        (
            [TIED, "model.format.embedding=bottleneck", "model.format.head=bottleneck"],
            f"model.format.embedding = bottleneck {NO_TABLES}",
        ),
        (["model.format=dense", *ADAPTS], NO_RANKS),
        (["model.format=diagonal", "model.format.embedding=dense", *ADAPTS], NO_RANKS),
        (["optim.kind=muon"], f"optim.kind = muon {NO_MATRICES}"),
        (["optim.kind=galore", "model.format=dense", "model.format.rest=tensor"], f"optim.kind = galore {NO_MATRICES}"),
        (["optim.kind=muon", "model.format.head=dense", "model.format.embedding=dense"], "optim.kind = muon"),
        (["optim.kind=heavy_ball", "model.format=dense"], "optim.kind = heavy_ball updates cores and the model has"),
    ],
    ids=str,
)
def test_a_missing_capability_is_one_sentence(diagonal, overrides, sentence):
    with added():
        (found,) = problems("decoder", *overrides)
    assert found.startswith(sentence)
    assert not found.endswith(".")


def test_all_missing_capabilities_are_said_at_once():
    formats = ["model.format=dense", "model.format.embedding=bottleneck"]
    table, ranks = problems("decoder", *formats, *ADAPTS)
    assert table == f"model.format.embedding = bottleneck {NO_TABLES}"
    assert ranks == NO_RANKS


@pytest.mark.parametrize("kind", WORKLOADS)
def test_other_kinds_refuse_alike(kind):
    assert problems(kind, "model.format=dense", *ADAPTS) == [NO_RANKS]
    assert problems(kind, "model.format.embedding=bottleneck") == [f"model.format.embedding = bottleneck {NO_TABLES}"]


def test_a_kind_without_blocks_has_no_matrices_of_blocks():
    for overrides in (["model.format=dense"], ["tensor.layers=[{match: '*', format: dense}]"]):
        (found,) = problems("dlrm", "optim.kind=muon", *overrides)
        assert found.startswith(f"optim.kind = muon {NO_MATRICES}")


@pytest.mark.parametrize("key", ["attention", "mlp", "embedding", "head"])
@pytest.mark.parametrize("format", ["tensor", "low_rank", "block_train", "bottleneck"])
def test_one_layer_with_ranks_is_enough(key, format):
    overrides = ["model.format=dense", f"model.format.{key}={format}", *ADAPTS]
    if (key, format) == ("embedding", "bottleneck"):
        assert NO_RANKS in problems("decoder", *overrides)
        return
    config = read_config(None, [*TINY, *overrides])
    assert any(isinstance(layer, Resizable) for layer in plan_decoder(config, VOCAB).values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["dense", "tensor", "low_rank", "block_train"])
@pytest.mark.parametrize("plan", [DensePlan, Resizable, MatrixPlan])
def test_what_the_formats_may_store_is_what_the_plan_stores(kind, format, plan):
    """Without rules and small tables the types of the formats say exactly what a plan holds."""
    config = read_config(None, [*KINDS[kind], f"model.format={format}", "tensor.embedding_min_rows=0"])
    planned = {name: layer for name, layer in plan_model(config, FACTS).items() if not name.endswith(ALWAYS_DENSE)}
    assert may_store(config, plan) == any(isinstance(layer, plan) for layer in planned.values())
    blocks = [layer for name, layer in planned.items() if IN_BLOCK.search(name)]
    assert may_store(config, plan, kind_of(config.model).block_keys) == any(isinstance(one, plan) for one in blocks)


def test_a_rule_may_match_any_layer():
    for rule in ("tensor.layers=[{match: '*', format: tensor}]", "tensor.embeddings=[{match: '*', format: low_rank}]"):
        read_config(None, [*TINY, "model.format=dense", rule, *ADAPTS])
    read_config(None, [*TINY, "optim.kind=muon", "tensor.layers=[{match: '*.q_proj', format: dense}]"])
