"""A data set of the Hugging Face hub, streamed row by row. A reader can return to a place of the stream.

The libraries below try lost connections again, with growing pauses, before an error comes up to here.
"""

from collections.abc import Iterator
from typing import Any

from comera_dist.errors import ComeraError, DataError, first_line
from data_prep.files.rows import Row, Rows, Table

Place = dict[str, Any]  # JSON


class HubStream:
    """The rows of NAME[:CONFIG[:SPLIT]]. Numbers of named classes are replaced by their names, others by None."""

    def __init__(self, spec: str, can_go_on: bool = False):
        self._name, config, split = [*spec.split(":"), "", ""][:3]
        self._config, self._split = config or None, split or "train"
        self._can_go_on = can_go_on  # whether another start of the command resumes
        self._start: Place = {}
        self._count = 0  # rows that were read, also by an earlier run

    def table(self) -> Table:
        """Reading its rows raises DataError if the data set cannot be read."""
        return Table(f"data set {self._name}", self._rows())

    def place(self) -> Place:
        """The place behind the row that was read last."""
        return {"revision": self._revision, "rows": self._count, "stream": self._stream.state_dict()}

    def resume(self, place: Place) -> None:
        """Lets `table` begin at a place of an earlier run."""
        self._start = place

    def _rows(self) -> Rows:
        try:
            for row in self._opened():
                self._count += 1
                yield f"{self._name}: row {self._count - 1}", row
        except ComeraError:
            raise
        except Exception as error:  # of any class: it may come from readers, parsers or file systems below `datasets`
            raise self._failure(first_line(error).rstrip(".")) from error

    def _opened(self) -> Iterator[Row]:
        import datasets  # here, because importing it takes seconds

        # A later commit would have other rows: the revision that an earlier run began with is read to its end.
        builder = datasets.load_dataset_builder(self._name, self._config, revision=self._start.get("revision"))
        self._revision = builder.hash  # of a hub's data set the commit
        self._stream = builder.as_streaming_dataset(self._split)
        if self._start:
            self._return_to_start()
        features = (self._stream.features or {}).items()
        classes = {column: feature.names for column, feature in features if isinstance(feature, datasets.ClassLabel)}
        for row in self._stream:
            yield {**row, **{column: _class_name(row.get(column), names) for column, names in classes.items()}}

    def _return_to_start(self) -> None:
        if self._revision != self._start["revision"]:
            raise DataError(
                f"data set {self._name} has changed since its first {self._start['rows']} rows were read; pass "
                "--overwrite to read it again from its beginning"
            )
        self._stream.load_state_dict(self._start["stream"])
        self._count = self._start["rows"]

    def _failure(self, reason: str) -> DataError:
        if self._count:
            where = ": it goes on behind its last finished shard" if self._can_go_on else ""
            return DataError(
                f"data set {self._name} broke off after {self._count} rows ({reason}); check your network, then run "
                f"the same command again{where}"
            )
        return DataError(
            f"data set {self._name} cannot be read ({reason}); check its name, configuration, split and your network, "
            "then run the same command again"
        )


def _class_name(number: int | None, names: list[str]) -> str | None:
    return names[number] if number is not None and number in range(len(names)) else None
