"""Docstrings and the functions that they describe, out of Python source.

Pairs are chosen as in CodeSearchNet (Husain et al. 2019, arXiv 1909.09436, section 2.1): the first paragraph of a
docstring of at least three words, and code of at least three lines without the docstring; no tests, and no methods
with names like __init__. Unlike there, copies of a function stay. The code is the source as written, with comments.
"""

import ast
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from comera_dist.errors import DataError
from data_prep.files.finding import module_paths, stdlib_paths
from data_prep.files.skips import Skips

_LEAST_WORDS, _LEAST_LINES = 3, 3
_PARAGRAPH_END = re.compile(r"\n\s*\n")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def code_paths(names: str, excluded: Sequence[str]) -> tuple[Path, ...]:
    """Python files of `installed`, of `python-stdlib`, or of packages named with commas, without `excluded` packages.

    Exclusion does not concern `python-stdlib`. Raises DataError if a package does not exist.
    """
    if names == "python-stdlib":
        return stdlib_paths()
    found = _installed() if names == "installed" else {name: _package(name) for name in names.split(",")}
    if names == "installed" and (unknown := sorted(set(excluded) - found.keys())):
        raise DataError(f"no package {unknown[0]!r} is installed that could be left out; check its name")
    return tuple(path for name, root in sorted(found.items()) if name not in excluded for path in _modules(root))


def left_out(names: str, excluded: Sequence[str]) -> set[str]:
    """The packages of `excluded` that `code_paths` leaves out of `names`."""
    if names == "python-stdlib":
        return set()
    return set(excluded) if names == "installed" else set(excluded) & set(names.split(","))


def read_functions(path: Path, skips: Skips) -> Iterator[tuple[str, str, str]]:
    """(where, docstring, code) of each function of a file that makes a pair, in order."""
    try:
        text = importlib.util.decode_source(path.read_bytes())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in other people's code
            tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        skips.add("broken_file", str(path), f"not Python: {str(error) or type(error).__name__}")
        return
    lines = text.split("\n")  # as the parser counts lines; splitlines would also split at form feeds
    for node in _functions(tree):
        docstring, code = _first_paragraph(node), _without_docstring(node, lines)
        if _makes_a_pair(node.name, docstring, code):
            yield f"{path}:{node.lineno}", docstring, code


def _functions(tree: ast.Module) -> list[Function]:
    """Functions and methods with a docstring and more than that, without those inside of other functions."""
    found, open_nodes = list[Function](), list[ast.AST]([tree])
    while open_nodes:
        for child in ast.iter_child_nodes(open_nodes.pop()):
            if isinstance(child, Function):
                found.append(child)
            elif isinstance(child, ast.stmt | ast.excepthandler):
                open_nodes.append(child)
    documented = (node for node in found if len(node.body) > 1 and ast.get_docstring(node, clean=False))
    return sorted(documented, key=lambda node: node.lineno)


def _first_paragraph(node: Function) -> str:
    return " ".join(_PARAGRAPH_END.split((ast.get_docstring(node) or "").strip(), maxsplit=1)[0].split())


def _without_docstring(node: Function, lines: list[str]) -> str:
    docstring = node.body[0]
    assert docstring.end_lineno is not None, "nodes of parsed text have an end"
    # The parser counts columns in bytes of UTF-8.
    before = lines[docstring.lineno - 1].encode()[: docstring.col_offset].decode()
    after = lines[docstring.end_lineno - 1].encode()[docstring.end_col_offset :].decode().lstrip("; \t")
    place = [before + after] if (before + after).strip() else []
    kept = lines[node.lineno - 1 : docstring.lineno - 1] + place + lines[docstring.end_lineno : node.end_lineno]
    indent = lines[node.lineno - 1][: node.col_offset]
    return "\n".join(line.removeprefix(indent) for line in kept).rstrip()


def _makes_a_pair(name: str, docstring: str, code: str) -> bool:
    special = "test" in name.lower() or (name.startswith("__") and name.endswith("__"))
    enough_lines = sum(bool(line.strip()) for line in code.split("\n")) >= _LEAST_LINES
    return not special and enough_lines and len(docstring.split()) >= _LEAST_WORDS


def _installed() -> dict[str, Path]:
    folders = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    entries = (entry for folder in folders for entry in folder.iterdir())
    return {entry.stem: entry for entry in entries if entry.suffix == ".py" or (entry.is_dir() and not entry.suffix)}


def _package(name: str) -> Path:
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:  # of modules without a file, such as __main__
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise DataError(f"there is no package {name!r} of Python source to read; install it, or name another")
    return Path(spec.submodule_search_locations[0] if spec.submodule_search_locations else spec.origin)


def _modules(root: Path) -> tuple[Path, ...]:
    return (root,) if root.is_file() else module_paths(root)
