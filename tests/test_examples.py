"""The examples run, and the public names keep their promises."""

import json
import runpy
import subprocess
import sys

import pytest
from support import ROOT, environment, tiny_run

import comera_dist

EXAMPLES = ROOT / "examples"


def test_the_script_trains_and_reaches_its_target(capsys):
    runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "parameters instead of 76,292" in said
    assert "Target reached" in said


def test_a_module_of_ones_own_trains_on_a_corpus_and_is_loaded_again(tiny_corpus, tmp_path):
    overrides = tiny_run(tiny_corpus, tmp_path, "recurrent", "train.steps=2")
    (tmp_path / "empty.yaml").touch()
    command = [sys.executable, str(EXAMPLES / "own_module.py"), "--config", str(tmp_path / "empty.yaml"), *overrides]
    done = subprocess.run(command, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Recurrent of step 2 is loaded again." in done.stdout


def test_the_cells_of_the_notebook_run_in_order(capsys):
    cells = json.loads((EXAMPLES / "own_model.ipynb").read_text())["cells"]
    namespace = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), namespace)
    assert "Target reached" in capsys.readouterr().out
    assert type(namespace["model"].hidden).__name__ == "DenseLinear"


def test_public_names_import_no_deepspeed_and_open_no_process_group():
    code = (
        "import sys, comera_dist; assert 'torch' not in sys.modules;"
        "[getattr(comera_dist, name) for name in dir(comera_dist)];"
        "import torch; print('deepspeed' in sys.modules, torch.distributed.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_costs_of_a_run_are_known_from_its_configuration():
    config = comera_dist.read_config(ROOT / "configs/quickstart.yaml")
    figures = comera_dist.estimate(config, num_processes=2, vocab_size=4096)
    assert figures.dense_params > 3 * figures.params
    assert figures.gradient_bytes_per_step == 4 * figures.params


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'tensorise'; it has LinearFormat"):
        comera_dist.tensorise  # noqa: B018
