"""Which rows of a click log are held out, and what each split has got.

Legend: N rows of a block.
"""

import numpy as np

from comera_dist.data.permutation import permute
from comera_dist.errors import DataError

_HASHES = 1 << 62


class RowSplit:
    """Which rows are held out: decided by a hash of their number in the source and the seed."""

    def __init__(self, valid_fraction: float, test_fraction: float, seed: int):
        self._key = (seed, "split")
        self._ends = np.array([valid_fraction, valid_fraction + test_fraction]) * _HASHES
        self.names = ["train", *["valid"] * (valid_fraction > 0), *["test"] * (test_fraction > 0)]

    def of(self, number_N: np.ndarray) -> np.ndarray:
        """Name of each row's split, (N,)."""
        hash_N = permute(number_N, _HASHES, key=self._key)
        return np.array(["valid", "test", "train"])[np.searchsorted(self._ends, hash_N, side="right")]

    def is_train(self, number_N: np.ndarray) -> np.ndarray:
        return self.of(number_N) == "train"


class Tally:
    """Rows, clicks and best possible loss of each split, as they are written."""

    def __init__(self, names: list[str]):
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
                raise DataError(f"No row came to {name}; check --source, --valid-fraction and --test-fraction.")
        if self.clicked["train"] in (0, self.rows["train"]):
            found = 1 if self.clicked["train"] else 0
            raise DataError(f"All rows of train have label {found}, and both are needed; check --label.")
