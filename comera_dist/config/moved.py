"""Keys that have moved: their old place is still read, with a note."""

from typing import Any

from comera_dist.config.yaml_tree import Tree, section_at, shown

# Old place → new place, both below the same section of the whole configuration.
MOVED = {
    "ranks.threshold": "ranks.policy.threshold",
    "ranks.patience": "ranks.policy.patience",
    "ranks.shrink_when": "ranks.policy.shrink_when",
    "ranks.grow": "ranks.policy.grow",
}


class Moves:
    """Moves keys of a configuration to their new places.

    `notes` are sentences about keys at old places, `problems` about keys that have different values at both places.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._overrides: dict[str, dict[str, Any]] = {}  # by new key: the values of overrides, by the key as written

    def of_tree(self, tree: Tree) -> None:
        """Moves keys within `tree`, which may hold anything."""
        for old, new in MOVED.items():
            name, _, leaf = old.partition(".")
            section = tree.get(name)
            if isinstance(section, dict) and leaf in section:
                *path, new_leaf = new.split(".")
                value = section.pop(leaf)
                self._compare(new, {old: value, new: section_at(tree, path).setdefault(new_leaf, value)})

    def of_override(self, key: str, value: Any) -> str:
        """The new place of an override's key. Moves the keys inside its value, too."""
        if isinstance(value, dict):
            self.of_tree({key: value})
        new = MOVED.get(key, key)
        written = self._overrides.setdefault(new, {})
        written[key] = value
        self._compare(new, written)
        return new

    def _compare(self, new: str, written: dict[str, Any]) -> None:
        """Notes and problems about one key, whose values are given by the place where each was written."""
        self.notes += [f"{old} is now {new}; it is still read" for old in written if old != new]
        if len(written) > 1 and any(value != written.get(new, value) for value in written.values()):
            both = " and ".join(f"{key} = {shown(value)}" for key, value in written.items())
            self.problems.append(f"{both} are one key; keep {new}")
