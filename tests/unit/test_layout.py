"""Who may import whom."""

import ast

import pytest
from support import ROOT

PACKAGE = ROOT / "comera_dist"
DEEPSPEED_ROOMS = {"runtime/deepspeed_engine.py", "runtime/zero_state.py"}
PURE = {*(f"config/{path.name}" for path in PACKAGE.glob("config/*.py")), "costs/estimate.py", "run/schedule.py"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


FILES = sorted(PACKAGE.rglob("*.py"))


# From the ground up: a room imports its own files and those of rooms before it.
ROOMS = [
    *("errors", "config", "ops", "formats", "data", "models", "optim", "runtime"),
    *("storage", "checkpoints", "ranks", "costs", "report", "run", "generate", "commands"),
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_stay_in_their_rooms(path):
    place = str(path.relative_to(PACKAGE))
    room = place.partition("/")[0].removesuffix(".py")
    for name in imports(path):
        top, _, rest = name.partition(".")
        assert top not in ("launch", "data_prep"), f"{place} imports the application {name}"
        assert top != "deepspeed" or place in DEEPSPEED_ROOMS
        assert top != "wandb" or place == "report/wandb_log.py"
        assert top != "torch" or place not in PURE
        if top == "comera_dist" and room != "__init__":
            assert ROOMS.index(rest.partition(".")[0]) <= ROOMS.index(room), f"{place} imports {name}, a room above it"


def test_every_room_has_its_place():
    found = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if "__" not in path.name}
    assert found == {*ROOMS, "py.typed"}
