"""The keys of `optim`: the optimizer, and the learning rates of the kinds of parameters."""

from typing import Annotated, Literal

from pydantic import Field

from comera_dist.config.fields import NameIn, NonNegativeFloat, Number, PositiveFloat
from comera_dist.config.own_sections import ChoosingSection
from comera_dist.config.registry import OPTIMIZERS

Decay = Annotated[float, Number, Field(ge=0.0, lt=1.0)]  # of a running mean, which would never change at 1


class Optim(ChoosingSection):
    """The optimizer and its settings. Spectral descent updates the dense matrices of the blocks and the cores of other
    linear layers in blocks, LORO the low-rank layers of the blocks, all others but AdamW the dense matrices alone, and
    AdamW everything else.

    One `lr` suits all: Muon's update has the same root mean square as AdamW's, and the size of spectral steps is
    measured for dense matrices. Settings of a single optimizer are in the section of its name, such as `optim.galore`.
    """

    registry = OPTIMIZERS
    kind: Annotated[str, NameIn(OPTIMIZERS)] = "adamw"
    """Optimizer of the blocks' matrices; AdamW updates all other parameters."""
    lr: PositiveFloat = 3e-3
    """Highest learning rate of the schedule; the default is chosen for the quickstart."""
    matrix_lr_scale: PositiveFloat = 1.0
    """Learning rate of the parameters that `optim.kind` updates instead of AdamW, as a multiple of `optim.lr`."""
    table_lr_scale: PositiveFloat = 1.0
    """Learning rate of embedding tables, but not of a narrow table's projection, as a multiple of `optim.lr`."""
    head_lr_scale: PositiveFloat = 1.0
    """Learning rate of an output layer `lm_head` that is not tied to the table, as a multiple of `optim.lr`."""
    core_lr_scale: PositiveFloat = 1.0
    """Learning rate of cores as a multiple of `optim.lr`."""
    core_rates: Literal["equal", "fan_in"] = "equal"
    """Whether AdamW steps all cores at one rate, or each core of a block by the number of inputs that it sums over."""
    gate_lr_scale: PositiveFloat = 1.0
    """Learning rate of rank gates as a multiple of `optim.lr`."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay rates of AdamW's first and second moments; the defaults are GPT-3's."""
    eps: PositiveFloat = 1e-8
    """Number that AdamW adds to the root of the second moments; the default is torch's."""
    moments: Literal["fp32", "bf16", "8bit"] = "fp32"
    """Numbers in which AdamW and spectral descent keep means of gradients and of their squares between steps, which
    compute in fp32; bf16 rounds at random, and 8bit is block-wise dynamic quantization."""
    weight_decay: NonNegativeFloat = 0.1
    """Decoupled weight decay of matrices, tables and cores, not of gates, norms and biases; the default is GPT-3's."""
