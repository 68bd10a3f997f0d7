"""An optimizer that keeps its moments in bf16 and computes in fp32.

A moment changes by less than a bf16 number can show: a mean with a decay of 0.999 would stand still. So it is rounded
at random, up with a probability in proportion to how near the upper number is, and its expectation stays exact.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from comera_dist.optim.base import Group, State
from comera_dist.optim.combined import CombinedOptimizer
from comera_dist.optim.draws import integers

# Numbers of the parameters whose moments are in fp32 at a time; chosen: little beside a model, much beside a call.
AT_ONCE = 1 << 20
LOW_BITS = 16  # of an fp32 number that bf16 does not have


class RoundedStateOptimizer(CombinedOptimizer):
    """Steps parameters by its parts, as many at a time as fit AT_ONCE, and rounds their moments to bf16 afterwards.

    Random numbers follow from the group, the place and the step, so that a resumed run draws the same.
    """

    def _step(self, group: Group, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] |= group["method"].blank(parameter)
        for number, batch in enumerate(_batches(group, parameters)):
            if len(batch) == 1 and batch[0].numel() > AT_ONCE and group["method"].is_entrywise:
                self._step_in_pieces(group, batch[0], number)
            else:
                self._step_batch(group, batch, f"{group['name']} {number}")

    def _step_in_pieces(self, group: Group, parameter: nn.Parameter, number: int) -> None:
        """Steps a long parameter, such as a slice of ZeRO, piece by piece: each of its entries is stepped alone."""
        state = self.state[parameter]
        pieces = [nn.Parameter(piece) for piece in torch.split(parameter.detach().view(-1), AT_ONCE)]
        assert parameter.grad is not None
        grads, kept = torch.split(parameter.grad.view(-1), AT_ONCE), group["method"].tensors(state)
        parts = {kind: torch.split(tensor.view(-1), AT_ONCE) for kind, tensor in kept.items()}
        others = {key: value for key, value in state.items() if key not in kept}
        for index, (piece, grad) in enumerate(zip(pieces, grads, strict=True)):
            piece.grad = grad
            own: State = {key: value.clone() for key, value in others.items()}  # a count that the step advances
            self.state[piece] = own | {kind: tensors[index] for kind, tensors in parts.items()}
            self._step_batch(group, [piece], f"{group['name']} {number} {index}")
            stepped = self.state.pop(piece)
            for kind, tensors in parts.items():
                tensors[index].copy_(stepped[kind])
        for key, value in others.items():
            value.copy_(stepped[key])

    def _step_batch(self, group: Group, batch: list[nn.Parameter], place: str) -> None:
        method = group["method"]
        for parameter in batch:
            state = self.state[parameter]
            state |= {kind: tensor.float() for kind, tensor in method.tensors(state).items()}
        super()._step(group, batch)
        for index, parameter in enumerate(batch):
            state = self.state[parameter]
            for kind, tensor in method.tensors(state).items():
                state[kind] = rounded(tensor, f"{place} {index} {kind} {method.step_count(state)}")


def rounded(x: Tensor, key: str) -> Tensor:
    """x of fp32 in bf16: one of the two nearest numbers, with x as the expectation over keys."""
    noise = integers(key, 1 << LOW_BITS, x.shape, x.device)
    bits = (x.view(torch.int32) + noise) >> LOW_BITS << LOW_BITS
    return bits.view(torch.float32).where(x.isfinite(), x).bfloat16()


def _batches(group: Group, parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters that are stepped together: all gates, else whole units of the method up to AT_ONCE numbers."""
    if group["name"] == "gates":
        yield list(parameters)
        return
    units: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        units.setdefault(group["method"].unit_of(parameter), []).append(parameter)
    batch: list[nn.Parameter] = []
    held = 0
    for unit in units.values():
        numbers = sum(parameter.numel() for parameter in unit)
        if batch and held + numbers > AT_ONCE:
            yield batch
            batch, held = [], 0
        batch, held = batch + unit, held + numbers
    if batch:
        yield batch
