"""Files are found as glob finds them, but each folder once."""

import glob
from pathlib import Path

import pytest

from data_prep.files.finding import glob_paths


def test_links_that_lead_back_do_not_make_a_search_endless(tmp_path):
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    for place in ("", "deep", "deep/er", ".hidden"):
        (tmp_path / place / "x.txt").write_text(place)
    for name in ("loop", "deep/loop", "deep/er/loop"):
        (tmp_path / name).symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "nothing")
    (tmp_path / "self.txt").symlink_to(tmp_path / "self.txt")
    for pattern in ("**/*.txt", "**", "**/**/x.txt"):
        assert sorted(path.read_text() for path in glob_paths(f"{tmp_path}/{pattern}")) == ["", "deep", "deep/er"]
    assert [path.name for path in glob_paths(f"{tmp_path}/deep/**/er/*.txt")] == ["x.txt"]


@pytest.mark.parametrize(
    "pattern", ["**/*.txt", "a/**", "a/**/c/*", "**", "*/b/*.txt", "[ab]/**/*.txt", "./a/**/*.txt"]
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
