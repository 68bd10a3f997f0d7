"""Whatever a person writes is a configuration or a few sentences: no traceback, and no endless plan."""

from contextlib import suppress
from datetime import timedelta
from typing import get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
BOUNDED = settings(
    derandomize=True, max_examples=120, deadline=timedelta(seconds=30), suppress_health_check=list(HealthCheck)
)


def read_and_plan(path, overrides: list[str]) -> None:
    """Reads, and plans and estimates where that is possible; only ConfigError may come of it."""
    with suppress(ConfigError):
        config = read_config(path, overrides)
        yaml.safe_dump(config.model_dump(mode="json"))
        plan = plan_model(config, FACTS)
        estimate(config, plan, 2, config.micro_batch(2) * config.row_tokens)


@BOUNDED
@given(st.sampled_from(PLACES), VALUES, st.sampled_from(sorted(KINDS)))
def test_any_value_of_any_key(place, value, kind):
    read_and_plan(None, [*TINY, *KINDS[kind], f"{place}={value}"])


@BOUNDED
@given(
    st.lists(st.builds("{}{}{}".format, st.sampled_from(PLACES) | st.text(max_size=9), st.sampled_from("=.-"), VALUES))
)
def test_any_overrides(overrides):
    read_and_plan(None, [*TINY, *overrides])


@BOUNDED
@given(TREES | st.dictionaries(st.sampled_from(list(Config.model_fields)), TREES))
def test_any_tree(tmp_path_factory, tree):
    file = tmp_path_factory.getbasetemp() / "tree.yaml"
    file.write_text(yaml.safe_dump(tree))
    read_and_plan(file, TINY[-1:])


@BOUNDED
@given(st.integers(0, len(SHIPPED)), st.integers(0, 9), VALUES)
def test_any_slip_in_a_file(tmp_path_factory, at, removed, written):
    file = tmp_path_factory.getbasetemp() / "slip.yaml"
    file.write_bytes(f"{SHIPPED[:at]}{written}{SHIPPED[at + removed :]}".encode(errors="surrogatepass"))
    read_and_plan(file, [])


@pytest.mark.parametrize("value", ODD, ids=lambda text: ascii(text[:12]))
def test_odd_values_of_keys_of_every_kind(value):
    sections = ("model", "deepspeed", "train", "ranks.policy")
    for place in ("train.steps", "optim.lr", "run.name", "data.corpus", "ranks.layers", *sections):
        read_and_plan(None, [*TINY, f"{place}={value}"])
