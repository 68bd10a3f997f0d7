"""YAML of a person: one meaning, a reasonable size, nothing shared."""

import pytest

from comera_dist.config.reader import read_config
from comera_dist.config.yaml_tree import MOST_CHARACTERS, NotATree, read_tree
from comera_dist.errors import ConfigError

BOMB = "\n".join(["a0: &a0 [1, 1]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "it sets a twice, at lines 1 and 3; remove one of them"),
        ("a: {b: 1, c: 2, b: 3}", "it sets b twice, at lines 1 and 1; remove one of them"),
        ("a: &x {b: *x}", "at line 1 it is nested more than 32 deep, or an alias holds itself; write it flat"),
        ("a: &x [*x]", "or an alias holds itself"),
        ("a: &x {<<: *x}", "or an alias holds itself"),
        ("[" * 700, "it is nested more than 32 deep; write it flat"),
        ("{a: " * 40 + "}" * 40, "at line 1 it is nested more than 32 deep"),
        (BOMB, "it has more than 16,384 values, repeated ones included; write fewer of them"),
        ("a" * (MOST_CHARACTERS + 1), "it has more than 131,072 characters; keep data out of it"),
        ("a: " + "9" * 4301, "it holds a value that cannot be read (ValueError: Exceeds the limit"),
        (
            "a: !!timestamp 2020-13-45",
            "it holds a value that cannot be read (ValueError: month must be in 1..12); quote it",
        ),
        ("a: !!float x", "it holds a value that cannot be read (ValueError: could not convert string to float: 'x')"),
        ("a: [\n", "it is not valid YAML at line 2; mend its indentation or quoting"),
        ("\0", "it is not valid YAML; mend its indentation or quoting"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_is_no_tree_is_one_sentence(text, sentence, tmp_path):
    with pytest.raises(NotATree) as caught:
        read_tree(text)
    assert sentence in str(caught.value)
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml is not a configuration: "):
        read_config(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match=r"ranks = .* is not a value: "):
        read_config(None, ["train.steps=1", f"ranks={text}"])


def test_anchors_and_merges_are_read_and_not_shared():
    tree = read_tree("a: &a {b: [1], c: 2}\nd: *a\ne: {<<: *a, c: 3}\n")
    assert tree == {"a": {"b": [1], "c": 2}, "d": {"b": [1], "c": 2}, "e": {"b": [1], "c": 3}}
    tree["a"]["b"].append(4)
    assert tree["d"]["b"] == tree["e"]["b"] == [1]


def test_a_date_is_text_as_a_run_may_be_named_after_a_day():
    assert read_tree("name: 2026-11-23") == {"name": "2026-11-23"}
    assert read_config(None, ["train.steps=1", "run.name=2026-02-30"]).run.name == "2026-02-30"


@pytest.mark.parametrize(
    ("text", "seed"), [("010", 10), ("08", 8), ("+0_1_0", 10), ("0x10", 16), ("0", 0), ("1_0", 10)]
)
def test_a_leading_zero_makes_no_octal_number(text, seed):
    """The seeds 008 and 010 of an array of jobs were one."""
    assert read_config(None, ["train.steps=1", f"run.seed={text}"]).run.seed == seed
    assert read_config(None, ["train.steps=1", "run.name=010"]).run.name == "010"


@pytest.mark.parametrize("override", ["log.profile.steps=1:30", "train.timeout_seconds=1:30", "optim.lr=1:30.5"])
def test_a_colon_makes_no_number(override):
    with pytest.raises(ConfigError, match=rf"{override.partition('=')[0]} = '1:30.*' is not possible: "):
        read_config(None, ["train.steps=100", override])


def test_an_override_changes_no_other_place_that_an_alias_filled(tmp_path):
    (tmp_path / "run.yaml").write_text("train: {steps: 5}\neval: &often {every: 2}\ncheckpoint: *often\n")
    config = read_config(tmp_path / "run.yaml", ["eval.every=1"])
    assert (config.eval.every, config.checkpoint.every) == (1, 2)


def test_a_device_without_an_end_is_no_configuration():
    with pytest.raises(ConfigError, match="more than 131,072 characters"):
        read_config("/dev/zero")
