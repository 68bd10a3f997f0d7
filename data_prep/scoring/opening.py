"""Opens a file of rows to score."""

from pathlib import Path

from comera_dist.config.data_section import Data
from comera_dist.data.manifest import MANIFEST, read_json
from comera_dist.errors import DataError
from comera_dist.run.predict import RowFile
from data_prep.files.skips import Skips
from data_prep.scoring.clicks import ClickRows
from data_prep.scoring.pairs import PairRows

_FILES = {"pairs": PairRows, "clicks": ClickRows}  # by the kind of the training data


def open_rows(path: Path, data: Data, skips: Skips, join: Path | None = None) -> RowFile:
    """The rows of `path` for a model that was trained on `data`, which must exist. Faulty rows are counted in `skips`.

    `join` is a table that is joined to click logs, see `ClickRows`. Raises DataError if the file is missing or empty,
    or lacks a column of the training data.
    """
    if not path.is_file():
        raise DataError(f"{path} is not a file; name a table of rows with --input")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; name a table that holds rows with --input")
    try:
        opened: RowFile = _FILES[read_json(data.corpus / MANIFEST)["kind"]](path, data, skips, join)
        return opened
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise DataError(
            f"{data.corpus / MANIFEST} does not say of which columns its rows were made; prepare these data again"
        ) from error
