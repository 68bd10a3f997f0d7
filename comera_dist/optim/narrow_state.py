"""An optimizer that keeps its moments in bf16 or in 8 bits and computes in fp32."""

from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import nn

from comera_dist.errors import ConfigError
from comera_dist.optim.at_once import in_batches
from comera_dist.optim.base import BLOCK, Group, State
from comera_dist.optim.combined import CombinedOptimizer
from comera_dist.optim.narrow_moments import SCALE, narrow, widen

# Numbers of the parameters whose moments are in fp32 at a time; chosen: little beside a model, much beside a call.
AT_ONCE = 1 << 20


class NarrowStateOptimizer(CombinedOptimizer):
    """Steps parameters by its parts, as many at a time as fit AT_ONCE, and narrows their moments afterwards.

    Random numbers follow from the group, the place and the step, so that a resumed run draws the same. Parameters that
    no gradient has reached, as frozen ones, are left as they are.
    """

    def _step(self, group: Group, parameters: list[nn.Parameter]) -> None:
        for number, batch in enumerate(_batches(group, parameters)):
            if all(parameter.grad is None for parameter in batch):
                continue
            for parameter in batch:
                if not self.state[parameter]:
                    self.state[parameter] |= group["method"].blank(parameter)
            # One with gaps or turned axes, as of a caller's own model, has no pieces in a row.
            has_pieces = len(batch) == 1 and batch[0].numel() > AT_ONCE and batch[0].is_contiguous()
            if has_pieces and group["method"].is_entrywise:
                self._step_in_pieces(group, batch[0], number)
            else:
                self._step_batch(group, batch, f"{group['name']} {number}")

    def _step_in_pieces(self, group: Group, parameter: nn.Parameter, number: int) -> None:
        """Steps a long parameter, such as a slice of ZeRO, piece by piece: each of its entries is stepped alone."""
        state, size = self.state[parameter], -(-AT_ONCE // BLOCK) * BLOCK
        pieces = [nn.Parameter(piece) for piece in torch.split(parameter.detach().view(-1), size)]
        assert parameter.grad is not None
        grads = torch.split(parameter.grad.reshape(-1), size)
        parts = {
            key: torch.split(kept.view(-1), size // BLOCK if key.endswith(SCALE) else size)
            for key, kept in state.items()
            if key.removesuffix(SCALE) in group["method"].roles
        }
        others = {key: value for key, value in state.items() if key not in parts}
        for index, (piece, grad) in enumerate(zip(pieces, grads, strict=True)):
            piece.grad = grad
            own: State = {key: value.clone() for key, value in others.items()}  # a count that the step advances
            self.state[piece] = own | {key: tensors[index] for key, tensors in parts.items()}
            self._step_batch(group, [piece], f"{group['name']} {number} {index}")
            stepped = self.state.pop(piece)
            for key, tensors in parts.items():
                tensors[index].copy_(stepped[key])
        for key, value in others.items():
            value.copy_(stepped[key])

    def _step_batch(self, group: Group, batch: list[nn.Parameter], place: str) -> None:
        method = group["method"]
        for parameter in batch:
            widen(self.state[parameter], method.roles)
        super()._step(group, batch)
        for index, parameter in enumerate(batch):
            state = self.state[parameter]
            step = method.step_count(state)
            if step is None:
                raise ConfigError(
                    f"optim.kind = {method.name} keeps moments in {method.config.moments} and no `step` in its state, "
                    f"so all steps would be rounded alike; count the steps there, or set optim.moments=fp32"
                )
            narrow(state, method.roles, method.config.moments, f"{place} {index} {step}")


def _batches(group: Group, parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters that are stepped together: all gates, else whole units of the method up to AT_ONCE numbers."""
    if group["name"] == "gates":
        yield list(parameters)
        return
    units: dict[Hashable, list[nn.Parameter]] = {}
    for parameter in parameters:
        units.setdefault(group["method"].unit_of(parameter), []).append(parameter)
    sizes = {unit: sum(parameter.numel() for parameter in members) for unit, members in units.items()}
    for batch in in_batches(sizes, AT_ONCE):
        yield [parameter for unit in batch for parameter in units[unit]]
