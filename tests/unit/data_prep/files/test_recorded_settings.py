"""Settings that are recorded with prepared data hold no secret."""

import pytest

from comera_dist.errors import DataError
from data_prep.command import run
from data_prep.files.output_folder import OutputFolder
from data_prep.files.skips import Skips
from data_prep.prepare_clicks import prepare
from data_prep.text.tokenizer import save


@pytest.mark.parametrize("source", ["hub:https://me:pass1234@host/data", "files:/data/hf_abcdefgh/*.txt"])
def test_a_secret_in_the_settings_is_refused(tmp_path, monkeypatch, source):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    sentence = "the settings of .* hold a password or the value of an environment variable that is secret"
    with pytest.raises(DataError, match=sentence):
        OutputFolder(tmp_path / "data", {"source": source})
    with pytest.raises(DataError, match=sentence):
        save(b"model", tmp_path / "t.model", {"source": source}, Skips(False, ()))
    assert list(tmp_path.iterdir()) == []


def test_no_line_of_a_command_repeats_a_secret(monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefgh")
    source = ["--source", "csv:https://me:pass1234@host/hf_abcdefgh", "--label", "x", "--output", "unused"]
    assert run(lambda: prepare(source)) == 2
    with pytest.raises(SystemExit):
        run(lambda: prepare(["--output", "unused", "--hf-token", "anything99"]))
    said = capsys.readouterr().err
    assert said.count("***") >= 3, said
    assert not any(secret in said for secret in ("pass1234", "hf_abcdefgh", "anything99"))
