"""Secrets are found in text and command lines, and a configuration that holds one is refused without repeating it."""

import pytest

from comera_dist.config.reader import read_config
from comera_dist.config.secrets import holds_secret, redacted, redacted_command, secret_values
from comera_dist.errors import ConfigError

VARIABLES = {
    "WANDB_API_KEY": "0123456789abcdef",
    "HF_TOKEN": "hf_abcdefgh",
    "HF_TOKEN_OLD_PASSWORD": "hf_abcdefghijkl",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7",
    "PGPASSWORD": "p g's password",
    "SHORT_TOKEN": "yes",
    "TOKENIZERS_PARALLELISM": "false-false",
    "HOME": "/home/somebody",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key 0123456789abcdef.", "key ***."),
        ("a hf_abcdefghijkl, b hf_abcdefgh", "a ***, b ***"),
        ("/x/wJalrXUtnFEMI/K7/y", "/x/***/y"),
        ("it says p g's password", "it says ***"),
        ("https://me:pass@host/x?a=b@c", "https://***@host/x?a=b@c"),
        ("s3:/me:pass@host/x", "s3:/***@host/x"),  # a path has lost a slash
        ("http://:pass@host", "http://***@host"),
        ("yes false-false /home/somebody", "yes false-false /home/somebody"),
        ("http://host:80/a@b and me@host", "http://host:80/a@b and me@host"),
    ],
)
def test_secrets_are_hidden_and_other_text_stays(text, expected):
    assert redacted(text, secret_values(VARIABLES)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--hf-token", "x y", "--tokens", "40"], ["--hf-token", "***", "--tokens", "40"]),
        (["--password=x", "api_key=y", "train.tokens=9"], ["--password=***", "api_key=***", "train.tokens=9"]),
        (["-c", "f('https://a:b@c')"], ["-c", "f('https://***@c')"]),
        (["--wandb.api-key", "x", "--json"], ["--wandb.api-key", "***", "--json"]),
        (["--prompt", "token", "next"], ["--prompt", "token", "next"]),
    ],
)
def test_values_of_secret_options_are_hidden(words, expected):
    assert redacted_command(words, VARIABLES) == expected
    assert holds_secret(words) == (words != expected)


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("wandb.entity=0123456789abcdef", "wandb.entity"),
        ("run.directory=s3://me:pass1234@bucket/runs", "run.directory"),
        ("ranks.layers=[a, x-0123456789abcdef-y]", "ranks.layers.1"),
        ("wandb={project: https://me:pass1234@host}", "wandb.project"),
    ],
)
def test_a_configuration_with_a_secret_is_refused_without_repeating_it(monkeypatch, tmp_path, override, place):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    with pytest.raises(ConfigError) as caught:
        read_config(None, ["train.steps=1", override])
    said = str(caught.value)
    assert f"{place} = " in said
    assert "the files of the run would show it; remove it" in said
    assert "***" in said
    assert not any(secret in said for secret in ("0123456789abcdef", "pass1234"))


def test_no_sentence_about_another_mistake_repeats_a_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    with pytest.raises(ConfigError) as caught:
        read_config(
            None, ["hf_abcdefgh", "train.steps=hf_abcdefgh", "optim.kind=[hf_abcdefgh", "wandb.mode=hf_abcdefgh"]
        )
    assert str(caught.value).count("***") >= 4
    assert "hf_abcdefgh" not in str(caught.value)
