"""Keys, tokens and passwords of the environment and the command line are in no file and no line of a run."""

import subprocess
import sys

import pytest
from support import ROOT, environment, tiny_run

pytestmark = pytest.mark.distributed
IN_ENVIRONMENT = {
    "WANDB_API_KEY": "1a2b3c4d5e6f7a8b9c0d1a2b3c4d5e6f7a8b9c0d",
    "HF_TOKEN": "hf_QwErTyUiOpAsDfGhJkLzXcVbNm",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY12",
    "HTTPS_PROXY": "http://somebody:proxypass77@127.0.0.1:9",
    "MASTER_PASSWORD": "correcthorsebattery",
}
IN_COMMAND = ["--hf-token", "ofthecommand8899", "--db=postgres://me:ofthedatabase55@host/x", "--api_key=ofthekey4411"]
SECRETS = [*IN_ENVIRONMENT.values(), "proxypass77", "ofthecommand8899", "ofthedatabase55", "ofthekey4411"]
# A program of a user that takes its own options and trains.
PROGRAM = """
import sys
import comera_dist
from comera_dist.config.reader import read_config

sys.exit(comera_dist.train(read_config(None, sys.argv[1].split())))
"""


def test_no_file_and_no_line_of_a_run_holds_a_secret(tiny_corpus, tmp_path):
    program, runs = tmp_path / "program.py", tmp_path / "runs"
    program.write_text(PROGRAM)
    overrides = tiny_run(tiny_corpus, runs, "s", "train.steps=2", "checkpoint.every=1", "wandb.mode=offline")
    done = subprocess.run(
        [sys.executable, str(program), " ".join(overrides), *IN_COMMAND],
        env=environment(PYTHONPATH=str(ROOT), **IN_ENVIRONMENT),
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr.decode()
    files = {str(path.relative_to(runs)): path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    files |= {"stdout": done.stdout, "stderr": done.stderr}
    assert {"s/config.yaml", "s/run.json", "s/checkpoints/step_0000002/manifest.json"} <= files.keys()
    assert any(name.endswith(".wandb") for name in files)
    found = [(name, secret) for name, content in files.items() for secret in SECRETS if secret.encode() in content]
    assert found == []
    assert b"--hf-token '***'" in files["s/run.json"]


def test_a_configuration_with_a_secret_starts_no_run(tiny_corpus, tmp_path):
    overrides = tiny_run(tiny_corpus, tmp_path / "runs", "s", f"wandb.entity={IN_ENVIRONMENT['HF_TOKEN']}")
    command = [sys.executable, str(ROOT / "launch/pretrain.py"), "--config", str(ROOT / "tests/defaults.yaml")]
    shown = environment(PYTHONPATH=str(ROOT), **IN_ENVIRONMENT)
    done = subprocess.run([*command, *overrides], env=shown, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "wandb.entity = '***' holds a password or the value of an environment variable" in done.stderr
    assert not any(secret in done.stdout + done.stderr for secret in SECRETS)
    assert not (tmp_path / "runs").exists()
