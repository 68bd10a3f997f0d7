"""Transformer blocks whose activations may be computed again in the backward pass (activation checkpointing).

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174). A recomputation repeats the
forward pass bit for bit, with the same random numbers, autocast and merged sides. So gradients are the same bits.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from comera_dist.formats.tensor_train.linear import Merged, merged_in, using_sides
from comera_dist.ops.products import are_fp8, fp8_products

aten = torch.ops.aten
# Which operand of a product is its left factor.
PRODUCTS = {aten.mm.default: 0, aten.bmm.default: 0, aten.addmm.default: 1, aten._scaled_mm.default: 0}
ATTENTION = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}
# Numbers that a product sums over for its result to be kept: dense layers keep their results, tensor trains and
# low-rank layers their narrow ones alone. docs/design.md has the measurement of this choice.
LEAST_SUM = 128


class CheckpointedBlock(nn.Module, ABC):
    """A block whose forward pass is `compute`, which the backward pass repeats as `activation_checkpointing` says.

    none: everything that the backward pass needs is kept. block: only the inputs are kept. selective: besides them
    attention and the results of products that sum over at least LEAST_SUM numbers are kept.
    """

    activation_checkpointing = "none"

    @abstractmethod
    def compute(self, *inputs: Any) -> Tensor:
        """The output of the block. `inputs` are tensors or constants."""

    def forward(self, *inputs: Any) -> Tensor:
        if self.activation_checkpointing == "none" or not torch.is_grad_enabled():
            return self.compute(*inputs)
        run = partial(self._again, merged_in(self), are_fp8())
        options: dict[str, Any] = {}
        if self.activation_checkpointing == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
        output: Tensor = checkpoint(run, *inputs, use_reentrant=False, **options)
        return output

    def _again(self, merged: Merged, in_fp8: bool, *inputs: Any) -> Tensor:
        # `merged_together` and `fp8_products` have ended when a block is recomputed, and sides that are merged alone
        # may round otherwise.
        with using_sides(merged), fp8_products(in_fp8):
            return self.compute(*inputs)


def checkpoint_blocks(model: nn.Module, activation_checkpointing: str) -> bool:
    """Sets what the blocks of `model` recompute; returns whether it has any."""
    blocks = [module for module in model.modules() if isinstance(module, CheckpointedBlock)]
    for block in blocks:
        block.activation_checkpointing = activation_checkpointing
    return bool(blocks)


def _policy(context: Any, operation: Any, *operands: Any, **options: Any) -> CheckpointPolicy:
    """Keeps results that take many FLOPs for each number: products with long sums, and attention."""
    if operation in PRODUCTS:
        keeps = operands[PRODUCTS[operation]].shape[-1] >= LEAST_SUM
    else:
        # A kept dropout would draw no random numbers in the recomputation, so that later ones would draw these.
        keeps = operation in ATTENTION and not _drops(operation, operands, options)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _drops(operation: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether an attention has dropout."""
    names = [argument.name for argument in operation._schema.arguments]
    given = dict(zip(names, operands, strict=False)) | options
    return bool(given.get("dropout_p"))
