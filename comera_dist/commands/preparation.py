"""The commands that prepare data, such as comera-verify. Each runs a script of data_prep/."""

import runpy
import sys
from functools import partial

from comera_dist.commands.shipped import shipped


def _run(script: str) -> None:
    """Ends the process with the script's exit status."""
    # A wheel must not install a top-level package with so general a name: only these commands see it as `data_prep`.
    sys.path.insert(0, str(shipped("data_prep").parent))
    runpy.run_module(f"data_prep.{script}", run_name="__main__")


train_tokenizer = partial(_run, "train_tokenizer")
tokenize_corpus = partial(_run, "tokenize_corpus")
prepare_pairs = partial(_run, "prepare_pairs")
prepare_clicks = partial(_run, "prepare_clicks")
verify = partial(_run, "verify")
