"""The commands that prepare data. Each runs a script of data_prep/, as `python data_prep/NAME.py` does in a clone."""

import runpy
import sys

from comera_dist.commands.shipped import shipped


def train_tokenizer() -> None:
    """comera-train-tokenizer"""
    _run("train_tokenizer")


def tokenize_corpus() -> None:
    """comera-tokenize-corpus"""
    _run("tokenize_corpus")


def prepare_pairs() -> None:
    """comera-prepare-pairs"""
    _run("prepare_pairs")


def prepare_clicks() -> None:
    """comera-prepare-clicks"""
    _run("prepare_clicks")


def verify() -> None:
    """comera-verify"""
    _run("verify")


def _run(script: str) -> None:
    """Ends the process with the script's exit status."""
    # A wheel must not install a top-level package of so general a name: only these commands see it as `data_prep`.
    sys.path.insert(0, str(shipped("data_prep").parent))
    runpy.run_module(f"data_prep.{script}", run_name="__main__")
