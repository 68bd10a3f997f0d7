"""Processes whose sentences a test reads."""

import torch

from comera_dist.runtime.processes import Processes


class Listening(Processes):
    """Notes in `said` what would be printed once for all processes."""

    said: list[str]

    def __init__(self, processes: Processes | None = None):
        processes = processes or Processes(0, 1, torch.device("cpu"))
        super().__init__(processes.index, processes.count, processes.device)
        object.__setattr__(self, "said", [])

    def say(self, text: str) -> None:
        self.said.append(text)
