"""The base of kinds of click logs that are files of text: one layout for each split, and features new or earlier."""

from dataclasses import replace
from pathlib import Path

from comera_dist.errors import DataError
from data_prep.clicks.earlier import open_earlier
from data_prep.clicks.features import Features, for_each
from data_prep.clicks.records import Layout, TextClicks

# Settings that --dictionaries decides, with their defaults.
_OF_DICTIONARIES = {"dense": (), "categories": (), "log": False, "hash_rows": (), "min_count": 1}


class TextKind:
    """A kind defines `usage` and `layout`, which says how the files of a pattern are read."""

    usage: str
    reads_files = True
    names_columns = False  # the user names them
    hexadecimal = False  # words are hashes of 32 bits and numbers are counts, as Criteo's

    @classmethod
    def layout(cls, pattern: str, settings: dict, block_bytes: int) -> Layout:
        """DataError when no file matches, or `settings` name columns that there are not."""
        raise NotImplementedError

    @classmethod
    def open(cls, pattern: str, settings: dict, block_bytes: int) -> TextClicks:
        """The log that `settings`, the arguments of the command, describe; `pattern` is that of its first source.

        DataError when they name no file, or columns that there are not.
        """
        earlier = cls._earlier(settings)
        if earlier:
            settings = {**settings, "dense": earlier.dense, "categories": earlier.categories}
        layouts = {
            split: cls.layout(cls._pattern(spec), settings, block_bytes)
            for split in ("", "valid", "test")
            if (spec := settings[f"{split}_source".lstrip("_")])
        }
        train = layouts.pop("", None) or replace(next(iter(layouts.values())), tables=())
        return TextClicks(train, earlier.features if earlier else cls._new_features(train, settings), layouts)

    @classmethod
    def _new_features(cls, layout: Layout, settings: dict) -> Features:
        hash_rows = for_each(settings["hash_rows"], len(layout.categories))
        log, min_count = cls.hexadecimal or settings["log"], settings["min_count"]
        return Features.of(len(layout.dense), len(layout.categories), log, hash_rows, min_count)

    @classmethod
    def _earlier(cls, settings: dict):
        """The features of --dictionaries, where it is given. DataError when other arguments contradict it."""
        folder = settings["dictionaries"]
        if not folder:
            return None
        for key, default in _OF_DICTIONARIES.items():
            if settings[key] != default:
                option = key.replace("_", "-")
                raise DataError(f"--{option} is that of --dictionaries {folder}; remove one of the two")
        return open_earlier(Path(folder), cls.hexadecimal)

    @classmethod
    def _pattern(cls, spec: str) -> str:
        kind, _, pattern = spec.partition(":")
        if kind != cls.usage.partition(":")[0] or not pattern:
            raise DataError(f"source {spec!r} is no {cls.usage}, and all sources of one data set must be of one kind")
        return pattern
