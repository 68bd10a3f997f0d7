"""Data of equal sizes whose numbers mean something else are refused, whoever reads them with a trained model."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from support import TINY, WORKLOADS, make_clicks, make_pairs, with_manifest

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.reader import read_config
from comera_dist.data.tasks import open_task
from comera_dist.errors import DataError
from comera_dist.run.compatibility import check_vocabulary

RUNS = {"decoder": TINY, **WORKLOADS}
TOKENIZER = {"tokenizer": b"another"}


@pytest.fixture(scope="module")
def corpora(tiny_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    pairs, clicks = make_pairs(folder / "pairs", rows=20), make_clicks(folder / "clicks", rows=20)
    return {"decoder": tiny_corpus, "masked_lm": pairs, "classifier": pairs, "dlrm": clicks}


@pytest.fixture
def said(corpora, tmp_path):
    """What is said when a run is used on data whose manifest says `now` in addition."""

    def use(kind, now, record=True, gone=False) -> str:
        trained_on = with_manifest(corpora[kind], tmp_path / "trained_on")
        present = with_manifest(corpora[kind], tmp_path / "present", **now)
        configs = [read_config(None, [*RUNS[kind], f"data.corpus={folder}"]) for folder in (trained_on, present)]
        own, task = map(open_task, configs)
        run = {"config": configs[0].model_dump(mode="json"), "cursor": {"fingerprint": own.fingerprint}}
        if record:
            run["vocabulary"] = own.vocabulary
        if gone:
            trained_on.rename(tmp_path / "elsewhere")
        lines = []
        checkpoint = Checkpoint(Path("step"), {"run": run}, processes=None)
        check_vocabulary(checkpoint, task, present, SimpleNamespace(say=lines.append))
        return "\n".join(lines)

    return use


@pytest.mark.parametrize(
    ("kind", "now", "parts"),
    [
        ("decoder", TOKENIZER, "tokenizer"),
        ("masked_lm", TOKENIZER, "tokenizer"),
        ("classifier", TOKENIZER, "tokenizer"),
        ("classifier", {"labels": ["more", "equal", "less"]}, "labels"),
        ("classifier", {"labels": ["more", "equal", "less"], **TOKENIZER}, "tokenizer and labels"),
        ("dlrm", {"words": b"{}"}, "dictionaries"),
        ("dlrm", {"categories": ["b", "a", "c"]}, "dictionaries"),
        ("dlrm", {"dense": ["x", {"name": "y", "made": "standardised", "mean": 1.0, "deviation": 1.0}]}, "numbers"),
    ],
)
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "of an earlier version"])
def test_other_meanings_of_the_same_sizes_are_refused(said, kind, now, parts, record):
    with pytest.raises(
        DataError, match=rf"present differs in its {parts} from the data that step was trained on; prepare"
    ):
        said(kind, now, record=record)


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "of an earlier version"])
def test_other_rows_of_the_same_meaning_are_read_without_a_word(said, kind, record):
    assert said(kind, {"source": "elsewhere"}, record=record) == ""


def test_labels_mean_nothing_to_a_masked_language_model(said):
    assert said("masked_lm", {"labels": []}) == ""


def test_what_cannot_be_compared_is_said(said):
    told = said("decoder", TOKENIZER, record=False, gone=True)
    assert "present cannot be compared in its tokenizer with the data that step was trained on" in told


def test_data_that_do_not_tell_are_said_not_to(said):
    assert "present cannot be compared in its dictionaries with" in said("dlrm", {"files": None})
