"""A step's gradients are those of the mean over all targets of its rows, however rows and targets are spread."""

import pytest
from forked import run_processes
from support import WORKLOADS, make_pairs, tiny_run
from test_static_step import Calls

pytestmark = pytest.mark.distributed
SEQUENCES = 8  # of a step
# Kind of rows, ZeRO stage, rows of a micro batch.
SPLITS = [("text", stage, rows) for stage in range(4) for rows in (1, 4)] + [
    ("masked_lm", stage, 1) for stage in (0, 2)
]
UNCLIPPED = ["train.grad_clip=0", "run.seed=3"]


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def errors(request, tiny_corpus, tmp_path_factory):
    """Results of `gradient_error` on one and on two processes."""
    directory = tmp_path_factory.mktemp("gradients")
    pairs, calls = make_pairs(directory / "pairs"), Calls(tiny_corpus, directory)
    for kind, stage, rows in SPLITS:
        options = [*UNCLIPPED, f"train.zero_stage={stage}", f"train.micro_batch={rows}"]
        if kind == "text":
            calls.add((kind, stage, rows), "gradient_error", *options, "data.documents=separate")
        else:
            place = [f"data.corpus={pairs}", f"run.directory={directory}", f"run.name={kind}_{stage}"]
            overrides = [*place, *WORKLOADS[kind], *options]
            calls.add_call((kind, stage, rows), "gradient_error", overrides=overrides, is_text=False)
    return calls.run(request.param)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_gradients_are_those_of_the_mean_over_all_targets(errors, split):
    gradient_error, loss_error, targets = errors[split]
    assert len(targets) == 1 or len(set(targets)) > 1, "the micro batches differ in their targets"
    assert gradient_error < 1e-4
    assert loss_error < 1e-5


def test_a_step_without_targets_is_an_error(tiny_corpus, tmp_path):
    found = run_processes(2, "step_without_targets", overrides=tiny_run(tiny_corpus, tmp_path, "none"))
    assert found[0] == found[1]
    assert found[0].startswith("DataError: no row of this step has a target, expected")
