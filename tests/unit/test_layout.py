"""Who may import whom."""

import ast

import pytest
from support import ROOT

PACKAGE = ROOT / "comera_dist"
DEEPSPEED_ROOMS = {"runtime/engine.py", "runtime/zero_state.py"}
PURE = {*(path.name for path in PACKAGE.glob("config*.py")), "yaml_tree.py", "estimate.py", "schedule.py"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_stay_in_their_rooms(path):
    room = str(path.relative_to(PACKAGE))
    for name in imports(path):
        top = name.split(".")[0]
        assert top not in ("launch", "data_prep"), f"{room} imports the application {name}"
        assert top != "deepspeed" or room in DEEPSPEED_ROOMS
        assert top != "wandb" or room == "metrics.py"
        assert top != "torch" or room not in PURE
        if room.startswith("tensor/"):
            assert not name.startswith("comera_dist") or name.startswith(("comera_dist.tensor", "comera_dist.errors"))
            assert "distributed" not in name
        if room.startswith("ranks/"):
            assert name not in ("comera_dist.session", "comera_dist.train", "comera_dist.metrics")
        if room.startswith("models/"):
            assert not name.startswith("comera_dist.") or name.split(".")[1] in (
                "models",
                "tensor",
                "config",
                "config_fields",
                "errors",
            )
