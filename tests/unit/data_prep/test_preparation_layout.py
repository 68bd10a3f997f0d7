"""Who may import whom in data_prep: packages stand on files, all but clicks also on text, scoring not on text.

Nothing imports a command.
"""

import ast

import pytest
from support import ROOT

PACKAGE = ROOT / "data_prep"
PACKAGES = {
    "files": {"files"},
    "text": {"files", "text"},
    "pairs": {"files", "text", "pairs"},
    "answers": {"files", "text", "answers"},
    "clicks": {"files", "clicks"},
    "report": {"files", "text", "report"},
    "scoring": {"files", "pairs", "clicks", "scoring"},
}
FILES = sorted(path for package in PACKAGES for path in (PACKAGE / package).glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_stay_in_their_packages(path):
    package = path.parent.name
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.startswith("data_prep."):
                found = name.split(".")[1]
                assert found in PACKAGES[package] or (found == "command" and path.name == "arguments.py"), (
                    f"{path}: {name}"
                )


def test_every_command_has_an_entry_without_arguments():
    commands = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "command"}
    assert commands == {
        *("train_tokenizer", "tokenize_corpus", "prepare_pairs", "prepare_answers", "prepare_clicks"),
        *("verify", "report_corpus"),
    }
    for name in commands:
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        (main,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
        assert not main.args.args, name
