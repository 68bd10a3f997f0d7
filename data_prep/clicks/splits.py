"""The split of a click log's rows, and the counts of each split.

Shapes: N rows of a block, C categorical features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comera_dist.errors import DataError
from comera_dist.ops.permutation import permute

_HASHES = 1 << 62


class RowSplit:
    """Decides the split of a row by a hash of the seed and of its number in the source.

    Each split of `held` has a source of its own. Without `has_train` there are no other splits.
    """

    def __init__(
        self, valid_fraction: float, test_fraction: float, seed: int, held: tuple[str, ...] = (), has_train: bool = True
    ):
        self._key, self.held = (seed, "split"), held
        self._ends = np.array([valid_fraction, valid_fraction + test_fraction]) * _HASHES
        of_source = {"train": True, "valid": valid_fraction > 0, "test": test_fraction > 0}
        self.names = [name for name, some in of_source.items() if name in held or (has_train and some)]

    def of(self, number_N: NDArray[np.int64]) -> NDArray[np.str_]:
        """The name of each row's split, (N,)."""
        hash_N = permute(number_N, _HASHES, key=self._key)
        return np.array(["valid", "test", "train"])[np.searchsorted(self._ends, hash_N, side="right")]

    def is_train(self, number_N: NDArray[np.int64]) -> NDArray[np.bool_]:
        is_train_N: NDArray[np.bool_] = self.of(number_N) == "train"
        return is_train_N


class Tally:
    """Rows, clicks, known words and best possible loss of each split of `split`, as they are written.

    `has_label_rule`: the user says which rows are clicked.
    """

    def __init__(self, split: RowSplit, has_label_rule: bool):
        self._held, self._has_label_rule = split.held, has_label_rule
        self.rows, self.clicked = dict.fromkeys(split.names, 0), dict.fromkeys(split.names, 0)
        self._losses: dict[str, float] = {}  # sums; empty if the source does not know them
        self._knows: dict[str, Any] = dict.fromkeys(split.names, False)  # of each feature (C,): whether a word is known

    def add(
        self,
        name: str,
        labels_N: NDArray[np.int8],
        categories_NC: NDArray[np.int32],
        best_loss_N: NDArray[np.float64] | None,
    ) -> None:
        self.rows[name] += len(labels_N)
        self.clicked[name] += int(labels_N.sum())
        self._knows[name] = self._knows[name] | (categories_NC > 0).any(axis=0)
        if best_loss_N is not None:
            self._losses[name] = self._losses.get(name, 0.0) + float(best_loss_N.sum())

    def facts(self) -> dict[str, Any]:
        best = {name: loss / self.rows[name] for name, loss in self._losses.items()}
        return {"positives": self.clicked, **({"best_loss": best} if best else {})}

    def check(self) -> None:
        """Raises DataError if a split is empty, or train holds one class only."""
        for name, rows in self.rows.items():
            if not rows:
                raise DataError(f"no row came to {name}; {self._remedy(name)}")
        if "train" in self.rows and (found := self.only_label("train")) is not None:
            remedy = "check --label" if self._has_label_rule else "prepare more rows"
            raise DataError(f"all rows of train have label {found}, and both are needed; {remedy}")

    def unknown(self, categories: Sequence[str], words: Mapping[str, Sequence[Any]]) -> list[str]:
        """A line for each held-out split and feature with a dictionary of `words`, as `unknown_words` has it."""
        lines = []
        for name in (name for name in self.rows if name != "train"):
            knows = dict(zip(categories, self._knows[name], strict=True))
            lines += unknown_words(name, {feature: known for feature, known in knows.items() if words.get(feature)})
        return lines

    def only_label(self, name: str) -> int | None:
        """The label of all rows of a split, None if it has both."""
        return {0: 0, self.rows[name]: 1}.get(self.clicked[name])

    def _remedy(self, name: str) -> str:
        """The remedy for a split without rows."""
        if name in self._held:
            return f"check --{name}-source"
        if not any(self.rows.values()):
            return "check --source"
        return "prepare more rows" if name == "train" else f"prepare more rows, or raise --{name}-fraction"


def unknown_words(rows: str, knows: Mapping[str, bool]) -> list[str]:
    """A line for each feature of which no word in `rows` is in its dictionary, as 7 is not 7.0.

    `knows` are features whose dictionaries have words, and whether a word is known.
    """
    return [
        f"no row of {rows} has a word of {feature} that train has, so the model takes all for missing ones; see that "
        "both spell them alike"
        for feature, is_known in knows.items()
        if not is_known
    ]
