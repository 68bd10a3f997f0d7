"""Weights and what the optimizer keeps of them, into and out of every ZeRO stage, as whole tensors by parameter.

The optimizer's own description (`optim.base.Method`) says what it keeps. Shapes: P processes, L numbers of a slice.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.optim.adamw import AdamW
from comera_dist.optim.base import Shape, State
from comera_dist.runtime.dealt_parameters import DealtParameters
from comera_dist.runtime.sharing import deal_out
from comera_dist.runtime.zero_state import Part, parts, set_copy, whole_shape, whole_size


class OptimizerState:
    """The state of one engine. DeepSpeed's optimizer is `zero`, which calls `inner`; at stage 0 they are the same.

    Where an optimizer needs whole parameters and the stage keeps slices, the parameters are dealt out to processes.
    """

    def __init__(self, zero: Any, inner: Optimizer, stage: int):
        self._stage, self._inner, self.parts = stage, inner, parts(zero, stage)
        self._hands = self._deal() if stage else {}
        self._home = {id(p): (k, n) for k, part in enumerate(self.parts) for n, p in enumerate(part.members)}

    def _deal(self) -> dict[int, DealtParameters]:
        """The hand of each part, by its number, whose optimizer needs whole parameters."""
        dealt = {k: part for k, part in enumerate(self.parts) if part.method.needs_whole}
        sizes = {(k, n): whole_size(p) for k, part in dealt.items() for n, p in enumerate(part.members)}
        owners = deal_out(sizes, dist.get_world_size())
        hands = {k: DealtParameters(p, [owners[k, n] for n in range(len(p.members))]) for k, p in dealt.items()}
        for k, hand in hands.items():
            self._inner.hands[dealt[k].master] = hand
        return hands

    def kept_shapes(self, parameter: nn.Parameter) -> dict[str, Shape]:
        """Shapes by kind of what the optimizer keeps of the whole parameter."""
        return self._part_of(parameter).method.shapes(tuple(whole_shape(parameter)))

    def gather(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        """Whole fp32 tensors by parameter and kind: `weight` and the kinds that the optimizer keeps. Collective.

        One collective for each part and kind, or for each part and process where parameters are dealt out.
        """
        for k, part in enumerate(self.parts):
            yield from self._gather_slices(part, "weight", part.master.detach())
            if k in self._hands:
                yield from self._gather_dealt(part, self._hands[k])
                continue
            for kind, tensor in part.method.tensors(self._state(part.master)).items():
                yield from self._gather_slices(part, kind, tensor)

    def _gather_slices(self, part: Part, kind: str, mine: Tensor) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        if not self._stage:
            yield part.members[0], kind, mine
            return
        all_PL = mine.new_empty(len(part.pieces), mine.numel())
        dist.all_gather_into_tensor(all_PL.view(-1), mine.contiguous())
        for number, parameter in enumerate(part.members):
            held = [(p, pieces[number]) for p, pieces in enumerate(part.pieces) if number in pieces]
            whole = torch.cat([all_PL[p, piece.place : piece.place + piece.size] for p, piece in held])
            yield parameter, kind, whole.view(whole_shape(parameter))

    def _gather_dealt(self, part: Part, hand: DealtParameters) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        for process in range(dist.get_world_size()):
            members = [part.members[number] for number in hand.owned_by(process)]
            wanted = [(p, kind, shape) for p in members for kind, shape in self.kept_shapes(p).items()]
            sizes = [prod(shape) for _, _, shape in wanted]
            flat = part.master.new_empty(sum(sizes))
            if process == dist.get_rank() and wanted:
                kept = [part.method.tensors(self._state(owned)) for owned in hand.owned.values()]
                flat = torch.cat([tensors[kind].flatten() for tensors in kept for kind in tensors])
            dist.broadcast(flat, src=process)
            for (parameter, kind, shape), values in zip(wanted, flat.split(sizes), strict=True):
                yield parameter, kind, values.view(shape)

    def stepped(self) -> Iterator[tuple[Part, Tensor]]:
        """What the optimizer of this process updates: the keys of its state."""
        for k, part in enumerate(self.parts):
            yield from ((part, p) for p in (self._hands[k].owned.values() if k in self._hands else [part.master]))

    def seed(self, step: int, gate_step: int) -> None:
        """Gives a new optimizer the empty state that it has after `step` steps, ready for `set_kept`.

        `gate_step` is the count of the group `gates`.
        """
        for part, parameter in self.stepped():
            count = gate_step if part.group["name"] == "gates" else step
            self._inner.state[parameter] = part.method.blank(parameter, count)

    def set_kept(self, parameter: nn.Parameter, tensors: dict[str, Tensor]) -> None:
        """Writes what this process holds of what the optimizer keeps of one parameter; `tensors` are whole."""
        k, number = self._home[id(parameter)]
        part, hand = self.parts[k], self._hands.get(k)
        if hand is not None or not self._stage:
            whole = part.master if hand is None else hand.owned.get(number)
            for kind, held in part.method.tensors(self._state(whole)).items() if whole is not None else ():
                held.copy_(tensors[kind])
            return
        for kind, held in part.method.tensors(self._state(part.master)).items():
            _write_piece(part, number, held, tensors[kind])

    def set_weight(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """Writes one parameter: what the optimizer updates and what the next forward reads."""
        k, number = self._home[id(parameter)]
        if self._stage:
            _write_piece(self.parts[k], number, self.parts[k].master.detach(), whole)
        set_copy(parameter, whole.to(parameter.device))

    def step_count(self) -> int:
        """Steps that AdamW (or GaLore) has made, for its bias correction; gates have a count of their own."""
        return next(self._counts(of_gates=False), 0)

    def gate_step_count(self) -> int:
        """How many steps the group `gates` has made since `restart_gates`; `step_count` where it is empty."""
        return next(self._counts(of_gates=True), self.step_count())

    def restart_gates(self) -> None:
        """Sets the step count of the group `gates` to 0."""
        for part in self.parts:
            if part.group["name"] == "gates":
                assert isinstance(part.method, AdamW)
                part.method.restart(self._state(part.master))

    def held(self, parameters: list[nn.Parameter]) -> tuple[list[Tensor], Tensor]:
        """What the optimizer updates of these parameters on this process, and where it lies on the flat vector of all.

        The parameters are all that some parts hold. Places beyond the end are padding.
        """
        sizes = [whole_size(parameter) for parameter in parameters]
        places = dict(zip(map(id, parameters), torch.arange(sum(sizes)).split(sizes), strict=True))
        own = [part for part in self.parts if id(part.members[0]) in places]
        index = [torch.full((part.master.numel(),), torch.iinfo(torch.int64).max) for part in own]
        for part, index_L in zip(own, index, strict=True):
            for number in part.mine:
                _write_piece(part, number, index_L, places[id(part.members[number])])
        return [part.master for part in own], torch.cat([torch.zeros(0, dtype=torch.int64), *index])

    def _part_of(self, parameter: nn.Parameter) -> Part:
        return self.parts[self._home[id(parameter)][0]]

    def _state(self, parameter: Tensor) -> State:
        # Nothing is there of an optimizer that keeps nothing.
        return self._inner.state.get(parameter, {})

    def _counts(self, of_gates: bool) -> Iterator[int]:
        """Step counts of the group `gates`, or of all other groups."""
        for part, parameter in self.stepped():
            count = part.method.step_count(self._inner.state.get(parameter, {}))
            if (part.group["name"] == "gates") == of_gates and count is not None:
                yield count


def _write_piece(part: Part, number: int, held_L: Tensor, whole: Tensor) -> None:
    """Copies this process's piece of the member `number` from the whole tensor to a tensor that lies as the master."""
    piece = part.mine.get(number)
    if piece is not None:
        held_L.view(-1)[piece.place : piece.place + piece.size] = whole.flatten()[
            piece.start : piece.start + piece.size
        ]
