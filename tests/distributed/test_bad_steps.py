"""A bad step leaves no trace in the weights, and the run stops, skips it, or goes on without its data."""

import json

import pytest
from forked import run_processes
from support import cut_back, metrics, saved_tensors, tiny_run
from test_static_step import Calls
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.run.loop import run_or_resume
from comera_dist.run.train import Parts
from comera_dist.runtime.processes import alone

pytestmark = pytest.mark.distributed
BATCH = 8  # sequences of a step
ENGINES = {
    **{f"zero{stage}": [f"train.zero_stage={stage}"] for stage in range(4)},
    **{f"static_zero{stage}": [f"train.zero_stage={stage}", "train.cuda_graphs=true"] for stage in (0, 2)},
    "spectral": ["train.zero_stage=2", "optim.kind=spectral"],
    "adapting": ["train.zero_stage=2", "ranks.adapt=true", "ranks.sync_every=4"],
    "accumulated": ["train.zero_stage=1", "train.micro_batch=1"],
    "bf16": ["train.zero_stage=1", "train.precision=bf16"],
}
# A spike needs an optimizer that makes no step; above stage 0 DeepSpeed itself refuses the others.
CASES = [(engine, "spike") for engine in ENGINES] + [
    (engine, kind) for engine in ("zero0", "zero3", "static_zero0") for kind in ("loss", "gradient")
]


@pytest.fixture(scope="module")
def skipped(tiny_corpus, tmp_path_factory):
    calls = Calls(tiny_corpus, tmp_path_factory.mktemp("skipped"))
    for name, kind in CASES:
        calls.add((name, kind), "skip_a_step", *ENGINES[name], kind=kind)
    return calls.run(2)


@pytest.mark.parametrize(("engine", "kind"), CASES)
def test_a_bad_step_on_one_process_is_as_if_it_had_not_been(skipped, engine, kind):
    with_it, without_it = skipped[engine, kind]
    assert with_it == without_it


def run(corpus, directory, name, *options):
    steps = ("train.steps=20", "checkpoint.every=5", "log.every=1", "eval.every=0", "train.zero_stage=1")
    return tiny_run(corpus, directory, name, *steps, *options)


def train(runs, steps, kind="loss", batch=BATCH):
    """What the runs say if a row of each of `steps`, numbered from 1, is bad wherever it is read."""
    rows = [batch * (step - 1) + batch // 2 for step in steps]
    return run_processes(2, "train_poisoned", runs=runs, bad_rows=rows, kind=kind)[0]


def logged(directory, name):
    return [record["step"] for record in metrics(directory, name)]


def test_a_bad_step_stops_the_run_by_default(tiny_corpus, tmp_path):
    (said,) = train([run(tiny_corpus, tmp_path, "stopped")], [8])
    assert said[-1].startswith("TrainingError: step 8 has loss nan and gradient norm ")
    assert "expected finite numbers; the checkpoint of step 5 is intact: lower optim.lr" in said[-1]
    (said,) = train([run(tiny_corpus, tmp_path, "early")], [3])
    assert "no checkpoint was saved before it" in said[-1]


def test_bad_steps_are_skipped(tiny_corpus, tmp_path):
    (said,) = train([run(tiny_corpus, tmp_path, "skips", "train.on_bad_step=skip")], [8, 10])
    assert said[-1] == "0"
    assert sum(line.startswith("Skipped: step ") for line in said) == 2
    assert logged(tmp_path, "skips") == [step for step in range(1, 21) if step not in (8, 10)]


@pytest.mark.parametrize("engine", ["zero0", "zero3", "spectral", "adapting"])
def test_a_bad_first_step_is_saved_and_resumed(engine, tiny_corpus, tmp_path):
    """The optimizer has no state before the first step that it makes."""
    keys = ("train.on_bad_step=skip", "train.steps=6", "checkpoint.every=1", "checkpoint.keep=6", *ENGINES[engine])
    (said,) = train([run(tiny_corpus, tmp_path, "straight", *keys)], [1])
    cut_back(tmp_path, "straight", "resumed", 1)
    (again,) = train([run(tiny_corpus, tmp_path, "resumed", *keys)], [1])
    assert said[-1] == again[-1] == "0"
    assert_same(tmp_path, "straight", "resumed", 6)


def test_bad_steps_alone_cut_no_ranks(tiny_corpus, tmp_path):
    """A sync after them would find every index of a gate without importance."""
    keys = ("train.on_bad_step=skip", "ranks.adapt=true", "ranks.sync_every=2")
    (said,) = train([run(tiny_corpus, tmp_path, "adapts", *keys)], [1, 2, 5, 6, 7, 8])
    assert said[-1] == "0"
    synced = [json.loads(line)["step"] for line in (tmp_path / "adapts/ranks.jsonl").read_text().splitlines()]
    assert [step for step in synced if 0 < step <= 12] == [4, 10, 12]


def test_the_losses_of_a_larger_model_make_no_spikes(tiny_corpus, tmp_path):
    """A cut of ranks raises the loss, far above the mean of those before it."""
    late = ("ranks.adapt=true", "ranks.sync_every=4", "ranks.late_start=0.2", "ranks.target_fraction=0.5")
    (said,) = train([run(tiny_corpus, tmp_path, "cut", "checkpoint.keep=9", *late)], [])
    assert said[-1] == "0"
    syncs = [json.loads(line) for line in (tmp_path / "cut/ranks.jsonl").read_text().splitlines()]
    cuts = [sync["step"] for sync in syncs if sync.get("cut")]
    assert any(0 < cut < 15 for cut in cuts)
    for step in (10, 15, 20):
        manifest = json.loads((tmp_path / f"cut/checkpoints/step_{step:07d}/manifest.json").read_text())
        assert len(manifest["run"]["watch"]["losses"]) == step - max([0, *(cut for cut in cuts if cut <= step)])


def test_a_run_with_bad_steps_only_ends(tiny_corpus, tmp_path):
    (said,) = train([run(tiny_corpus, tmp_path, "hopeless", "train.on_bad_step=skip")], range(3, 20))
    assert "TrainingError: step 10 has loss nan" in said[-1]
    assert "8 times in a row" in said[-1]


def test_a_spike_is_found_after_a_resume_too(tiny_corpus, tmp_path):
    # Small batches, so that all steps are in one epoch.
    small = ("train.batch_tokens=32", "train.steps=80", "checkpoint.every=69")
    keys = (*small, "schedule.kind=constant", "train.on_bad_step=skip", "train.spike_deviations=8")
    straight, resumed = (run(tiny_corpus, tmp_path, name, *keys) for name in ("straight", "resumed"))
    said, _ = train([straight, [*resumed, "train.steps=69"]], [70], "spike", batch=2)
    assert sum("expected a loss of at most " in line for line in said) == 1
    (again,) = train([resumed], [70], "spike", batch=2)
    assert sum("expected a loss of at most " in line for line in again) == 1
    assert_same(tmp_path, "straight", "resumed", 80)


def test_a_rewound_run_is_a_run_that_never_saw_the_data(tiny_corpus, tmp_path):
    keys = ("train.on_bad_step=rewind", "ranks.adapt=true", "ranks.sync_every=4", "ranks.target_fraction=0.6")
    rewound, never = (run(tiny_corpus, tmp_path, name, *keys) for name in ("rewound", "never"))
    (tmp_path / "never").mkdir()
    (tmp_path / "never/run.json").write_text(json.dumps({"rewinds": [{"step": 5, "row": 8 * BATCH, "bad_step": 8}]}))
    said, other = train([rewound, never], [8])
    assert said[-1] == other[-1] == "0"
    assert sum(line.startswith("Rewound to step 5, without the data up to here: step 8 ") for line in said) == 1
    assert not any(line.startswith("Rewound") for line in other)
    assert logged(tmp_path, "rewound") == list(range(1, 21))
    assert metrics(tmp_path, "rewound")[-1]["tokens"] == 23 * BATCH * 16
    assert_same(tmp_path, "rewound", "never", 20)


def test_a_rewound_run_resumes_within_its_budget_of_tokens(tiny_corpus, tmp_path):
    """Data that were passed over belong to no step of the budget."""
    steps = ("checkpoint.every=5", "checkpoint.keep=9", "eval.every=0", "log.every=1", "train.zero_stage=1")
    keys = (*steps, "train.steps=null", f"train.tokens={20 * BATCH * 16}", "train.on_bad_step=rewind")
    (straight,) = train([tiny_run(tiny_corpus, tmp_path, "straight", *keys)], [8])
    cut_back(tmp_path, "straight", "resumed", 15)
    (resumed,) = train([tiny_run(tiny_corpus, tmp_path, "resumed", *keys)], [])
    assert straight[-1] == resumed[-1] == "0"
    assert_same(tmp_path, "straight", "resumed", 20)


def test_a_run_is_rewound_to_its_start_and_three_times_at_most(tiny_corpus, tmp_path):
    keys = ("train.on_bad_step=rewind", "checkpoint.every=0")
    (said,) = train([run(tiny_corpus, tmp_path, "again", *keys)], [2, 5, 7, 9])
    assert sum(line.startswith("Rewound to step 0") for line in said) == 3
    assert "after 3 rewinds to step 0; no checkpoint was saved before it" in said[-1]
    (said,) = train([run(tiny_corpus, tmp_path, "again", *keys, "optim.lr=0.001")], [2])  # as the sentence advises
    assert sum(line.startswith("Rewound to step 0") for line in said) == 1
    assert metrics(tmp_path, "again")[-1]["tokens"] == (2 + 20) * BATCH * 16


def test_a_finished_module_cannot_be_rewound(tiny_corpus, tmp_path):
    config = read_config(None, run(tiny_corpus, tmp_path, "module", "train.on_bad_step=rewind"))
    with pytest.raises(ConfigError, match="expected a function that makes it anew"):
        run_or_resume(config, alone(), Parts(model=nn.Linear(1, 1)))


def assert_same(directory, name, other, step):
    ours, theirs = saved_tensors(directory, name, step), saved_tensors(directory, other, step)
    assert ours.keys() == theirs.keys()
    assert all((ours[key] == theirs[key]).all() for key in ours)
    assert [r["loss"] for r in metrics(directory, name)] == [r["loss"] for r in metrics(directory, other)]
