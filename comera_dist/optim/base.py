"""The base of all optimizers: how one is built, and what it keeps of a parameter between steps.

An optimizer is one file with a subclass of `Method` and one line in `config.registry.OPTIMIZERS`. All of this is known
without torch, because a configuration is checked and a run's memory is estimated before torch is imported.
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from comera_dist.config.fields import Section
from comera_dist.config.tree import Config, Optim
from comera_dist.formats.base import Resizable
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.named import may_store
from comera_dist.models.family import kind_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

Shape = tuple[int, ...]
State = dict[str, Any]  # what a torch optimizer holds of one parameter

# What becomes of a kept tensor that is shaped like its parameter when a change of gauge or of ranks transforms that.
MEAN = "mean"  # a mean of gradients: transforms like a gradient, and new entries begin with 0
SQUARE = "square"  # a mean of squared gradients: new entries begin with the mean of the others


class Method:
    """A way to update parameters, with the settings of a configuration. It owns what it keeps of them between steps.

    `roles` names the kinds of tensors that it keeps in the shape of the parameter, and says how a change of gauge or of
    ranks transforms each; an optimizer that keeps tensors of other shapes overrides `shapes` and `tensors`. `takes`
    names the groups of `groups.GROUPS` that it updates; AdamW updates the others. `section` is the class of its own
    settings, which a configuration has as `optim.<name>`. An optimizer that `needs_whole` parameters is never given a
    slice: at ZeRO stages above 0 the parameters are dealt out, and each process steps its own.
    """

    name: ClassVar[str]
    roles: ClassVar[Mapping[str, str]]
    takes: ClassVar[tuple[str, ...]] = ()
    section: ClassVar[type[Section] | None] = None
    needs_whole: ClassVar[bool] = False
    can_be_captured: ClassVar[bool] = False  # as a CUDA graph

    def __init__(self, config: Optim):
        self.config = config

    def problems(self, config: Config) -> list[str]:
        """One sentence for each thing in the configuration that does not go together with this optimizer."""
        problems = []
        if config.train.cuda_graphs and not self.can_be_captured:
            problems.append(
                f"optim.kind = {self.name} cannot be captured; set optim.kind=adamw or train.cuda_graphs=false"
            )
        if self.takes and not any(_may_have(config, group) for group in self.takes):
            problems.append(self.nothing_to_update)
        return problems

    @property
    def nothing_to_update(self) -> str:
        """The sentence for a model that has no parameter in the groups that this optimizer takes."""
        return f"optim.kind = {self.name} updates {', '.join(self.takes)} and the model has none; set optim.kind=adamw"

    def build(self, groups: list[dict]) -> "Optimizer":
        """The torch optimizer of these parameter groups. Raises ConfigError where it is not installed."""
        raise NotImplementedError

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        """Shapes, by kind, of the tensors that it keeps of a parameter (or slice) of `shape`."""
        return dict.fromkeys(self.roles, shape)

    def numbers(self, shape: Shape) -> int:
        """How many numbers it keeps of a parameter of `shape`."""
        return sum(map(prod, self.shapes(shape).values()))

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        """What it keeps of `parameter` after `step` steps, with zeros in all tensors."""
        return {kind: parameter.new_zeros(shape) for kind, shape in self.shapes(tuple(parameter.shape)).items()}

    def tensors(self, state: State) -> dict[str, "Tensor"]:
        """The tensors of one parameter's state by kind, without its step count."""
        return {kind: state[kind] for kind in self.roles}

    def step_count(self, state: State) -> int | None:
        """Steps that a parameter's state has seen; None for an optimizer that does not count them."""
        return int(state["step"]) if "step" in state else None


class WholeMatrices(Method):
    """Base of the optimizers that update the dense matrices of transformer blocks, each matrix as a whole."""

    takes = ("matrices",)
    needs_whole = True

    @property
    def nothing_to_update(self) -> str:
        return (
            f"optim.kind = {self.name} updates the dense matrices of transformer blocks and the model has none; "
            f"store some of them as dense (e.g. model.format.mlp=dense), or set optim.kind=adamw"
        )


def _may_have(config: Config, group: str) -> bool:
    """Whether a model that `config` describes may have parameters of this group of `groups.GROUPS`."""
    if group == "matrices":
        return may_store(config, DensePlan, kind_of(config.model).block_keys)
    return group != "cores" or may_store(config, Resizable)
