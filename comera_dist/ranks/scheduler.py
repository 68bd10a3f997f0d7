"""Rank adaptation in a training loop of the caller's, on one process and without DeepSpeed.

Shapes: G gates of all layers with gates, in the order of the model's modules.
"""

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.config.optim_section import Optim
from comera_dist.config.ranks_section import Ranks
from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.formats.base import MatrixPlan, Resizable
from comera_dist.formats.capabilities import Gated
from comera_dist.formats.hooks import hand_over
from comera_dist.formats.plan import read_plan, write_plan
from comera_dist.formats.removed import RemovedPlan
from comera_dist.optim.base import Method
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.combined import CombinedOptimizer
from comera_dist.optim.gate_adamw import GateAdamW
from comera_dist.optim.narrow_state import NarrowStateOptimizer
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.ranks.resize import Resize
from comera_dist.runtime.processes import Processes

Heirs = dict[nn.Parameter, nn.Parameter | None]  # for each replaced parameter the new one, None if there is none


def adamw(model: nn.Module, lr: float, adapted: Iterable[str] = ("*",), **keys: Any) -> Optimizer:
    """AdamW for `model`; a RankScheduler presses on the gates of layers that match the shell-style patterns `adapted`.

    `keys` are other keys of the section `optim`, e.g. betas and weight_decay. The optimizer of its key `kind` updates
    layers of blocks: their names have a number after `layer.` or `layers.`. Raises ConfigError for keys that are
    impossible and for a model without parameters.
    """
    if next(model.parameters(), None) is None:
        raise ConfigError("the model has no parameters, expected some to train; give adamw() the whole model")
    if isinstance(adapted, str):
        raise ConfigError(f"adapted = {adapted!r} is one text, expected several patterns; give [{adapted!r}]")
    try:
        config = Optim(lr=lr, **keys)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"adamw(): {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from error
    return build_optimizer(model, config, Ranks(adapt=True, layers=tuple(adapted)))


class RankScheduler:
    """Adapts the ranks of a model that a loop of the caller's trains with the optimizer of `adamw`.

    Call `step` with the loss after each step of the optimizer. At every `sync_every`-th step the layers are brought to
    balanced form, and layers whose ranks change are replaced by smaller or larger ones, in the model and in the
    optimizer; their hooks are handed on. So do not keep parameters elsewhere, and compile or wrap the model again when
    a record of `step` has changed ranks.

    total_steps: steps of the whole training. keys: those of the section `ranks`, e.g. target_compression=10. Raises
    ConfigError for keys that are impossible, and for an optimizer that `adamw` did not make for this model.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, total_steps: int, **keys: Any):
        self._model, self._optimizer = model, _checked(optimizer)
        self._methods()  # checks that the optimizer has the model's parameters
        if isinstance(model, Gated):
            raise ConfigError(
                f"the model is itself a {type(model).__name__}, which cannot be replaced by one of other ranks; give "
                "a module that contains it, such as nn.Sequential(layer)"
            )
        if any(not gate.requires_grad for gate in self._pressed()):
            raise ConfigError(
                "a layer whose ranks adapt has frozen gates, expected trained ones; name the other layers in adamw() "
                "and in the key layers, or do not freeze it"
            )
        self.processes, self.steps = Processes(0, 1, next(model.parameters()).device), 0
        overrides = [f"ranks.{key}={json.dumps(value)}" for key, value in {"adapt": True, **keys}.items()]
        config = read_config(None, [f"train.steps={total_steps}", *overrides])
        self._check_pressed(config.ranks.layers)
        params = sum(parameter.numel() for parameter in model.parameters())
        self._adaptation = RankAdaptation(config, dict(self.resizable), params, self)
        self._adaptation.start(None)

    def step(self, loss: Tensor | float) -> dict[str, Any] | None:
        """Presses on the gates of the next step; at a sync also decides, resizes and returns the sync's record.

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
        """One sentence on how the training met its target; None without a target."""
        return self._adaptation.verdict()

    def state_dict(self) -> dict[str, Any]:
        """JSON; save it beside the state of model and optimizer."""
        pressure = self._optimizer.pressure
        return {
            "steps": self.steps,
            "plan": write_plan(dict(self.resizable)),
            "adaptation": self._adaptation.state(),
            "pressure": None if pressure is None else float(pressure),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives the model the ranks of `state`; load the states of model and optimizer after it, not before."""
        saved = read_plan(state["plan"])
        wanted = {name: saved.get(name, RemovedPlan(p.inputs, p.outputs)) for name, p in self.resizable.items()}
        methods = self._methods()
        heirs: Heirs = {}
        for name, plan in self.resizable.items():
            if wanted[name] != plan:
                heirs |= self._replace(name, wanted[name], methods)
        self._hand_on(heirs)
        self.steps = state["steps"]
        self._adaptation.start(state["adaptation"])
        if state["pressure"] is not None:
            pressure = torch.tensor(state["pressure"], dtype=torch.float64, device=self.processes.device)
            self._optimizer.pressure = pressure

    @property
    def resizable(self) -> dict[str, Resizable]:
        """Plans of the layers with gates by name."""
        return {name: module.plan for name, module in self._model.named_modules() if isinstance(module, Gated)}

    @property
    def gate_step(self) -> int:
        """Steps of the optimizer since the moments of the gates were set to 0, or of the whole training."""
        steps = (self._optimizer.state[gate].get("step", 0) for gate in self._pressed())
        return int(max(steps, default=self.steps))

    @property
    def gates(self) -> "_FlatGates":
        """All gates of the model, as a sync reads and writes them."""
        layers = (module for module in self._model.modules() if isinstance(module, Gated))
        return _FlatGates([gate for layer in layers for gate in layer.gates], self._optimizer)

    @torch.no_grad()
    def _apply(self, resize: Resize) -> None:
        """Carries a resize out, one layer after the other."""
        plans, methods = self.resizable, self._methods()
        heirs: Heirs = {}
        new_plans = resize.plan(dict(plans))
        for name in dict.fromkeys((*resize.bonds, *resize.balanced)):
            old = dict(self._model.get_submodule(name).named_parameters())
            kept = {f"{name}.{part}": self._tensors(p, methods[p]) for part, p in old.items()}
            state = resize.apply_layer(name, kept)
            if new_plans[name] != plans[name]:
                heirs |= self._replace(name, new_plans[name], methods)
            for part, parameter in self._model.get_submodule(name).named_parameters():
                for kind, tensor in self._tensors(parameter, methods[old[part]]).items():
                    tensor.copy_(state[f"{name}.{part}"][kind])
        self._hand_on(heirs)
        for group in self._optimizer.param_groups if resize.balanced else ():
            for gate in group["params"] if group["name"] == "gates" else ():
                group["method"].restart(self._optimizer.state[gate])

    def _check_pressed(self, layers: tuple[str, ...]) -> None:
        """ConfigError if a layer that matches one of `layers` has gates on which the optimizer does not press."""
        pressed = set(self._pressed())
        for name, module in self._model.named_modules():
            adapts = isinstance(module, Gated) and any(fnmatchcase(name, pattern) for pattern in layers)
            if adapts and not pressed.issuperset(module.gates):
                raise ConfigError(
                    f"the ranks of {name} adapt, but the optimizer does not press on its gates; give adamw() in "
                    f"adapted the patterns of the key layers, which are {', '.join(layers)}"
                )

    def _pressed(self) -> list[nn.Parameter]:
        """The gates of the layers whose ranks adapt."""
        return [gate for group in self._optimizer.param_groups if group["name"] == "gates" for gate in group["params"]]

    def _methods(self) -> dict[nn.Parameter, Method]:
        """The optimizer's method for each of its parameters. ConfigError if it lacks one of a layer with gates."""
        groups = self._optimizer.param_groups
        methods = {parameter: group["method"] for group in groups for parameter in group["params"]}
        if any(p not in methods for name in self.resizable for p in self._model.get_submodule(name).parameters()):
            raise ConfigError(
                "a layer with gates has a parameter that the optimizer does not have; make it with adamw()"
            )
        return methods

    def _tensors(self, parameter: nn.Parameter, method: Method) -> dict[str, Tensor]:
        """The weight and, by kind, the tensors that the optimizer keeps of it: zeros before its first step."""
        state = self._optimizer.state[parameter]
        if not state:
            state |= method.blank(parameter)
        return {"weight": parameter.detach(), **method.tensors(state)}

    def _replace(self, name: str, plan: MatrixPlan, methods: dict[nn.Parameter, Method]) -> Heirs:
        """Replaces a layer by one of `plan` with weights of any content and zeros in the optimizer's state."""
        old = self._model.get_submodule(name)
        parameters = dict(old.named_parameters())
        new = plan.build(1.0, None, "bias" in parameters).to(next(iter(parameters.values())))
        hand_over(old, new)
        for place in [place for place, module in self._model.named_modules(remove_duplicate=False) if module is old]:
            self._model.set_submodule(place, new)
        successors = dict(new.named_parameters())
        for part, parameter in parameters.items():
            if part in successors:
                successors[part].requires_grad_(parameter.requires_grad)
            steps = methods[parameter].step_count(self._optimizer.state.pop(parameter, {})) or 0
            if part in successors:
                self._optimizer.state[successors[part]] = methods[parameter].blank(successors[part], steps)
        return {parameter: successors.get(part) for part, parameter in parameters.items()}

    def _hand_on(self, heirs: Heirs) -> None:
        """Gives the places of replaced parameters in the optimizer's groups to the new ones."""
        for group in self._optimizer.param_groups:
            group["params"] = [new for p in group["params"] if (new := heirs.get(p, p)) is not None]
        if heirs:
            self._optimizer.forget_gates()


def _checked(optimizer: Optimizer) -> GateAdamW:
    """The optimizer. ConfigError unless `adamw` made it, with settings that allow other ranks."""
    if isinstance(optimizer, NarrowStateOptimizer):
        raise ConfigError("the optimizer keeps narrow moments, which a RankScheduler cannot cut; set moments='fp32'")
    if isinstance(optimizer, CombinedOptimizer):
        raise ConfigError(
            "the optimizer has a kind besides AdamW, which a RankScheduler cannot cut; leave kind out of adamw(), or "
            "train with comera_dist.train()"
        )
    if not isinstance(optimizer, GateAdamW):
        raise ConfigError(f"the optimizer is a {type(optimizer).__name__}, which has no gates; make it with adamw()")
    if any(group["method"].config.core_rates == "fan_in" for group in optimizer.param_groups):
        raise ConfigError(
            "the optimizer has core_rates = fan_in, whose groups would change with the ranks; leave core_rates out "
            "of adamw(), or train with comera_dist.train()"
        )
    return optimizer


class _FlatGates:
    """All gates of a model as flat vectors (G,), float64 on the CPU (see sync.Gates)."""

    def __init__(self, gates: list[nn.Parameter], optimizer: GateAdamW):
        self._gates, self._optimizer = gates, optimizer

    def copy(self) -> Tensor:
        return _flat(self._gates)

    def shares(self) -> tuple[Tensor, Tensor]:
        return self.copy(), _flat(map(self._optimizer.second_moment, self._gates))

    def write(self, gates_G: Tensor) -> None:
        for gate, part in zip(self._gates, self._parts(gates_G), strict=True):
            gate.data.copy_(part)

    def press(self, weights_G: Tensor) -> None:
        parts = zip(self._gates, self._parts(weights_G), strict=True)
        self._optimizer.gate_weights = {gate: part.to(gate) for gate, part in parts}

    def _parts(self, values_G: Tensor) -> tuple[Tensor, ...]:
        return torch.split(values_G, [gate.numel() for gate in self._gates])


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.zeros(0).double(), *(tensor.detach().flatten().double().cpu() for tensor in tensors)])
