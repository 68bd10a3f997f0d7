"""One decision over all layers: which ranks a number of stored numbers affords."""

from collections.abc import Mapping

from comera_dist.compress.candidate import Candidate


def choose_ranks(candidates: Mapping[str, Candidate], numbers: int) -> dict[str, int | None]:
    """The rank of each layer, None if it stays dense, so that all together store at most `numbers` numbers.

    Ranks are bought in the order of the error that they remove for each stored number. As each further rank of a layer
    removes less, this is the best choice but for what the last rank leaves over.
    """
    ranks, left = dict.fromkeys(candidates, 0), numbers
    for _, name in sorted(_offers(candidates), reverse=True):
        candidate, rank = candidates[name], ranks[name]
        price = candidate.numbers(rank + 1) - candidate.numbers(rank)
        if price <= left:
            ranks[name], left = rank + 1, left - price
    return {name: None if _is_dense(candidates[name], rank) else rank for name, rank in ranks.items()}


def _offers(candidates: Mapping[str, Candidate]) -> list[tuple[float, str]]:
    """The gain for each number of every rank of every layer, and the layer's name."""
    return [
        (gain / candidate.numbers(1), name)
        for name, candidate in candidates.items()
        for rank, gain in enumerate(candidate.gains)
        if not _is_dense(candidate, rank)
    ]


def _is_dense(candidate: Candidate, rank: int) -> bool:
    return candidate.numbers(rank) == candidate.dense_numbers
