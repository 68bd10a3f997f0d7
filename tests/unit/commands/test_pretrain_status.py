"""The exit status of a run that ends with a sentence."""

import pytest

from comera_dist.commands import pretrain
from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError, DiskError, MeetingError
from comera_dist.run import loop
from comera_dist.runtime import processes


@pytest.mark.parametrize(("error", "status"), [(ConfigError, 2), (DiskError, 75), (MeetingError, 75)])
def test_what_may_pass_is_to_be_tried_again(monkeypatch, capsys, error, status):
    def fail(*_):
        raise error("a sentence")

    monkeypatch.setattr(processes, "start_processes", lambda timeout: processes.alone())
    monkeypatch.setattr(loop, "run_or_resume", fail)
    config = read_config(None, ["train.steps=8", "ranks.adapt=false"])
    assert pretrain._pretrain(config, {}) == status
    assert capsys.readouterr().err == f"{error.__name__}: a sentence\n"
