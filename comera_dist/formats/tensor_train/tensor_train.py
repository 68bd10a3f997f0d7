"""What linear layers and embeddings have in common: cores and gates as parameters of the module itself.

Shapes: core k is (r_{k-1}, *modes_k, r_k), gate k is (r_k,).
"""

import torch
from torch import Tensor, nn

from comera_dist.formats.tensor_train.gates import gate_cores, gate_name, open_gates
from comera_dist.formats.tensor_train.train_shapes import TTMShape, TTShape


class TensorTrain(nn.Module):
    """A module with parameters core_1 … core_K and gate_1 … gate_{K-1}.

    They are registered one by one, not in a ParameterList: ZeRO-3 gathers the parameters of the module whose
    forward runs, and a list has no forward.
    """

    def __init__(self, shape: TTShape | TTMShape, cores: list[Tensor], device, dtype: torch.dtype):
        super().__init__()
        self.plan = self.shape = shape
        for index, core in enumerate(cores, start=1):
            # A copy, because "contiguous" allows any stride beside a size of 1, and DeepSpeed views cores as bytes.
            core = core.to(device, dtype).clone(memory_format=torch.contiguous_format)
            self.register_parameter(f"core_{index}", nn.Parameter(core))
        for bond, gate in enumerate(open_gates(shape.bonds, device, dtype), start=1):
            self.register_parameter(gate_name(bond), nn.Parameter(gate))

    @property
    def cores(self) -> list[nn.Parameter]:
        return [getattr(self, f"core_{k}") for k in range(1, len(self.shape.ranks))]

    @property
    def gates(self) -> list[nn.Parameter]:
        return [getattr(self, gate_name(k)) for k in range(1, len(self.shape.ranks) - 1)]

    @property
    def flops_per_token(self) -> int:
        """Forward FLOPs of one token, without merging the cores, which is done once per forward pass."""
        return self.shape.flops_per_token

    def gated_cores(self) -> list[Tensor]:
        return gate_cores(self.cores, self.gates)
