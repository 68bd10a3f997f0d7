"""What the processes of a distributed test do; every function is called on all of them alike."""

import os
import signal

from torch import nn

from comera_dist.config_reader import read_config
from comera_dist.runtime import engine as engine_module
from comera_dist.train import train


def train_runs(processes, runs: list[list[str]]) -> list[int]:
    """Trains one run after another in the same processes; returns their exit statuses."""
    return [train(read_config(None, overrides), processes) for overrides in runs]


class Dropped(nn.Module):
    """A model with dropout before it learns anything: its loss depends on the state of the random numbers."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.dropout = model, nn.Dropout(0.3)
        model.model.norm.register_forward_hook(lambda module, inputs, output: self.dropout(output))

    def forward(self, inputs_BS, targets_BS):
        return self.model(inputs_BS, targets_BS)


def train_with_dropout(processes, runs: list[list[str]]) -> list[int]:
    """As train_runs, with dropout in the model."""
    plain = engine_module.AutocastModel
    engine_module.AutocastModel = lambda model, precision: plain(Dropped(model), precision)
    try:
        return train_runs(processes, runs)
    finally:
        engine_module.AutocastModel = plain


def stop_at(processes, overrides: list[str], step: int, process: int) -> int:
    """Trains and sends SIGTERM to one process when it has made `step` steps."""
    from comera_dist.session import Session

    plain = Session.train_step

    def train_step(session, stop_requested):
        result = plain(session, stop_requested)
        if session.step == step and processes.index == process:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    Session.train_step = train_step
    try:
        return train(read_config(None, overrides), processes)
    finally:
        Session.train_step = plain


def disturbed_gate(processes) -> float:
    """The gate drift that a deliberately changed gate on the last process causes."""
    import torch

    gates = torch.ones(5)
    if processes.index == processes.count - 1:
        gates[3] += 0.25
    return processes.spread(gates)
