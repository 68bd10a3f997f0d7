"""The log files of a run on a disk that is full for a while."""

import json

from comera_dist.report.log_files import LogFiles
from comera_dist.report.records import StepLogged
from comera_dist.storage.run_directory import RunDirectory


def logged(step: int) -> StepLogged:
    return StepLogged({"step": step}, compression=1.0, seconds_left=0.0)


def test_a_full_disk_is_said_once_and_the_run_goes_on(tmp_path, capsys):
    log = LogFiles(RunDirectory(tmp_path))
    log(logged(1))
    (tmp_path / "metrics.jsonl").rename(tmp_path / "kept")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    for step in (2, 3):
        log(logged(step))
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "metrics.jsonl cannot be written (No space left on device); lines are missing in it from step 2 on" in said
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "kept").rename(tmp_path / "metrics.jsonl")
    log(logged(4))
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 4]
