"""Whatever a person writes is a configuration or a few sentences: no traceback, and no endless plan."""

import math
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import strategies as st
from inputs import fuzzed
from mutations import changed_bytes, changed_trees
from support import FACTS, ROOT, TINY

from comera_dist.config.fields import MOST, Section
from comera_dist.config.moved import MOVED
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import estimate
from comera_dist.errors import ConfigError
from comera_dist.models.family import plan_model

KINDS = {
    "decoder": [],
    "encoder": ["model={kind: encoder, d_model: 16, heads: 2, layers: 2}", "tensor.layers=[]"],
    "dlrm": ["model={kind: dlrm}", "train.batch_size=8", "train.batch_tokens=2048"],
}
SHIPPED = (ROOT / "configs/quickstart_ranks.yaml").read_text()


def places(section: type[Section], name: str = "") -> list[str]:
    """Every key below a section, with the keys of the sections in it."""
    found = []
    for key, field in section.model_fields.items():
        found.append(name + key)
        outer = [field.annotation, *get_args(field.annotation)]
        for kind in [*outer, *(inner for one in outer for inner in get_args(one))]:
            if isinstance(kind, type) and issubclass(kind, Section):
                found += places(kind, f"{name}{key}.")
    return found


ELSEWHERE = {"model.format.rest", "deepspeed.bf16", "deepspeed.zero_optimization.stage"}
PLACES = sorted({*places(Config), *ELSEWHERE, *MOVED, *MOVED.values(), "ranks.policy.kind", "ranks.policy.rest"})
KEYS = st.sampled_from(sorted({part for place in PLACES for part in place.split(".")}))
NUMBERS = [True, False, 0, 1, -1, 3, 12, 1000, MOST, MOST + 1, 10**12, 10**4000, -0.0, 0.5, 1e-300, 1e30]
SCALARS = st.sampled_from([*NUMBERS, float("nan"), float("inf"), "yes", "1e3", "dense", "*", None])
SCALARS |= st.text(max_size=5) | st.dates() | st.binary(max_size=3)
TREES = st.recursive(
    SCALARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS | SCALARS, part, max_size=4),
    max_leaves=8,
)
# What YAML makes something odd of, or nothing at all.
ODD = ["yes", "off", "1e3", "1e30", ".nan", "-.inf", "nan", "0x" + "f" * 5000, "9" * 5000, "2020-13-45", "1:59:59"]
ODD += ["!!float x", "!!int ''", "!!python/name:os.system", "!!binary =", "!!set {a, b}", "!!timestamp x", "!!bool x"]
ODD += ["&a [*a]", "&a {b: *a}", "&a {<<: *a}", "{1: 2}", "{[1]: 2}", "{a: 1, a: 2}", "[" * 400, "{a: " * 999, "<<: 1"]
ODD += ["[1, 1]", "\0", "\ud800", "1\n2", "'\\0'", '"\\0"', "--- 1\n--- 2", "*a", "{", "%", "@", "- - -"]
VALUES = st.sampled_from(ODD) | TREES.map(yaml.safe_dump) | st.text(max_size=9)


USUAL = st.integers(0, 64).map(str) | st.floats(0, 1).map(str) | st.sampled_from(["true", "false", "null", "dense"])


def read_and_plan(path: Path | None, overrides: list[str]) -> None:
    """Reads, plans and estimates. What is accepted is read back as it was written, and has sensible costs."""
    config = read_config(path, overrides)
    tree = config.model_dump(mode="json")
    assert Config.model_validate(yaml.safe_load(yaml.safe_dump(tree))).model_dump(mode="json") == tree
    plan = plan_model(config, FACTS)
    costs = estimate(config, plan, 2, config.micro_batch(2) * config.row_tokens)
    assert costs.params > 0
    assert 0 < costs.flops_per_token < math.inf


@fuzzed(
    "configuration: value of a key",
    390,
    place=st.sampled_from(PLACES),
    value=VALUES | USUAL,
    kind=st.sampled_from(sorted(KINDS)),
)
def test_any_value_of_any_key(place, value, kind):
    read_and_plan(None, [*TINY, *KINDS[kind], f"{place}={value}"])


OVERRIDES = st.builds(
    "{}{}{}".format, st.sampled_from(PLACES) | st.text(max_size=9), st.sampled_from("===.-"), VALUES | USUAL
)


@fuzzed("configuration: several overrides", 360, overrides=st.lists(OVERRIDES, max_size=5))
def test_any_overrides(overrides):
    read_and_plan(None, [*TINY, *overrides])


@fuzzed("configuration: mixture", 100, weights=st.lists(VALUES | USUAL, max_size=4))
def test_any_weights_of_a_mixture(weights):
    parts = [f"{{corpus: corpora/{number}, weight: {weight}}}" for number, weight in enumerate(weights)]
    read_and_plan(None, [*TINY, f"data.mixture=[{', '.join(parts)}]"])


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file that every input writes anew."""
    return tmp_path_factory.mktemp("configuration") / "run.yaml"


@fuzzed("configuration: tree", 300, tree=TREES | st.dictionaries(st.sampled_from(list(Config.model_fields)), TREES))
def test_any_tree(file, tree):
    file.write_text(yaml.safe_dump(tree))
    read_and_plan(file, TINY)


@fuzzed("configuration: changed tree of a run", 300, tree=changed_trees(yaml.safe_load(SHIPPED)))
def test_any_change_of_a_shipped_file(file, tree):
    file.write_bytes(yaml.safe_dump(tree, allow_unicode=True).encode(errors="surrogatepass"))
    read_and_plan(file, [])


@fuzzed(
    "configuration: slip in a file", 240, at=st.integers(0, len(SHIPPED)), removed=st.integers(0, 9), written=VALUES
)
def test_any_slip_in_a_file(file, at, removed, written):
    file.write_bytes(f"{SHIPPED[:at]}{written}{SHIPPED[at + removed :]}".encode(errors="surrogatepass"))
    read_and_plan(file, [])


@fuzzed("configuration: bytes of a file", 240, content=changed_bytes(SHIPPED.encode()))
def test_any_bytes_of_a_file(file, content):
    file.write_bytes(content)
    read_and_plan(file, [])


@pytest.mark.parametrize("value", ODD, ids=lambda text: ascii(text[:12]))
def test_odd_values_of_keys_of_every_kind(value):
    sections = ("model", "deepspeed", "train", "ranks.policy")
    for place in ("train.steps", "optim.lr", "run.name", "data.corpus", "ranks.layers", *sections):
        with suppress(ConfigError):
            read_and_plan(None, [*TINY, f"{place}={value}"])
