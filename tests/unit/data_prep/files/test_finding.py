"""Files are found as glob finds them, but each folder once."""

import glob
import os
from pathlib import Path

import pytest

from comera_dist.errors import DataError
from data_prep.files.finding import glob_paths, module_paths


def test_links_that_lead_back_do_not_make_a_search_endless(tmp_path):
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    for place in ("", "deep", "deep/er", ".hidden"):
        (tmp_path / place / "x.txt").write_text(place)
    for name in ("loop", "deep/loop", "deep/er/loop"):
        (tmp_path / name).symlink_to(tmp_path, target_is_directory=True)
    for pattern in ("**/*.txt", "**", "**/**/x.txt"):
        assert sorted(path.read_text() for path in glob_paths(f"{tmp_path}/{pattern}")) == ["", "deep", "deep/er"]
    assert [path.name for path in glob_paths(f"{tmp_path}/deep/**/er/*.txt")] == ["x.txt"]


def test_links_that_lead_nowhere_are_found_and_folders_are_not(tmp_path):
    """Whoever opens such a link fails, and tells it."""
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    (tmp_path / "folder.txt").mkdir()
    links = (tmp_path / "nowhere.txt", tmp_path / "self.txt")
    for pattern in ("*.txt", "**", "**/*.txt", "[ns]*.txt"):
        assert glob_paths(f"{tmp_path}/{pattern}") == links
    assert glob_paths(str(links[0])) == links[:1]
    for pattern in ("nothing", "nothing/*", "nothing/**", "*/*", "nowhere.txt/x", "x" * 300, "*/x/**", "a\0*"):
        with pytest.raises(DataError, match=r"no file matches|not a pattern"):
            glob_paths(f"{tmp_path}/{pattern}")


def test_modules_are_those_of_the_package_and_links_that_lead_nowhere(tmp_path):
    for name in (
        "b.py",
        "a/.h/x.py",
        "a/test.py",
        "a/.#x.py",
        "a/tests/x.py",
        "test/x.py",
        "a/site-packages/x.py",
        "a/x.pyc",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "a/nowhere.py").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    names = [str(path.relative_to(tmp_path)) for path in module_paths(tmp_path)]
    assert names == ["a/.h/x.py", "a/nowhere.py", "a/test.py", "b.py"]


@pytest.fixture
def shut_folder(tmp_path, monkeypatch):
    """A folder with one that cannot be read. The functions are changed, because root may read every folder."""

    def unless_shut(function):
        def call(folder):
            if Path(folder).name == "shut":
                raise PermissionError(13, "Permission denied", str(folder))
            return function(folder)

        return call

    (tmp_path / "open").mkdir()
    (tmp_path / "open/x.txt").touch()
    (tmp_path / "shut").mkdir()
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, unless_shut(getattr(os, name)))
    return tmp_path


@pytest.mark.parametrize("pattern", ["*/*.txt", "**/*.txt", "**", "shut/*", "*/*/x.txt"])
def test_a_folder_that_cannot_be_read_is_not_passed_over(shut_folder, pattern):
    with pytest.raises(PermissionError, match="shut"):
        glob_paths(f"{shut_folder}/{pattern}")


def test_a_folder_of_modules_that_cannot_be_read_is_not_passed_over(shut_folder):
    with pytest.raises(PermissionError, match="shut"):
        module_paths(shut_folder)
    (shut_folder / "shut").rename(shut_folder / "site-packages")
    assert module_paths(shut_folder) == ()


@pytest.mark.parametrize(
    "pattern",
    [
        *("**/*.txt", "a/**", "a/**/c/*", "**", "*/b/*.txt", "[ab]/**/*.txt", "./a/**/*.txt"),
        *("*/.h/*", "*/**", ".*/*", "a [[]1]/*"),
    ],
)
def test_patterns_match_what_glob_matches(tmp_path, monkeypatch, pattern):
    for path in ("x.txt", "a/x.txt", "a/b/x.txt", "a/b/c/x.txt", "a/b/c/y.md", "a [1]/x.txt", ".h/x.txt", "a/.h/x.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    monkeypatch.chdir(tmp_path)
    expected = {Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file()}
    assert glob_paths(pattern) == tuple(sorted(expected))
    absolute = {tmp_path / path for path in expected}
    assert glob_paths(f"{tmp_path}/{pattern}") == tuple(sorted(absolute))
