"""A decoder that steps on random tokens through the trainer's engine.

Import it after `start_processes`: it imports DeepSpeed, which reads the accelerator that `start_processes` chooses.
"""

import time

import torch

from comera_dist.config.tree import Config
from comera_dist.data.windows import TextBatch
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.processes import Processes


class DecoderSide:
    """The decoder of `config` for `vocabulary` tokens, with this process's share of a batch."""

    def __init__(self, config: Config, processes: Processes, vocabulary: int):
        self.config, self.processes, self.plan = config, processes, plan_decoder(config, vocabulary)
        self.engine = Engine(Decoder(config.model, self.plan, torch.Generator().manual_seed(1)), config, processes)
        shape = (config.micro_batch(processes.count), config.data.seq_len)
        tokens_BS = torch.randint(vocabulary, shape, generator=torch.Generator().manual_seed(processes.index))
        self.batch = TextBatch(tokens_BS, tokens_BS.roll(-1, dims=1))
        self.tokens = config.train.batch_tokens  # of a step of all processes

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.plan.values())

    def step(self, pressure=None) -> None:
        self.engine.step([self.batch], lr=1e-3, pressure=pressure)

    def seconds(self) -> float:
        """Seconds of a step on this process."""
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start
