"""The families of transformers that compute our encoder, by the place of the norms."""

from typing import NamedTuple


class Family(NamedTuple):
    """The beginning of the names of its classes, and its `model_type`."""

    name: str
    model_type: str


FAMILIES = {"post": Family("Bert", "bert"), "pre": Family("MegatronBert", "megatron-bert")}  # by `model.norm`
OUTPUT = "cls.predictions"  # name of the output of their masked language models
