"""A CPU that stands for two devices, because a function of tensors on both of them is an error on a GPU alone."""

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
MOVES = ("to", "copy_", "__setitem__")  # which take tensors of both devices


class TwoDevices(TorchFunctionMode):
    """Within this block tensors remember their device: RuntimeError for a function of tensors on both.

    `put` moves a tensor to the GPU. Results are where their arguments are; a number of the CPU goes with anything.
    """

    def put(self, tensor: Tensor) -> Tensor:
        tensor.is_on_gpu = True
        return tensor

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if function == Tensor.device.__get__:
            return CUDA if is_on_gpu(tensors[0]) else CPU
        on_gpu = [tensor for tensor in tensors if is_on_gpu(tensor)]
        if on_gpu and name not in MOVES and any(not is_on_gpu(t) and t.ndim for t in tensors):
            raise RuntimeError(f"{name} of tensors on two devices")
        named = [leaf for leaf in tree_leaves((args[1:], kwargs)) if isinstance(leaf, torch.device)]
        result = function(*_on_the_cpu(args), **_on_the_cpu(kwargs))
        if name == "to":
            result = result.view_as(result)  # torch returns the tensor itself, which must not move
            lands = CUDA in named if named else any(map(is_on_gpu, tensors[1:] or tensors))
        elif name in MOVES:
            lands = is_on_gpu(args[0])
        else:
            lands = CUDA in named or bool(on_gpu)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and lands:
                leaf.is_on_gpu = True
        return result


def is_on_gpu(tensor: Tensor) -> bool:
    return getattr(tensor, "is_on_gpu", False)


def _on_the_cpu(arguments):
    return tree_map(lambda leaf: CPU if leaf == CUDA and isinstance(leaf, torch.device) else leaf, arguments)
