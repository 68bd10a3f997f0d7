"""Reads and writes weights and optimizer state at every ZeRO stage, as whole tensors by parameter.

The optimizer's description (`optim.base.Method`) says which tensors it keeps. "Collective": every process must call the
function. Shapes: P processes, L numbers of a slice.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.errors import ConfigError
from comera_dist.optim.adamw import AdamW
from comera_dist.optim.base import Shape, State
from comera_dist.optim.combined import CombinedOptimizer
from comera_dist.optim.narrow_moments import SCALE, narrow, widen
from comera_dist.runtime.dealt_parameters import DealtParameters
from comera_dist.runtime.sharing import deal_out
from comera_dist.runtime.zero_state import Part, ZeroOptimizer, parts, set_copy, whole_shape


class OptimizerState:
    """The state of one engine. DeepSpeed's optimizer is `zero`, which calls `inner`; at stage 0 they are the same.

    If an optimizer needs whole parameters and the stage keeps slices, the parameters are dealt out to processes.
    """

    def __init__(self, zero: ZeroOptimizer, inner: Optimizer, stage: int):
        self._stage, self._inner, self.parts = stage, inner, parts(zero, stage)
        self.home = {p: (part, number) for part in self.parts for number, p in enumerate(part.members)}
        self._widened: list[tuple[Part, State]] = []
        self._dealt: dict[Part, DealtParameters] = {}
        if stage and isinstance(inner, CombinedOptimizer):
            whole = [part for part in self.parts if part.method.needs_whole]
            units = {p: part.method.unit_of(p) for part in whole for p in part.members}
            _check_together(whole, units)
            sizes: Counter[Hashable] = Counter()
            for p, unit in units.items():
                sizes[unit] += whole_shape(p).numel()
            owners = deal_out(sizes, dist.get_world_size())
            self._dealt = {part: DealtParameters(part, [owners[units[p]] for p in part.members]) for part in whole}
            for part, dealt in self._dealt.items():
                for number, parameter in dealt.owned.items():
                    part.method.stand_in(parameter, part.members[number])
            inner.dealt |= {part.master: dealt for part, dealt in self._dealt.items()}

    def kept_shapes(self, parameter: nn.Parameter, step: int) -> dict[str, Shape]:
        """Shapes by kind of the tensors that the optimizer keeps of the whole parameter after `step` steps."""
        return self.home[parameter][0].method.shapes_after(step, parameter, tuple(whole_shape(parameter)))

    def gather(self) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        """Whole fp32 tensors by parameter and kind: `weight` and the kinds that the optimizer keeps. Collective.

        One collective for each part and kind, or for each part and process where parameters are dealt out.
        """
        for part in self.parts:
            yield from self._gather_slices(part, "weight", part.master.detach())
            if part in self._dealt:
                yield from self._gather_dealt(part, self._dealt[part])
            else:
                for kind, tensor in self._kept(part, part.master).items():
                    yield from self._gather_slices(part, kind, tensor.float())

    def _gather_slices(self, part: Part, kind: str, mine: Tensor) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        if not self._stage:
            yield part.members[0], kind, mine
            return
        # Not by DeepSpeed's safe_get_full_*: at stages 1 and 2 it finds the optimizer's state of the first group only.
        all_PL = mine.new_empty(len(part.pieces), mine.numel())
        dist.all_gather_into_tensor(all_PL.view(-1), mine.contiguous())
        for number, parameter in enumerate(part.members):
            held = zip(part.pieces, all_PL, strict=True)
            whole = torch.cat([pieces[number].of_master(own_L) for pieces, own_L in held if number in pieces])
            yield parameter, kind, whole.view(whole_shape(parameter))

    def _gather_dealt(self, part: Part, dealt: DealtParameters) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
        step = self.step_count()
        for process in range(dist.get_world_size()):
            members = [part.members[number] for number in dealt.owned_by(process)]
            wanted = [(p, kind, shape) for p in members for kind, shape in self.kept_shapes(p, step).items()]
            sizes = [prod(shape) for _, _, shape in wanted]
            flat = part.master.new_empty(sum(sizes))
            if process == dist.get_rank() and wanted:
                kept = [self._kept(part, owned) for owned in dealt.owned.values()]
                flat = torch.cat([tensor.flatten().float() for tensors in kept for tensor in tensors.values()])
            dist.broadcast(flat, src=process)
            for (parameter, kind, shape), values in zip(wanted, torch.split(flat, sizes), strict=True):
                yield parameter, kind, values.view(shape)

    def stepped(self) -> Iterator[tuple[Part, Tensor]]:
        """The tensors that the optimizer of this process updates, which are the keys of its state."""
        for part in self.parts:
            yield from ((part, p) for p in (self._dealt[part].owned.values() if part in self._dealt else [part.master]))

    def seed(self, step: int, gate_step: int) -> None:
        """Gives a new optimizer the blank state that it has after `step` steps, ready for `set_kept`.

        `gate_step` is the count of the group `gates`. DeepSpeed makes no state before the first step.
        """
        for part, parameter in self.stepped():
            count = gate_step if part.group["name"] == "gates" else step
            self._inner.state[parameter] = part.method.blank(parameter, count)

    @contextmanager
    def in_fp32(self) -> Iterator[None]:
        """Within this block `set_kept` writes; moments in 8 bits are in fp32 from their first write to its end.

        Numbers that share a scale may belong to several parameters, so they are encoded after all are written.
        """
        yield
        for part, state in self._widened:
            narrow(state, part.method.roles, part.method.config.moments, "")
        self._widened.clear()

    def set_kept(self, parameter: nn.Parameter, tensors: dict[str, Tensor]) -> None:
        """Writes this process's share of the state of one parameter; `tensors` are whole, by kind."""
        part, number = self.home[parameter]
        is_sliced = self._stage > 0 and part not in self._dealt
        stepped = self._dealt[part].owned.get(number) if part in self._dealt else part.master
        if stepped is None:
            return  # another process owns it
        state = self._state(stepped)
        if any(key.endswith(SCALE) for key in state):
            widen(state, part.method.roles)
            self._widened.append((part, state))
        for kind, held in part.method.tensors(state).items():
            if is_sliced:
                part.write(number, held, tensors[kind])
            else:
                held.copy_(tensors[kind])

    def set_weight(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """Writes one parameter: the master and the copy that the next forward reads."""
        part, number = self.home[parameter]
        if self._stage:
            part.write(number, part.master.detach(), whole)
        set_copy(parameter, whole.to(parameter.device))

    def step_count(self, of_gates: bool = False) -> int:
        """Steps that AdamW (or GaLore) has made, for its bias correction, in all groups but `gates`.

        With `of_gates` the steps of the group `gates` since `restart_gates`; if it is empty, those of the others.
        """
        for part, parameter in self.stepped():
            count = part.method.step_count(self._state(parameter))
            if count is not None and of_gates == (part.group["name"] == "gates"):
                return count
        return self.step_count() if of_gates else 0

    def restart_gates(self) -> None:
        """Sets the step count of the group `gates` to 0."""
        for part in self.parts:
            if part.group["name"] == "gates":
                assert isinstance(part.method, AdamW)
                part.method.restart(self._state(part.master))

    def _kept(self, part: Part, stepped: Tensor) -> State:
        """The tensors that the optimizer keeps of a tensor that it updates; blank ones before its first step."""
        return part.method.tensors(self._state(stepped) or part.method.blank(stepped))

    def _state(self, parameter: Tensor) -> State:
        # An optimizer that keeps nothing has no entry.
        state: State = self._inner.state.get(parameter, {})
        return state


def _check_together(parts: list[Part], units: dict[nn.Parameter, Hashable]) -> None:
    """ConfigError if stage 3 steps parameters of one unit apart."""
    found: dict[Hashable, Part] = {}
    for part in parts:
        for parameter in part.members:
            if found.setdefault(units[parameter], part) is not part:
                raise ConfigError(
                    f"deepspeed.zero_optimization.sub_group_size separates parameters of {units[parameter]} that "
                    f"optim.kind = {part.method.name} must update together; raise it"
                )
