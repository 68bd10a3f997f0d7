"""The split of a click log's rows, and the counts of each split.

Shapes: N rows of a block.
"""

import numpy as np

from comera_dist.data.permutation import permute
from comera_dist.errors import DataError

_HASHES = 1 << 62


class RowSplit:
    """The split of a row: decided by a hash of its number in the source and the seed.

    Each of `held` is a split with a source of its own; without `has_train` there are no others.
    """

    def __init__(
        self, valid_fraction: float, test_fraction: float, seed: int, held: tuple[str, ...] = (), has_train: bool = True
    ):
        self._key, self.held = (seed, "split"), held
        self._ends = np.array([valid_fraction, valid_fraction + test_fraction]) * _HASHES
        of_source = {"train": True, "valid": valid_fraction > 0, "test": test_fraction > 0}
        self.names = [name for name, some in of_source.items() if name in held or (has_train and some)]

    def of(self, number_N: np.ndarray) -> np.ndarray:
        """Name of each row's split, (N,)."""
        hash_N = permute(number_N, _HASHES, key=self._key)
        return np.array(["valid", "test", "train"])[np.searchsorted(self._ends, hash_N, side="right")]

    def is_train(self, number_N: np.ndarray) -> np.ndarray:
        return self.of(number_N) == "train"


class Tally:
    """Rows, clicks and best possible loss of each split of `split`, as they are written.

    `has_label_rule`: whether the user says which rows are clicked.
    """

    def __init__(self, split: RowSplit, has_label_rule: bool):
        names, self._held, self._has_label_rule = split.names, split.held, has_label_rule
        self.rows, self.clicked, self.best_loss = (dict.fromkeys(names, 0) for _ in range(3))
        self.knows_best_loss = False

    def add(self, name: str, labels_N: np.ndarray, best_loss_N: np.ndarray | None) -> None:
        self.rows[name] += len(labels_N)
        self.clicked[name] += int(labels_N.sum())
        if best_loss_N is not None:
            self.knows_best_loss = True
            self.best_loss[name] += float(best_loss_N.sum())

    def facts(self) -> dict:
        facts = {"positives": self.clicked}
        if self.knows_best_loss:
            facts["best_loss"] = {name: self.best_loss[name] / self.rows[name] for name in self.rows}
        return facts

    def check(self) -> None:
        """DataError where a split is empty, or train holds one class only."""
        for name, rows in self.rows.items():
            if not rows:
                raise DataError(f"No row came to {name}; {self._remedy(name)}.")
        if "train" in self.rows and (found := self.only_label("train")) is not None:
            remedy = "check --label" if self._has_label_rule else "prepare more rows"
            raise DataError(f"All rows of train have label {found}, and both are needed; {remedy}.")

    def only_label(self, name: str) -> int | None:
        """The label of all rows of a split, None where it has both."""
        return {0: 0, self.rows[name]: 1}.get(self.clicked[name])

    def _remedy(self, name: str) -> str:
        """The remedy for a split without rows."""
        if name in self._held:
            return f"check --{name}-source"
        if not any(self.rows.values()):
            return "check --source"
        return "prepare more rows" if name == "train" else f"prepare more rows, or raise --{name}-fraction"
