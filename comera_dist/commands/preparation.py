"""The commands that prepare data, such as comera-verify. Each runs a script of data_prep/.

Other commands use modules of data_prep/.
"""

import importlib
import runpy
import sys
from functools import partial
from typing import Any

from comera_dist.commands.shipped import shipped


def _run(script: str) -> None:
    """Ends the process with the script's exit status."""
    _show_data_prep()
    runpy.run_module(f"data_prep.{script}", run_name="__main__")


def preparation_module(name: str) -> Any:
    """A module of data_prep/, such as `files.skips`."""
    _show_data_prep()
    return importlib.import_module(f"data_prep.{name}")


def _show_data_prep() -> None:
    # A wheel must not install a top-level package with so general a name: only these commands see it as `data_prep`.
    folder = str(shipped("data_prep").parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


train_tokenizer = partial(_run, "train_tokenizer")
tokenize_corpus = partial(_run, "tokenize_corpus")
prepare_pairs = partial(_run, "prepare_pairs")
prepare_answers = partial(_run, "prepare_answers")
prepare_clicks = partial(_run, "prepare_clicks")
verify = partial(_run, "verify")
report_corpus = partial(_run, "report_corpus")
