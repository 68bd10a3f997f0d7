"""The linear layer of TensorLy-Torch, where it is installed."""

from importlib.util import find_spec

from torch import nn

from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.shapes import clip_ranks, factorize


def is_installed() -> bool:
    return find_spec("tltorch") is not None


def tensorly_linear(in_features: int, out_features: int, order: int, rank: int) -> nn.Module:
    """A FactorizedLinear without bias as a block tensor train of `order` cores (r_{k-1}, m_k, n_k, r_k).

    This is the library's tensor train for linear layers. All bonds have `rank`, or the most that their neighbours can
    fill. It does not have as many parameters as a train of in-modes and out-modes with the same ranks. Initial values
    are the library's. Raises ConfigError if it is not installed.
    """
    if not is_installed():
        raise ConfigError(
            "tensorly-torch was not found, but this rival is its layer; "
            "run pip install -c constraints.txt tensorly tensorly-torch"
        )
    from tltorch import FactorizedLinear

    in_modes, out_modes = factorize(in_features, order), tuple(reversed(factorize(out_features, order)))
    sizes = tuple(n * m for n, m in zip(in_modes, out_modes, strict=True))
    ranks = clip_ranks(sizes, [rank] * (order - 1))
    return FactorizedLinear(in_modes, out_modes, bias=False, factorization="blocktt", rank=ranks)
