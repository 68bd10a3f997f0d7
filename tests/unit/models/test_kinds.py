"""Reading a configuration imports no torch, and no file outside of a kind's folder names the kind."""

import re
import subprocess
import sys

import pytest
from support import ROOT, WORKLOADS, environment

from comera_dist.config.registry import DEFAULT_KIND, KINDS
from comera_dist.models.encoder.heads import HEADS
from comera_dist.models.encoder.section import EncoderConfig

PACKAGE = ROOT / "comera_dist"
FILES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "launch").glob("*.py")])


@pytest.mark.parametrize("kind", KINDS.names())
def test_a_kind_is_named_in_its_folder_and_where_it_is_registered_only(kind):
    found = {path for path in FILES if re.search(rf"[\"']{kind}[\"']", path.read_text())}
    assert found <= {PACKAGE / "config/registry.py", PACKAGE / f"models/{kind}/section.py"}


@pytest.mark.parametrize("kind", KINDS.names())
def test_a_kind_is_what_its_section_says(kind):
    assert KINDS[kind].section().kind == kind
    assert KINDS[kind].free_keys <= set(KINDS[kind].section.model_fields)


def test_the_default_kind_and_the_heads_exist():
    assert DEFAULT_KIND in KINDS.names()
    assert set(HEADS) == set(EncoderConfig.model_fields["head"].annotation.__args__)


def test_reading_a_configuration_of_any_kind_imports_no_torch():
    runs = [["train.steps=1"], *WORKLOADS.values()]
    code = f"import sys; from comera_dist.config.reader import read_config; [read_config(None, run) for run in {runs}]"
    code += "; sys.exit(any(name in sys.modules for name in ('torch', 'deepspeed')))"
    assert subprocess.run([sys.executable, "-c", code], env=environment(PYTHONPATH=str(ROOT))).returncode == 0
