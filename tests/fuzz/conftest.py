"""A limit for inputs that hang where Python cannot interrupt them, and the table of the inputs that were tried."""

from pathlib import Path

import pytest
from inputs import TOTAL, tried

HERE = Path(__file__).parent
LIMIT = 1800 if TOTAL else 300  # seconds of a test


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            # The usual method needs Python to run, which a loop in a library's C code prevents.
            item.add_marker(pytest.mark.timeout(LIMIT, method="thread"))


def pytest_terminal_summary(terminalreporter):
    if not TOTAL:
        return
    ends = ("accepted", "refused")
    kinds = sorted({kind for kind, _ in tried})
    rows = [(kind, *(tried[kind, end] for end in ends)) for kind in kinds]
    rows.append(("all", *(sum(row[column] for row in rows) for column in (1, 2))))
    terminalreporter.section("inputs that were tried")
    terminalreporter.line(f"{'kind':44} {'tried':>7} {'accepted':>9} {'refused':>8}")
    for kind, accepted, refused in rows:
        terminalreporter.line(f"{kind:44} {accepted + refused:7} {accepted:9} {refused:8}")
