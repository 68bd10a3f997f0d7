"""A corpus of pairs with a tokenizer of its own."""

import json

import pytest

from data_prep import prepare_pairs


@pytest.fixture(scope="session", autouse=True)
def modules_cache(tmp_path_factory):
    """transformers copies the code of exported models there and imports it, not in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield


@pytest.fixture(scope="session")
def pair_corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    with open(folder / "pairs.jsonl", "w") as file:
        for index in range(80):
            second = f"the number {index + index % 3} of {index}"
            row = {"first": f"number {index} is\tten", "second": second, "label": ["same", "more", "much"][index % 3]}
            file.write(json.dumps(row) + "\n")
    source = ["--source", f"files:{folder}/pairs.jsonl", "--label-key", "label", "--valid-fraction", "0.2"]
    made = ["--tokenizer", f"{folder}/tokenizer.model", "--vocab-size", "320", "--output", f"{folder}/prepared"]
    prepare_pairs.prepare([*source, *made])
    return folder / "prepared"
