"""Functions and the first paragraphs of their docstrings: which become pairs, and with which code."""

import ast
import importlib.util
import re
import sys
import sysconfig
import types
from pathlib import Path

import pytest

from comera_dist.errors import DataError
from data_prep.files.skips import Skips
from data_prep.pairs.docstrings import code_paths, read_functions
from data_prep.pairs.sources import SKIPPED, Keys, Pairs

SOURCE = '''
import os


@decorated(1)
def first(a, b):
    r"""Adds   a
    to b.

    The second paragraph.
    """
    # why
    c = a + b
    return c

if os.name:
    class Outer:
        """Three words here."""

        class Inner:
            async def method(self, ж="é"): "Waits for é."; await ж; \\
                return """
    text"""

            def __len__(self):
                """Special names are out."""
                x = 1
                return x

        def both(self):
            """Sums up everything: é."""  # noqa
            def inner():
                """Inner functions are out."""
                x = 1
                return x
            return inner

def test_me():
    """Tests are left out."""
    x = 1
    return x

def two_words():
    """Two words."""
    x = 1
    return x

def short():
    """Only two lines here."""
    return 1

def nothing():
    """Nothing but a docstring here.

    :return: nothing

    """

def plain(x):
    y = x
    return y
'''
EXPECTED = [
    (6, "Adds a to b.", "def first(a, b):\n    # why\n    c = a + b\n    return c"),
    (21, "Waits for é.", 'async def method(self, ж="é"): await ж; \\\n    return """\n    text"""'),
    (
        30,
        "Sums up everything: é.",
        'def both(self):\n    # noqa\n    def inner():\n        """Inner functions are out."""\n'
        "        x = 1\n        return x\n    return inner",
    ),
]


def read(path):
    skips = Skips(False, SKIPPED)
    return list(read_functions(path, skips)), skips.counts


def test_functions_of_a_module(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found, counts = read(path)
    assert [where for where, _, _ in found] == [f"{path}:{line}" for line, _, _ in EXPECTED]
    assert [docstring for _, docstring, _ in found] == [docstring for _, docstring, _ in EXPECTED]
    assert [code for _, _, code in found] == [code for _, _, code in EXPECTED]
    assert not any(counts.values())


def test_code_is_the_function_without_its_docstring():
    """Parsed code of the standard library is the parsed function; lines inside of strings may lose their indent."""
    compared = 0
    for path in code_paths("email,argparse,statistics,logging", ()):
        functions = {node.lineno: node for node in ast.walk(parsed(path)) if hasattr(node, "decorator_list")}
        for where, docstring, code in read(path)[0]:
            node = functions[int(where.rsplit(":", 1)[1])]
            assert " ".join(ast.get_docstring(node).split()).startswith(docstring)
            node.body, node.decorator_list = node.body[1:], []
            assert shape(ast.parse(code)) == shape(ast.Module([node], []))
            compared += 1
    assert compared > 100


def parsed(path):
    return ast.parse(importlib.util.decode_source(path.read_bytes()))


def shape(tree):
    return re.sub(r"\\n\s*|\s+", " ", ast.dump(tree))


@pytest.mark.parametrize("content", [b"def f(:\n", b"x = '\xff'\n", b"\0", b"# coding: nonsense\n", b"(" * 10_000])
def test_what_is_not_python_is_counted(tmp_path, content):
    (tmp_path / "broken.py").write_bytes(content)
    found, counts = read(tmp_path / "broken.py")
    assert found == []
    assert counts["broken_file"] == sum(counts.values()) == 1


def test_a_link_of_a_package_that_leads_nowhere_is_counted(tmp_path, monkeypatch):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/__init__.py").touch()
    (tmp_path / "linked/nowhere.py").symlink_to(tmp_path / "nothing")
    monkeypatch.syspath_prepend(tmp_path)
    skips = Skips(False, SKIPPED)
    assert list(Pairs(["docstrings:linked"], Keys(("a",), ("b",))).read(skips)) == []
    assert skips.counts["broken_file"] == 1


def test_packages_by_name():
    packages = code_paths("json,argparse", ())
    assert {path.name for path in packages} >= {"decoder.py", "encoder.py", "argparse.py"}
    assert all(path.parent.name in ("json", Path(sysconfig.get_path("stdlib")).name) for path in packages)
    assert code_paths("json,argparse", ("json",)) == packages[:1]


def test_installed_packages_are_those_of_this_environment_but_the_excluded(tmp_path, monkeypatch):
    for name in ("a/__init__.py", "a/tests/test_a.py", "b/deep/b.py", "a-1.dist-info/x.py", "single.py", "c/data.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(sysconfig, "get_path", lambda kind: str(tmp_path))
    names = [str(path.relative_to(tmp_path)) for path in code_paths("installed", ())]
    assert names == ["a/__init__.py", "b/deep/b.py", "single.py"]
    assert code_paths("installed", ("b", "single")) == (tmp_path / "a/__init__.py",)
    with pytest.raises(DataError, match="no package 'bb' is installed"):
        code_paths("installed", ("bb",))


@pytest.mark.parametrize("name", ["no_such_package_here", "sys", "", "email.mime", "../x"])
def test_a_package_without_source_is_refused(name):
    with pytest.raises(DataError, match="install it, or name another"):
        code_paths(name, ())


def test_a_module_without_a_file_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with pytest.raises(DataError, match="no package '__main__' of Python source"):
        code_paths("__main__", ())


def test_the_standard_library_is_that_of_this_interpreter():
    paths = code_paths("python-stdlib", ())
    assert Path(ast.__file__) in paths
    assert not [path for path in paths if "site-packages" in path.parts]
