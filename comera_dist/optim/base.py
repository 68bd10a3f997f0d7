"""The base of all optimizers: how one is built, and which tensors it keeps of a parameter between steps.

An optimizer is one file with a subclass of `Method` and one line in `config.registry.OPTIMIZERS`. A configuration is
checked and memory is estimated before torch is imported, so these files import torch only where they build something.
"""

from collections.abc import Hashable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from comera_dist.config.fields import Section
from comera_dist.config.optim_section import Optim
from comera_dist.config.tree import Config
from comera_dist.formats.base import FP32, Resizable, Unfoldings
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.named import may_store
from comera_dist.formats.tensor_train.train_shapes import TTShape
from comera_dist.models.family import kind_of

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Shape = tuple[int, ...]
State = dict[str, Any]  # a torch optimizer's state of one parameter
Group = dict[str, Any]  # a torch optimizer's parameter group, with its `Method` under the key `method`

# Numbers of a moment in 8 bits that share a scale; chosen: a large number makes the others of its block coarse. The
# paper that `narrow_moments` follows has 2,048.
BLOCK = 256

# Size of a step of orthogonal directions in a dense matrix, in units of √(outputs / inputs), at AdamW's learning rate.
# Measured: the best for dense matrices and block trains of widths from 64 to 128 (docs/recipe.md). With AdamW's usual
# 3e-3 it is Muon's usual rate of 0.02.
RATE = 8

# Roles of kept tensors: how each is transformed together with its parameter, by a change of gauge or of ranks.
MEAN = "mean"  # a mean of gradients: transforms like a gradient, and new entries are 0
SQUARE = "square"  # a mean of squared gradients: new entries are the mean of the others


class Method:
    """A way to update parameters, with the settings of a configuration.

    Attributes of a subclass:
    roles: the role of each kind of tensor that is kept in the shape of the parameter. An optimizer that keeps tensors
        of other shapes overrides `shapes` and `tensors`; ranks cannot adapt where it does so for cores.
    takes: names of the groups in `groups.GROUPS` that it updates; AdamW updates all others.
    section: class of its own settings, which a configuration has as `optim.<name>`.
    needs_whole: at ZeRO stages above 0 each process steps some whole parameters instead of a slice of all.
    can_be_captured: its step can be part of a CUDA graph.
    can_round: its moments can be kept in bf16 or in 8 bits (`optim.moments`); it then counts steps under `step`.
    product_bytes: of each number that its products multiply on a GPU.
    is_entrywise: it updates each number of a parameter from that number's gradient alone.
    """

    name: ClassVar[str]
    roles: ClassVar[Mapping[str, str]]
    takes: ClassVar[tuple[str, ...]] = ()
    section: ClassVar[type[Section] | None] = None
    needs_whole: ClassVar[bool] = False
    can_be_captured: ClassVar[bool] = False
    can_round: ClassVar[bool] = False
    product_bytes: ClassVar[int] = FP32
    is_entrywise: ClassVar[bool] = False

    def __init__(self, config: Optim):
        self.config = config

    def problems(self, config: Config) -> list[str]:
        """One sentence for each setting of the configuration that this optimizer does not support."""
        problems = []
        if config.train.cuda_graphs and not self.can_be_captured:
            problems.append(
                f"optim.kind = {self.name} cannot be captured; set optim.kind=adamw or train.cuda_graphs=false"
            )
        if config.optim.moments != "fp32" and not self.can_round:
            problems.append(
                f"optim.kind = {self.name} keeps its state in fp32; set optim.kind=adamw, optim.kind=spectral or "
                f"optim.moments=fp32"
            )
        if config.optim.moments != "fp32" and config.train.cuda_graphs:
            problems.append(
                f"optim.moments = {config.optim.moments} makes other tensors in every step, which a CUDA graph cannot; "
                f"set optim.moments=fp32 or train.cuda_graphs=false"
            )
        if config.optim.core_rates != "equal" and {"cores", "factors"} & set(self.takes):
            problems.append(
                f"optim.core_rates = {config.optim.core_rates} has no effect on optim.kind = {self.name}, which scales "
                f"the steps of cores itself; remove it"
            )
        if config.ranks.adapt and {"gates", "fixed_gates"} & set(self.takes):
            problems.append(
                f"optim.kind = {self.name} updates gates, and ranks.adapt = true needs AdamW's steps of them; set "
                f"ranks.adapt=false or optim.kind=adamw"
            )
        if config.ranks.adapt and {"cores", "factors", "low_rank"} & set(self.takes) and self._has_other_shapes:
            problems.append(
                f"optim.kind = {self.name} keeps of cores what has not their shape, which ranks.adapt = true could not "
                f"cut; set ranks.adapt=false or optim.kind=adamw"
            )
        if self.takes and not any(_may_have(config, group) for group in self.takes):
            problems.append(self.nothing_to_update)
        return problems

    @property
    def _has_other_shapes(self) -> bool:
        return type(self).shapes is not Method.shapes or type(self).tensors is not Method.tensors

    @property
    def nothing_to_update(self) -> str:
        """The error for a model without a parameter in the groups that this optimizer takes."""
        return f"optim.kind = {self.name} updates {', '.join(self.takes)} and the model has none; set optim.kind=adamw"

    def prepare(self, model: "nn.Module") -> None:
        """Called with the model before `build`, for an optimizer that must know the layers of its parameters."""

    def build(self, groups: list[Group]) -> "Optimizer":
        """The torch optimizer of these parameter groups. Raises ConfigError if its package is not installed."""
        raise NotImplementedError

    def unit_of(self, parameter: "nn.Parameter") -> Hashable:
        """Key of the parameters that the same process must step, if it `needs_whole` ones: those of its layer, or each
        alone by default.
        """
        return parameter

    @property
    def owns_layers(self) -> bool:
        """Whether `unit_of` gives all parameters of a layer one owner; an estimate has no parameters to ask it of."""
        return type(self).unit_of is not Method.unit_of

    def stand_in(self, whole: "nn.Parameter", parameter: "nn.Parameter") -> None:
        """Called at ZeRO stages above 0 for each whole parameter that it will step in place of a model's parameter."""

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """FLOPs of matrix products in a step of a batch of whole matrices; work entry by entry does not count."""
        return 0

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        """Shapes, by kind, of the tensors that it keeps of a parameter (or slice) of `shape`."""
        return dict.fromkeys(self.roles, shape)

    def shapes_after(self, step: int, parameter: "Tensor", shape: Shape) -> dict[str, Shape]:
        """`shapes` after `step` steps of the parameter of `shape`, for an optimizer that changes them during a run."""
        return self.shapes(shape)

    def numbers(self, shape: Shape) -> int:
        """How many numbers it keeps of a parameter of `shape`."""
        return sum(map(prod, self.shapes(shape).values()))

    def numbers_in(self, steps: int, shapes: Mapping[str, Shape]) -> Iterator[dict[str, int]]:
        """How many numbers it keeps of each parameter: one dictionary, or one for each part of a run of `steps` steps.

        `shapes` has the parameters by name; a matrix has the name of its layer.
        """
        yield {name: self.numbers(shape) for name, shape in shapes.items()}

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        """The state of `parameter` after `step` steps, with zeros in all tensors."""
        shapes = self.shapes_after(step, parameter, tuple(parameter.shape))
        if not self.can_round or self.config.moments == "fp32":  # the method of a caller's optimizer has no settings
            return {kind: parameter.new_zeros(shape) for kind, shape in shapes.items()}
        from comera_dist.optim.narrow_moments import blank

        state: State = {}
        for kind, shape in shapes.items():
            state |= blank(shape, self.config.moments, kind, self.roles[kind], parameter.device)
        return state

    def tensors(self, state: State) -> dict[str, "Tensor"]:
        """The tensors of one parameter's state by kind, without its step count; those in 8 bits are decoded copies."""
        if not self.can_round:
            return {kind: state[kind] for kind in self.roles}
        from comera_dist.optim.narrow_moments import moment

        return {kind: moment(state, kind, role) for kind, role in self.roles.items()}

    def step_count(self, state: State) -> int | None:
        """Steps that a parameter's state has seen; None if the optimizer does not count them."""
        return int(state["step"]) if "step" in state else None


def newton_schulz_flops(matrices: int, rows: int, columns: int) -> int:
    """Five iterations X ← aX + (bA + cA²)X with A = XXᵀ of the shorter side (Jordan et al. 2024)."""
    short, long = sorted((rows, columns))
    return 5 * matrices * (4 * short * short * long + 2 * short**3)


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
    if group == "factors":
        return may_store(config, Unfoldings, kind_of(config.model).block_keys)
    if group == "low_rank":
        return may_store(config, TTShape, kind_of(config.model).block_keys)
    return group != "cores" or may_store(config, Resizable)
