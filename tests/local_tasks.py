"""Tasks for a tiny decoder, one of each kind of lm_eval's, on local files."""

import json
from pathlib import Path


def document(index: int) -> str:
    name, plural = f"item_{index}", index % 2 == 0
    line = f"the cats near {name} are here\n" if plural else f"the cat near {name} is here\n"
    return line * (3 + index % 5)


_SETTINGS = {
    "agreement": """
output_type: multiple_choice
doc_to_text: "the {{noun}} near item_7"
doc_to_choice: ["is here", "are here", "was"]
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "prose": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
""",
    "writing": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: " near"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}
_ROWS = {
    "agreement": [{"noun": ("cat", "cats")[i % 2], "answer": i % 2} for i in range(10)],
    "prose": [{"text": document(i)} for i in range(200, 205)],
    "writing": [{"text": text} for text in (document(9) + "the cat", "the cats", "the cat near item_3 is here\nthe")],
}


NAMES = [f"local_{name}" for name in _SETTINGS]


def write_tasks(folder: Path) -> Path:
    """The YAML files of the tasks NAMES, and their data."""
    for name, settings in _SETTINGS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _ROWS[name]))
        files = f"task: local_{name}\ndataset_path: json\ndataset_kwargs: {{data_files: {folder}/{name}.jsonl}}\n"
        (folder / f"{name}.yaml").write_text(f"{files}test_split: train\nfewshot_split: train\n{settings}")
    return folder
