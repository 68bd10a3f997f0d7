"""Criteo's click logs: a label, 13 counts and 26 hashed words a row, tabs between them, empty where missing.

Source: the readme of the Kaggle Display Advertising Challenge data, and of the Terabyte Click Logs.
"""

from comera_dist.errors import DataError
from data_prep.clicks.columns import LabelRule
from data_prep.clicks.records import Layout
from data_prep.clicks.text_kind import TextKind
from data_prep.files.blocks import TextTable
from data_prep.files.finding import glob_paths

DENSE = tuple(f"I{index}" for index in range(1, 14))
CATEGORIES = tuple(f"C{index}" for index in range(1, 27))


class CriteoClicks(TextKind):
    usage = "criteo:GLOB"
    hexadecimal = True

    @classmethod
    def layout(cls, pattern: str, settings: dict, block_bytes: int) -> Layout:
        if (settings["dense"], settings["categories"]) not in (((), ()), (DENSE, CATEGORIES)):
            folder = settings["dictionaries"]
            raise DataError(f"--dictionaries {folder} are not of Criteo's columns; name those of a criteo source")
        columns, table = ("label", *DENSE, *CATEGORIES), {"delimiter": "\t", "quoted": False}
        tables = tuple(TextTable(path, columns, block_bytes=block_bytes, **table) for path in glob_paths(pattern))
        return Layout(tables, LabelRule.parse("label"), DENSE, CATEGORIES, hexadecimal=True)
