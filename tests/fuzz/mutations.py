"""Strategies: odd values, valid trees of JSON with a few changes, and valid files with a few changed bytes."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

ODD_PATHS = [
    "../x",
    "/etc/hostname",
    "train/../../x",
    "a\0b",
    "",
    ".",
    "..",
    "\ud800",
    "é" * 300,
    "a\nb",
    "~root",
    "-x",
]
ODD_NUMBERS = [0, 1, -1, 2, 255, 2**16, 2**31, 2**48 + 1, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")]
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
ODD = [None, True, False, "x", "|O", "<i4", "1", [], ["x"], [[-1]], {}, {"x": 1}, DEEP, *ODD_PATHS, *ODD_NUMBERS]
odd_values = st.sampled_from(ODD) | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a tree."""
    yield path
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in below:
        yield from places(value, (*path, key))


def value_at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@st.composite
def changed_trees(draw: st.DrawFn, tree: Any) -> Any:
    """`tree` with one to three values dropped, replaced, copied elsewhere or added under another key."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        found = [path for path in places(tree) if path]
        if not found:
            return tree
        *above, last = draw(st.sampled_from(found))
        parent = value_at(tree, tuple(above))
        action = draw(st.sampled_from(["drop", "replace", "replace", "copy", "add"]))
        if action == "drop":
            del parent[last]
        elif action == "replace":
            parent[last] = copy.deepcopy(draw(odd_values))
        elif action == "copy":
            parent[last] = copy.deepcopy(value_at(tree, draw(st.sampled_from(found))))
        elif isinstance(parent, dict):
            parent[draw(st.text(max_size=6) | st.sampled_from(ODD_PATHS))] = copy.deepcopy(parent[last])
        else:
            parent.append(copy.deepcopy(parent[last]))
    return tree


@st.composite
def changed_json(draw: st.DrawFn, tree: Any) -> bytes:
    """JSON text of a changed tree; sometimes with a key that occurs twice."""
    text = json.dumps(draw(changed_trees(tree)))
    if draw(st.integers(0, 4)) == 0 and text.startswith("{"):
        key = draw(st.sampled_from(sorted(tree)))
        text = f"{{{json.dumps(key)}: {json.dumps(draw(odd_values))}, {text[1:]}"
    return text.encode()


@st.composite
def changed_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """`whole` with one to four places flipped, overwritten, cut out, inserted, doubled, or the end cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(whole)))
        stop = at + draw(st.integers(0, 16))
        action = draw(st.sampled_from(["flip", "write", "cut", "insert", "double", "end"]))
        if action == "flip" and at < len(whole):
            whole = whole[:at] + bytes([whole[at] ^ 1 << draw(st.integers(0, 7))]) + whole[at + 1 :]
        elif action == "write":
            whole = whole[:at] + draw(_ODD_BYTES) + whole[stop:]
        elif action == "cut":
            whole = whole[:at] + whole[stop:]
        elif action == "insert":
            whole = whole[:at] + draw(_ODD_BYTES) + whole[at:]
        elif action == "double":
            whole = whole[:stop] + whole[at:]
        else:
            whole = whole[:at]
    return whole


_ODD_BYTES = st.binary(max_size=12) | st.sampled_from(
    [b"\0", b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\xef\xbb\xbf", b"\r\n", b'"', b",", b"\t", b"{", b"[" * 3000, b"\x80"]
)
