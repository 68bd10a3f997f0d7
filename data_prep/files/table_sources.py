"""Sources whose items are rows of tables, from files or from the hub. The keys of a source turn rows into items."""

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

from data_prep.files.finding import glob_paths
from data_prep.files.hub import HubStream
from data_prep.files.rows import Table, check_readable, file_table
from data_prep.files.skips import Skips

Item_co = TypeVar("Item_co", covariant=True)


class RowKeys(Protocol[Item_co]):
    """Names the columns of an item."""

    def items(self, table: Table, skips: Skips) -> Iterator[Item_co]:
        """The items in the rows of `table`. Rows that hold none are counted in `skips`."""


class TableFiles(Generic[Item_co]):
    """Tables with a header, or of JSON lines."""

    usage = "files:GLOB"

    def __init__(self, pattern: str, keys: RowKeys[Item_co], *_settings: Any):
        self.paths, self._keys = glob_paths(pattern), keys
        for path in self.paths:
            check_readable(path)

    def read(self, skips: Skips) -> Iterator[Item_co]:
        for path in self.paths:
            yield from self._keys.items(file_table(path, skips), skips)


class HubTable(Generic[Item_co]):
    """Columns of a data set of the Hugging Face hub."""

    usage = "hub:NAME[:CONFIG[:SPLIT]]"

    def __init__(self, spec: str, keys: RowKeys[Item_co], *_settings: Any):
        self._spec, self._keys = spec, keys

    def read(self, skips: Skips) -> Iterator[Item_co]:
        return self._keys.items(HubStream(self._spec).table(), skips)
