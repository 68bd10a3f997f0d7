"""Planners whose results are kept."""

from dataclasses import dataclass

from comera_dist.formats.planned import planned


@dataclass(frozen=True)
class Size:
    rows: int
    modes: tuple[int, ...] = (2, 3)


@dataclass(frozen=True)
class OtherSize(Size):
    pass


def test_equal_arguments_are_planned_once_and_others_by_themselves():
    calls = []

    @planned
    def plan(size, tokens):
        calls.append((size, tokens))
        return type(size).__name__, size.rows * tokens

    assert [plan(Size(3), 2), plan(Size(3), 2), plan(OtherSize(3), 2), plan(Size(3), 4)] == [
        ("Size", 6),
        ("Size", 6),
        ("OtherSize", 6),
        ("Size", 12),
    ]
    assert calls == [(Size(3), 2), (OtherSize(3), 2), (Size(3), 4)]
