"""A model in training: its steps, its figures on held-out rows, and its state by parameter name."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.config.tree import Config
from comera_dist.errors import CheckpointError, DataError
from comera_dist.formats.base import Resizable
from comera_dist.formats.capabilities import Gated
from comera_dist.models.checkpointed_block import checkpoint_blocks
from comera_dist.optim.base import Shape
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.combined import gate_adamw
from comera_dist.optim.groups import set_learning_rate
from comera_dist.runtime import graphs, zero_state
from comera_dist.runtime.agreement import check_alike
from comera_dist.runtime.deepspeed_engine import EagerStep, clipping, close_deepspeed, start_deepspeed
from comera_dist.runtime.endings import alive
from comera_dist.runtime.forward import AutocastModel, count_targets, measure
from comera_dist.runtime.gate_state import GateState
from comera_dist.runtime.graphs import Compilation
from comera_dist.runtime.idle_keys import idle_keys, say_once
from comera_dist.runtime.module_checks import ConstantBuffers, check_optimized, check_parameters
from comera_dist.runtime.optimizer_state import OptimizerState
from comera_dist.runtime.own_optimizer import OptimizerFactory, described
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.static_step import StaticStep, WholeStep, ZeroStep
from comera_dist.runtime.step import NO_REQUESTS, Requests, StepResult
from comera_dist.runtime.step_norms import StepNorms

# Computes the weight of the gates' penalty from the step's mean loss; both are 0-dimensional.
Pressure = Callable[[Tensor], Tensor]


class Engine:
    """Trains `model` on all processes with ZeRO stage `config.train.zero_stage`.

    The model's forward takes the tensors of a batch, targets last, and returns the summed loss; its `measure` takes the
    same and returns figures by name (see `forward.measure`). DeepSpeed broadcasts the first process's weights.
    `optimizer` makes the optimizer of a model (default: from `config.optim`). `compilation` says how functions of the
    step are captured and how the model is compiled. "Collective" methods must be called on every process.
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
        self.stage, self._adapts = config.train.zero_stage, config.ranks.adapt
        check_parameters(model)
        self._model = model.to(processes.device)
        self._buffers: ConstantBuffers | None = ConstantBuffers(self._model)  # None after the first step
        self._gated = {name: module for name, module in model.named_modules() if isinstance(module, Gated)}
        # Stage 3 has the parameters of a layer only while that layer runs.
        self._model.merges_together = self.stage < 3  # type: ignore[assignment]  # nn.Module may have any attribute
        is_recomputed = checkpoint_blocks(self._model, config.train.activation_checkpointing)
        if config.train.compile:
            graphs.compile_model(self._model, config, processes, compilation.backend)
        captures = graphs.usable(config, processes, compilation, has_own_optimizer=optimizer is not None)
        self._optimizer: Optimizer
        self._is_own = optimizer is not None
        if optimizer is not None:
            self._optimizer = described(optimizer(self._model), config.optim.lr, sees_slices=self.stage > 0)
        else:
            # At stages 1 and 2 DeepSpeed calls the optimizer's step, which cannot be captured.
            captures_update = captures and self.stage == 0
            self._optimizer = build_optimizer(self._model, config.optim, config.ranks, captured=captures_update)
        groups = self._optimizer.param_groups if optimizer is None else None
        for line in idle_keys(self._model, config, is_recomputed, groups):
            say_once(processes, config.run_directory, line)
        micro_batch = config.micro_batch(processes.count)
        self._accumulation = config.micro_batches(processes.count)
        module = AutocastModel(self._model, config.train.precision)
        self._engine = start_deepspeed(module, self._optimizer, config, micro_batch, self._accumulation)
        self._state = OptimizerState(self._engine.optimizer, self._optimizer, self.stage)
        check_optimized(self._model, self._state.home)
        self._grad_clip, static = config.train.grad_clip, (module, self._accumulation, processes, compilation.capture)
        self._steps: EagerStep | StaticStep
        if not captures:
            self._steps = EagerStep(self._engine, self._model, self.stage, self._grad_clip)
        elif self.stage == 0:
            self._steps = WholeStep(*static, self._optimizer, self._grad_clip)
        else:
            self._steps = ZeroStep(*static, self._engine)

    @property
    def logged_lr_scale(self) -> float:
        """The factor between the scheduled learning rate and the logged one: that of a caller's first group, or 1.

        Groups of a configured optimizer have factors of their own, which `optim` names; its rate is logged as it is.
        """
        return float(self._optimizer.param_groups[0]["lr_scale"]) if self._is_own else 1.0

    def step(
        self,
        batches: list[NamedTuple],
        lr: float,
        requests: Requests = NO_REQUESTS,
        pressure: Pressure | None = None,
        accepts: Callable[[float], bool] = math.isfinite,
        measures_norms: bool = False,
    ) -> StepResult:
        """One optimizer step on this process's micro batches at learning rate `lr`. Collective.

        Gradients are those of the mean loss over all targets of the step, however they are spread over micro batches
        and processes. The parameters and the optimizer's state stay as they were if `accepts` is False of the loss,
        which is the same on all processes, or if the norm of the gradients is not finite. `pressure` computes the
        weight of the penalty on rank gates (see GateAdamW) from a loss that is accepted. With `measures_norms` the
        result has the norms of every layer.
        Raises DataError if no row of the step has a target.
        """
        targets, *asked = self.processes.sum([sum(map(count_targets, batches)), *requests])
        if not targets:
            raise DataError("no row of this step has a target, expected one or more; prepare the data again")
        # DeepSpeed divides by a fixed number of micro batches, whatever the step has, and averages over processes; this
        # factor turns the result into a mean over targets.
        scale = self._accumulation * self.processes.count / targets
        set_learning_rate(self._engine.optimizer.param_groups, lr)
        total = self._steps.gradients(batches, scale)
        if self._buffers is not None:
            self._buffers.check()
            self._buffers = None
        loss = self.processes.sum_tensor(total.double()) / targets
        mean_loss = float(loss)
        is_accepted = accepts(mean_loss)
        optimizer = gate_adamw(self._optimizer)
        if pressure is not None and optimizer is not None and is_accepted:
            optimizer.pressure = pressure(loss)
        watch = StepNorms(self._model, self._state.parts, self.stage, self.processes) if measures_norms else None
        grad_norm = self._steps.update(watch.note if watch else None) if is_accepted else self._steps.discard()
        is_applied = is_accepted and math.isfinite(grad_norm)
        norms = watch.norms(clipping(grad_norm, self._grad_clip)) if watch and is_applied else None
        wanted = Requests(*(count > 0 for count in asked))
        return StepResult(mean_loss, grad_norm, wanted, is_applied, int(targets), norms)

    def measure(self, batches: Iterable[NamedTuple]) -> dict[str, float | Tensor]:
        """The model's figures over all processes' batches (see `forward.measure`). Collective."""
        self._engine.eval()
        return measure(self._engine, batches, self.processes)

    @property
    def model(self) -> nn.Module:
        """The module that is trained. At ZeRO stage 3 its parameters are partitioned."""
        return self._model

    @property
    def resizable(self) -> dict[str, Resizable]:
        """Plans of the layers with gates by name, in the order in which `gates` holds their gates."""
        return {name: module.plan for name, module in self._gated.items()}

    @property
    def gates(self) -> GateState:
        """All rank gates. Never store it: at stage 3 a gate references its whole engine."""
        return GateState(self._gated.values(), self._state, gate_adamw(self._optimizer), self.stage)

    def gate_drift(self) -> float:
        """Largest difference of any rank gate between two processes: 0 in a healthy run. Collective."""
        gates = self.gates.copy()
        return self.processes.spread(gates) if len(gates) else 0.0

    def check_weights(self) -> None:
        """TrainingError if a weight that every process holds whole differs between processes. Collective.

        Gates whose ranks adapt are compared at every sync instead, with a tolerance (`ranks.drift_tolerance`).
        """
        gates = {id(gate) for module in self._gated.values() if self._adapts for gate in module.gates}
        parameters = {n: p for n, p in self._model.named_parameters() if zero_state.is_whole(p) and id(p) not in gates}
        check_alike(parameters, self.processes)

    @property
    def optimizer_step(self) -> int:
        """Steps that the optimizer has counted in this run."""
        return self._state.step_count()

    @property
    def gate_step(self) -> int:
        """Optimizer steps since `restart_gates`, or of the whole run."""
        return self._state.step_count(of_gates=True)

    def restart_gates(self) -> None:
        """Sets the step count of the gates of adapted layers to 0, for moments that have been set to 0."""
        self._state.restart_gates()

    def state(
        self, owners: dict[str, int] | None = None, device: torch.device | None = None
    ) -> dict[str, dict[str, Tensor]]:
        """Copies of whole fp32 `weight` and the optimizer's tensors, by kind, of each parameter by name. Collective.

        With `owners` (index of a process by name) only of the parameters that this process owns. The copies are on
        `device`, by default that of the run. Besides them it takes the memory of the largest parameter group's weights.
        """
        names = {p: name for name, p in self._model.named_parameters()}
        mine: dict[str, dict[str, Tensor]] = {
            name: {} for name in names.values() if owners is None or owners.get(name) == self.processes.index
        }
        for parameter, kind, tensor in self._state.gather():
            alive()
            if names[parameter] in mine:
                mine[names[parameter]][kind] = tensor.to(device or self.processes.device, copy=True)
        return mine

    def restore_moments(self, moments: Iterable[tuple[str, dict[str, Tensor]]], step: int, gate_step: int) -> None:
        """Sets the optimizer's tensors, by parameter name, and its step counts. Collective.

        Weights are not restored here, they are loaded into the model before. CheckpointError if the tensors are not
        those that this optimizer keeps, or if a parameter is missing.
        """
        unread, kept = dict(self._model.named_parameters()), self.kept_shapes(step)
        self._state.seed(step, gate_step)
        with self._state.in_fp32():
            for name, tensors in moments:
                alive()
                found = {kind: tuple(tensor.shape) for kind, tensor in tensors.items()}
                if found != kept[name]:
                    raise CheckpointError(
                        f"the checkpoint's optimizer kept {_list(found)} of {name} and this one keeps "
                        f"{_list(kept[name])}; set optim as the run's config.yaml has it, or choose another run.name"
                    )
                self._state.set_kept(unread.pop(name), tensors)
        if unread:
            raise CheckpointError(
                f"the checkpoint keeps nothing of the optimizer for {min(unread)}; restore it from a copy"
            )

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Whole shape of each parameter by name, also if stage 3 has partitioned it."""
        return {name: zero_state.whole_shape(p) for name, p in self._model.named_parameters()}

    def kept_shapes(self, step: int) -> dict[str, dict[str, Shape]]:
        """Shapes by kind of the whole tensors that the optimizer keeps after `step` steps, by the parameter's name."""
        return {name: self._state.kept_shapes(p, step) for name, p in self._model.named_parameters()}

    def overwrite(self, states: Iterable[tuple[str, dict[str, Tensor]]]) -> None:
        """Sets `weight` and the optimizer's tensors of parameters by name. Collective."""
        parameters = dict(self._model.named_parameters())
        with self._state.in_fp32():
            for name, tensors in states:
                self._state.set_weight(parameters[name], tensors["weight"])
                self._state.set_kept(parameters[name], tensors)

    def close(self) -> None:
        """Frees everything that takes memory; the model keeps none of DeepSpeed's hooks."""
        close_deepspeed(self._engine)
        if self.stage == 3:
            zero_state.forget_modules()
        del self._steps, self._state, self._engine, self._optimizer, self._model


def _list(shapes: dict[str, Shape]) -> str:
    return ", ".join(f"{kind} {shape}" for kind, shape in shapes.items())
