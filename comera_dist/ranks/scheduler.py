"""Rank adaptation in a training loop of the caller's, on one process and without DeepSpeed.

Shapes: G gates of all layers with gates, in the order of the model's modules.
"""

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.config.reader import read_config
from comera_dist.config.tree import Optim, Ranks
from comera_dist.errors import ConfigError
from comera_dist.formats.base import MatrixPlan, Resizable
from comera_dist.formats.capabilities import Gated
from comera_dist.formats.plan import read_plan, write_plan
from comera_dist.formats.removed import RemovedPlan
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.gate_adamw import GateAdamW
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.ranks.resize import Resize
from comera_dist.ranks.sync import Gates
from comera_dist.runtime.processes import Processes


def adamw(model: nn.Module, lr: float, adapted: Iterable[str] = ("*",), **keys: Any) -> Optimizer:
    """AdamW for `model`, whose gates in layers that match the shell-style patterns `adapted` a RankScheduler presses.

    `keys` are others of the section `optim`, e.g. betas and weight_decay.
    """
    ranks = Ranks(adapt=True, layers=tuple(adapted))
    return build_optimizer(model, Optim(lr=lr, **keys), ranks)


class RankScheduler:
    """Adapts the ranks of a model that a loop of the caller's trains with the optimizer of `adamw`.

    Call `step` with the loss after each step of the optimizer. At every `sync_every`-th step the layers are brought to
    balanced form, and where it is decided, they are replaced in the model by smaller or larger ones, in the optimizer
    too. So parameters must not be kept elsewhere, and a compiled or wrapped model must be made anew when `step` returns
    a record with changed ranks.

    total_steps: steps of the whole training. keys: those of the section `ranks`, e.g. target_compression=10. Raises
    ConfigError.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, total_steps: int, **keys: Any):
        if not isinstance(optimizer, GateAdamW):
            raise ConfigError(
                f"the optimizer is a {type(optimizer).__name__}, which has no gates; make it with adamw()"
            )
        self._model, self._optimizer = model, optimizer
        device = next(model.parameters()).device
        self.processes, self.steps = Processes(0, 1, device), 0
        overrides = [f"ranks.{key}={json.dumps(value)}" for key, value in {"adapt": True, **keys}.items()]
        config = read_config(None, [f"train.steps={total_steps}", *overrides])
        params = sum(parameter.numel() for parameter in model.parameters())
        self._adaptation = RankAdaptation(config, dict(self.resizable), params, self)
        self._adaptation.start(None)

    def step(self, loss: Tensor | float) -> dict[str, Any] | None:
        """Presses on the gates of the next step; at a sync also decides, resizes and returns the record of it.

        The record has the stage, the size and target in parameters of the adapted layers, and the ranks by layer.
        """
        found = torch.as_tensor(loss).detach().double().to(self.processes.device)
        self.steps += 1
        record = None
        if self._adaptation.is_due(self.steps):
            record, resize = self._adaptation.sync(self.steps)
            self._apply(resize)
            self._adaptation.resized(self)
        self._optimizer.pressure = self._adaptation.objective.pressure(found, self.steps)
        return record

    def verdict(self) -> str | None:
        """How the training ended against its target, in a sentence; None without a target."""
        return self._adaptation.verdict()

    def state_dict(self) -> dict[str, Any]:
        """JSON; save it beside the state of model and optimizer."""
        pressure = self._optimizer.pressure
        return {
            "steps": self.steps,
            "plan": write_plan(self.resizable),
            "adaptation": self._adaptation.state(),
            "pressure": None if pressure is None else float(pressure),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives the model the ranks of `state`; load the states of model and optimizer after it, not before."""
        saved = read_plan(state["plan"])
        for name, plan in self.resizable.items():
            if saved.get(name) != plan:
                self._replace(name, saved.get(name, RemovedPlan(plan.inputs, plan.outputs)))
        self.steps = state["steps"]
        self._adaptation.start(state["adaptation"])
        if state["pressure"] is not None:
            self._optimizer.pressure = torch.tensor(
                state["pressure"], dtype=torch.float64, device=self.processes.device
            )

    @property
    def resizable(self) -> dict[str, Resizable]:
        """Plans of the layers with gates by name."""
        return {name: module.plan for name, module in self._model.named_modules() if isinstance(module, Gated)}

    @property
    def gates(self) -> Gates:
        layers = (module for module in self._model.modules() if isinstance(module, Gated))
        return _FlatGates([gate for layer in layers for gate in layer.gates], self._optimizer)

    @torch.no_grad()
    def _apply(self, resize: Resize) -> None:
        plans = self.resizable
        new_plans = resize.plan(dict(plans))
        for name in dict.fromkeys((*resize.bonds, *resize.balanced)):
            layer = self._model.get_submodule(name)
            old = dict(layer.named_parameters())
            kept = {f"{name}.{part}": {"weight": p.detach(), **self._moments(p)} for part, p in old.items()}
            state = {key.removeprefix(f"{name}."): new for key, new in resize.apply_layer(name, kept).items()}
            if new_plans[name] != plans[name]:
                layer = self._replace(name, new_plans[name])
            for part, parameter in layer.named_parameters():
                parameter.copy_(state[part]["weight"])
                for kind, tensor in self._moments(parameter).items():
                    tensor.copy_(state[part][kind])
        if resize.balanced:
            self._restart_gates()

    def _replace(self, name: str, plan: MatrixPlan) -> nn.Module:
        """Puts a layer of `plan`, with weights of any content, in the place of another, in the optimizer too."""
        old = self._model.get_submodule(name)
        parameters = dict(old.named_parameters())
        new = plan.build(1.0, None, "bias" in parameters).to(next(iter(parameters.values())))
        for place in [place for place, module in self._model.named_modules(remove_duplicate=False) if module is old]:
            self._model.set_submodule(place, new)
        successors = dict(new.named_parameters())
        self._hand_on({id(old): (old, successors.get(part)) for part, old in parameters.items()})
        return new

    def _hand_on(self, heirs: dict[int, tuple[nn.Parameter, nn.Parameter | None]]) -> None:
        """Gives parameters' places in the optimizer to their successors, with zeros for what it keeps of them."""
        for group in self._optimizer.param_groups:
            for old, new in [heirs[id(p)] for p in group["params"] if id(p) in heirs]:
                steps = group["method"].step_count(self._optimizer.state.pop(old, {})) or 0
                if new is not None:
                    self._optimizer.state[new] = group["method"].blank(new, steps)
            successors = [heirs[id(p)][1] if id(p) in heirs else p for p in group["params"]]
            group["params"] = [parameter for parameter in successors if parameter is not None]
        self._optimizer.forget_gates()

    def _moments(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """What the optimizer keeps of the parameter, zeros before its first step."""
        for group in self._optimizer.param_groups:
            if any(parameter is member for member in group["params"]):
                state = self._optimizer.state[parameter]
                if not state:
                    state |= group["method"].blank(parameter)
                return group["method"].tensors(state)
        raise ConfigError("a layer with gates has a parameter that the optimizer does not have; make it with adamw()")

    def _restart_gates(self) -> None:
        for group in self._optimizer.param_groups:
            for gate in group["params"] if group["name"] == "gates" else ():
                group["method"].restart(self._optimizer.state[gate])


class _FlatGates:
    """All gates of a model as flat vectors (G), float64 on the CPU."""

    def __init__(self, gates: list[nn.Parameter], optimizer: GateAdamW):
        self._gates, self._optimizer = gates, optimizer

    def copy(self) -> Tensor:
        return _flat(self._gates)

    def shares(self) -> tuple[Tensor, Tensor]:
        """Gates and their second moments."""
        return self.copy(), _flat([self._optimizer.second_moment(gate) for gate in self._gates])

    def write(self, gates_G: Tensor) -> None:
        for gate, part in zip(self._gates, self._parts(gates_G), strict=True):
            gate.data.copy_(part)

    def press(self, weights_G: Tensor) -> None:
        parts = zip(self._gates, self._parts(weights_G), strict=True)
        self._optimizer.gate_weights = {gate: part.to(gate) for gate, part in parts}

    def _parts(self, values_G: Tensor) -> tuple[Tensor, ...]:
        return values_G.split([gate.numel() for gate in self._gates])


def _flat(tensors: list[Any]) -> Tensor:
    return torch.cat([tensor.detach().flatten().double().cpu() for tensor in tensors])
