"""Who may import whom."""

import ast

import pytest
from support import ROOT

PACKAGE = ROOT / "comera_dist"
DEEPSPEED_FILES = {"runtime/deepspeed_engine.py", "runtime/zero_state.py"}
PURE = {*(f"config/{path.name}" for path in PACKAGE.glob("config/*.py")), "costs/estimate.py", "run/schedule.py"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


FILES = sorted(PACKAGE.rglob("*.py"))


# From the ground up: a package imports its own files and those of packages before it.
PACKAGES = [
    *("errors", "config", "ops", "formats", "data", "models", "optim", "runtime", "storage", "checkpoints"),
    *("ranks", "costs", "design", "doctor", "report", "run", "generate", "judge", "compress", "exchange", "commands"),
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_stay_in_their_packages(path):
    place = str(path.relative_to(PACKAGE))
    package = place.partition("/")[0].removesuffix(".py")
    for name in imports(path):
        top, _, rest = name.partition(".")
        assert top not in ("launch", "data_prep"), f"{place} imports the application {name}"
        assert top != "deepspeed" or place in DEEPSPEED_FILES
        assert top != "wandb" or place == "report/wandb_log.py"
        assert "tensorboard" not in rest or top != "torch" or place == "report/tensorboard_log.py"
        assert top != "torch" or place not in PURE
        if top == "comera_dist" and package != "__init__":
            assert PACKAGES.index(rest.partition(".")[0]) <= PACKAGES.index(package), (
                f"{place} imports {name}, a package above it"
            )


def test_every_package_has_its_place():
    found = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if "__" not in path.name}
    assert found == {*PACKAGES, "py.typed"}
