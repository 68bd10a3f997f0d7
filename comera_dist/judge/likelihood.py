"""Log-likelihoods of the ends of token sequences, many sequences at once.

Shapes: B sequences of a batch, S tokens of the longest one, C tokens of an end, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from comera_dist.errors import TrainingError
from comera_dist.runtime.forward import compute_precision

LOGITS = 2**24  # chosen: logits that live at once, 64 MiB in fp32


class Ending(NamedTuple):
    """Token ids, of which the last `length` are judged, each by all ids before it."""

    ids: list[int]
    length: int


class Likelihood(NamedTuple):
    """The sum of log-probabilities in nats, and whether each token is the most probable one."""

    nats: float
    is_greedy: bool


@torch.no_grad()
def likelihoods(model: nn.Module, endings: Sequence[Ending], vocab_size: int, precision: str) -> list[Likelihood]:
    """The likelihood of each ending by a decoder, in the order of `endings`; products are computed in `precision`.

    Raises TrainingError if the model has diverged.
    """
    found: dict[int, Likelihood] = {}
    for chosen in batches_by_length([len(ending.ids) for ending in endings], vocab_size):
        batch = [endings[index] for index in chosen]
        found |= zip(chosen, _of_batch(model, batch, precision), strict=True)
    return [found[index] for index in range(len(endings))]


def batches_by_length(lengths: Sequence[int], vocab_size: int) -> Iterator[list[int]]:
    """The indices of sequences from the longest to the shortest, as many at once as LOGITS allows, and at least one."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    first = 0
    while first < len(order):
        size = max(1, LOGITS // (lengths[order[first]] * vocab_size))
        yield order[first : first + size]
        first += size


def _of_batch(model: nn.Module, batch: Sequence[Ending], precision: str) -> Iterator[Likelihood]:
    device = next(model.parameters()).device
    # Padding comes after the tokens, and attention is causal, so no token sees it.
    inputs_BS = pad_sequence([torch.tensor(ending.ids[:-1]) for ending in batch], batch_first=True)
    with compute_precision(device, precision):
        logits_BSV = model(inputs_BS.to(device))
    for logits_SV, ending in zip(logits_BSV, batch, strict=True):
        last = len(ending.ids) - 1
        yield _of_ending(logits_SV[last - ending.length : last], ending.ids[-ending.length :])


def _of_ending(logits_CV: Tensor, ids: list[int]) -> Likelihood:
    target_C = torch.tensor(ids, device=logits_CV.device)
    nats_C = logits_CV.float().log_softmax(-1).gather(1, target_C[:, None])
    if not bool(nats_C.isfinite().all()):
        raise TrainingError("a log-likelihood is not finite, because the weights have diverged; name another --step")
    return Likelihood(float(nats_C.double().sum()), bool((logits_CV.argmax(-1) == target_C).all()))
