"""The only wrapper of DeepSpeed's engine: a training step, a validation loss, and the state by parameter name."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.config.tree import Config
from comera_dist.errors import CheckpointError
from comera_dist.formats.base import Resizable
from comera_dist.formats.capabilities import Gated
from comera_dist.optim.base import Shape
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.combined import gate_adamw
from comera_dist.optim.groups import set_learning_rate
from comera_dist.runtime import graphs
from comera_dist.runtime.agreement import check_alike
from comera_dist.runtime.autocast_model import AutocastModel
from comera_dist.runtime.deepspeed_config import deepspeed_config
from comera_dist.runtime.eager_step import EagerStep
from comera_dist.runtime.endings import alive
from comera_dist.runtime.graphs import Compilation
from comera_dist.runtime.measuring import count_targets, measure
from comera_dist.runtime.own_optimizer import OptimizerFactory, described
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.static_step import StaticStep, WholeStep, ZeroStep
from comera_dist.runtime.step_result import NO_REQUESTS, Requests, StepResult

logger = logging.getLogger("DeepSpeed")
logger.setLevel(logging.WARNING)
# DeepSpeed knows optimizers by their exact class and would warn at every engine of AdamW's subclass for gates.
logger.addFilter(lambda record: "untested optimizer" not in record.getMessage())
import deepspeed  # noqa: E402  (its logger must be quiet before it is imported)

from comera_dist.runtime import zero_state  # noqa: E402
from comera_dist.runtime.gate_state import GateState  # noqa: E402
from comera_dist.runtime.optimizer_state import OptimizerState  # noqa: E402

# From the step's mean loss to the weight of the gates' penalty, both 0-dimensional.
Pressure = Callable[[Tensor], Tensor]


class Engine:
    """Trains `model` on all processes with ZeRO stage `config.train.zero_stage`.

    The model's forward takes the tensors of a batch, targets last, and returns the summed loss; its `measure` takes the
    same and returns figures by name, 0-dimensional ones to be summed and vectors to be put together. DeepSpeed
    broadcasts the first process's weights. `optimizer` makes the optimizer of a model (default: the one of
    `config.optim`), `compilation` says how its functions are captured and compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        processes: Processes,
        optimizer: OptimizerFactory | None = None,
        compilation: Compilation = graphs.DEFAULT,
    ):
        self.processes = processes
        self.stage = config.train.zero_stage
        self._adapts = config.ranks.adapt
        self.micro_batch = config.micro_batch(processes.count)
        self.accumulation = config.global_batch // (self.micro_batch * processes.count)
        self._model = model.to(processes.device)
        # Stage 3 has the parameters of a layer only while that layer runs.
        self._model.merges_together = self.stage < 3
        if config.train.compile:
            graphs.compile_model(self._model, config, processes, compilation.backend)
        captures = graphs.usable(config, processes, compilation, has_own_optimizer=optimizer is not None)
        self._optimizer = self._make_optimizer(config, optimizer, captures)
        module = AutocastModel(self._model, config.train.precision)
        self._engine = self._initialize(module, config)
        self._state = OptimizerState(self._engine.optimizer, self._optimizer, self.stage)
        self._steps = self._choose_steps(module, config.train.grad_clip, compilation if captures else None)

    def _make_optimizer(self, config: Config, make: OptimizerFactory | None, captures: bool) -> Optimizer:
        if make is not None:
            return described(make(self._model), config.optim.lr, sees_slices=self.stage > 0)
        # At stages 1 and 2 DeepSpeed makes the optimizer's step, which cannot be captured.
        return build_optimizer(self._model, config.optim, config.ranks, captured=captures and self.stage == 0)

    def _initialize(self, module: nn.Module, config: Config):
        # On CPUs DeepSpeed would compile a shared-memory collective here that training never uses (half a minute, and
        # an error where there is no compiler).
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        parameters = sum(p.numel() for p in self._model.parameters())
        # With gradients DeepSpeed would keep views of all parameters, and with them autograd nodes of this stream: a
        # CUDA graph captured on another one would wait for it, which ends the capture.
        with torch.no_grad():
            engine, *_ = deepspeed.initialize(
                model=module,
                optimizer=self._optimizer,
                config=deepspeed_config(config, self.micro_batch, self.accumulation, parameters),
                dist_init_required=False,
            )
        return engine

    def _choose_steps(
        self, module: nn.Module, grad_clip: float, compilation: Compilation | None
    ) -> EagerStep | StaticStep:
        if compilation is None:
            return EagerStep(self._engine, self._model, self.stage, grad_clip)
        capture = compilation.capture
        if self.stage == 0:
            return WholeStep(module, self._optimizer, self.accumulation, grad_clip, self.processes, capture)
        return ZeroStep(module, self._engine, self.accumulation, self.processes, capture)

    def step(
        self, batches: list[NamedTuple], lr: float, requests: Requests = NO_REQUESTS, pressure: Pressure | None = None
    ) -> StepResult:
        """One optimizer step on this process's micro batches at learning rate `lr`. Collective.

        Gradients are those of the mean loss over all tokens of the step, however they are spread over micro batches and
        processes. Where the loss is not finite the parameters are left as they were and the result says so. `pressure`
        turns the mean loss into the weight of the penalty on rank gates (see `gates.press`).
        """
        tokens, *asked = self.processes.sum([sum(map(count_targets, batches)), *requests])
        # Gradients are averaged over micro batches and processes; what shall remain is one division by tokens.
        scale = self.accumulation * self.processes.count / tokens
        set_learning_rate(self._engine.optimizer.param_groups, lr)
        total = self._steps.gradients(batches, scale)
        loss = self.processes.sum_tensor(total.double()) / tokens
        if pressure is not None:
            gate_adamw(self._optimizer).pressure = pressure(loss)
        mean_loss = float(loss)
        grad_norm = self._steps.update() if math.isfinite(mean_loss) else math.nan
        return StepResult(mean_loss, grad_norm, Requests(*(count > 0 for count in asked)))

    def measure(self, batches: Iterator[NamedTuple]) -> dict[str, float | Tensor]:
        """The model's figures over all processes' batches (see `measuring.measure`). Collective."""
        self._engine.eval()
        return measure(self._engine, batches, self.processes)

    @property
    def model(self) -> nn.Module:
        """The module that is trained. At ZeRO stage 3 its parameters are partitioned."""
        return self._model

    @property
    def resizable(self) -> dict[str, Resizable]:
        """Plans of the layers with gates by name, in the order in which `gates` holds their gates."""
        return {name: module.plan for name, module in self._model.named_modules() if isinstance(module, Gated)}

    @property
    def gates(self) -> GateState:
        return GateState(self._model, self._state, gate_adamw(self._optimizer), self.stage)

    def gate_drift(self) -> float:
        """Largest difference of any rank gate between two processes: 0 in a healthy run. Collective."""
        gates = self.gates.copy()
        return self.processes.spread(gates) if len(gates) else 0.0

    def check_weights(self) -> None:
        """TrainingError where a weight that every process holds whole differs between processes. Collective.

        Gates whose ranks adapt are compared at every sync, with a tolerance (`ranks.drift_tolerance`).
        """
        gates = {id(gate) for layer in self._adapted_layers() for gate in layer.gates}
        parameters = {n: p for n, p in self._model.named_parameters() if zero_state.is_whole(p) and id(p) not in gates}
        check_alike(parameters, self.processes)

    def _adapted_layers(self) -> list[Gated]:
        return [module for module in self._model.modules() if self._adapts and isinstance(module, Gated)]

    @property
    def optimizer_step(self) -> int:
        return self._state.step_count()

    @property
    def gate_step(self) -> int:
        """Optimizer steps since `restart_gates`, or of the whole run."""
        return self._state.gate_step_count()

    def restart_gates(self) -> None:
        """Counts the steps of the gates of adapted layers from 0, where their moments have been set to 0."""
        self._state.restart_gates()

    def state(self, owners: dict[str, int] | None = None) -> dict[str, dict[str, Tensor]]:
        """Whole fp32 `weight` and what the optimizer keeps, by kind, of each parameter by name.

        Collective. With `owners` (index of a process by name) only of the parameters that this process owns; the memory
        that it takes besides is that of the largest parameter group's weights.
        """
        names = {id(p): name for name, p in self._model.named_parameters()}
        mine = {name: {} for name in names.values() if owners is None or owners.get(name) == self.processes.index}
        for parameter, kind, tensor in self._state.gather():
            alive()
            if names[id(parameter)] in mine:
                mine[names[id(parameter)]][kind] = tensor.clone()
        return mine

    def restore_moments(self, moments: Iterator[tuple[str, dict[str, Tensor]]], step: int, gate_step: int) -> None:
        """Sets what the optimizer keeps, by parameter name, and its step counts. Weights are loaded before wrapping.

        Collective. CheckpointError where another optimizer has kept other tensors, or none of a parameter.
        """
        parameters, kept = dict(self._model.named_parameters()), self.kept_shapes
        self._state.seed(step, gate_step)
        unread = set(parameters)
        for name, tensors in moments:
            alive()
            unread.discard(name)
            wanted, found = kept[name], {kind: tuple(tensor.shape) for kind, tensor in tensors.items()}
            if found != wanted:
                raise CheckpointError(
                    f"the checkpoint's optimizer kept {_list(found)} of {name} and this one keeps {_list(wanted)}; set "
                    f"optim as the run's config.yaml has it, or choose another run.name"
                )
            self._state.set_kept(parameters[name], tensors)
        if unread:
            raise CheckpointError(
                f"the checkpoint keeps nothing of the optimizer for {min(unread)}; restore it from a copy"
            )

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Whole shape of each parameter by name, also where stage 3 has partitioned it."""
        return {name: zero_state.whole_shape(p) for name, p in self._model.named_parameters()}

    @property
    def kept_shapes(self) -> dict[str, dict[str, Shape]]:
        """Shapes by kind of the whole tensors that the optimizer keeps of each parameter, by the parameter's name."""
        return {name: self._state.kept_shapes(p) for name, p in self._model.named_parameters()}

    def overwrite(self, states: Iterator[tuple[str, dict[str, Tensor]]]) -> None:
        """Sets `weight` and what the optimizer keeps of parameters by name. Collective."""
        parameters = dict(self._model.named_parameters())
        for name, tensors in states:
            self._state.set_weight(parameters[name], tensors["weight"])
            self._state.set_kept(parameters[name], tensors)

    def close(self) -> None:
        """Gives the model back without DeepSpeed's hooks, and lets go of everything that takes memory."""
        for name in ("module_forward_pre_hook", "module_forward_post_hook"):
            with contextlib.suppress(AttributeError):
                getattr(self._engine, name).remove()
        self._engine.destroy()
        if self.stage == 3:
            zero_state.forget_modules()
        del self._steps, self._state, self._engine, self._optimizer, self._model


def _list(shapes: dict[str, Shape]) -> str:
    return ", ".join(f"{kind} {shape}" for kind, shape in shapes.items())
