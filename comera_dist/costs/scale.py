"""A run on a cluster before it starts: time, memory, traffic and efficiency at each ZeRO stage, beside its dense twin.

The batch grows with the processes (weak scaling): each makes the step that the configuration gives to a single process,
with the same micro batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

from comera_dist.config.deepspeed import STAGES
from comera_dist.config.optim_section import Optim
from comera_dist.config.registry import OPTIMIZERS
from comera_dist.config.tensor_section import Budget
from comera_dist.config.tree import Config
from comera_dist.costs.deep_step import deep_step
from comera_dist.costs.estimate import estimate
from comera_dist.costs.exchange import Cluster
from comera_dist.costs.live_memory import BlankStep
from comera_dist.costs.memory import AVERAGED_AT_ONCE, memory_of
from comera_dist.costs.of_run import plan_run
from comera_dist.costs.step_time import StepTime, step_time
from comera_dist.errors import ConfigError
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.plan import Plan
from comera_dist.models.family import kind_of

ZERO_STAGES = (0, 1, 2, 3)
# Chosen: share of a device's memory for tensors; the rest is for CUDA's context, NCCL's buffers and fragments.
USABLE = 0.9
LARGEST = 65_536  # processes; chosen: matrices are dealt to so many in seconds


@dataclass(frozen=True)
class ScaleRow:
    """One side at one ZeRO stage. Times in seconds; memory, and bytes sent in a step, of one process; efficiency is
    tokens/s over those of so many single processes."""

    side: str
    zero_stage: int
    compute: float
    update: float
    exchange: float
    memory_bytes: int
    fits: bool
    sent_bytes: float
    tokens_per_second: float
    efficiency: float

    @property
    def seconds(self) -> float:
        return self.compute + self.update + self.exchange

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": self.seconds}


@dataclass(frozen=True)
class ScalePlan:
    """All rows, and one sentence a side that says what it needs."""

    cluster: Cluster
    step_tokens: int  # of all processes
    rows: list[ScaleRow]
    needs: dict[str, str]
    basis: str = "predicted, not measured: no cluster has run this code"

    def to_json(self) -> dict[str, Any]:
        cluster = {"machine": self.cluster.machine.name, "nodes": self.cluster.nodes, "per_node": self.cluster.per_node}
        rows = [row.to_json() for row in self.rows]
        return {"basis": self.basis, **cluster, "step_tokens": self.step_tokens, "rows": rows, "needs": self.needs}


@dataclass(frozen=True)
class Side:
    """A model whose step every process makes, as `config` gives it to one process."""

    name: str
    config: Config
    plan: Plan

    def row(self, stage: int, cluster: Cluster) -> ScaleRow:
        """Its prediction at a ZeRO stage."""
        time, alone = self.time(stage, cluster), self.time(stage, Cluster(cluster.machine, 1, 1))
        tokens, memory = self.config.step_tokens * cluster.processes, self.memory_bytes(stage, cluster)
        return ScaleRow(
            side=self.name,
            zero_stage=stage,
            compute=time.compute,
            update=time.update,
            exchange=time.exchange,
            memory_bytes=memory,
            fits=fits(memory, cluster),
            sent_bytes=time.bytes_sent,
            tokens_per_second=tokens / time.total,
            efficiency=alone.total / time.total,
        )

    def time(self, stage: int, cluster: Cluster) -> StepTime:
        config, step = self._at(stage), self._step(stage)
        return step_time(config, self.plan, self.params, step.work, self._micro_batches, cluster)

    def memory_bytes(self, stage: int, cluster: Cluster) -> int:
        """The peak of a process; bytes of living tensors."""
        config, n = self._at(stage), cluster.processes
        figures = estimate(config, self.plan, n, self._rows * config.row_tokens, "cuda")
        freeing: Callable[[], BlankStep] = lambda: self._step(stage, frees_gradients=True)  # noqa: E731
        return memory_of(config, self.plan, figures, n, self._step(stage), freeing).peak

    def with_config(self, **sections: Any) -> "Side":
        """The same side with other sections of its configuration."""
        return Side(self.name, self.config.model_copy(update=sections), self.plan)

    def of_length(self, seq_len: int) -> "Side":
        """The same side with as many sequences of another length."""
        data = self.config.data.model_copy(update={"seq_len": seq_len})
        return self.with_config(
            data=data, train=self.config.train.model_copy(update={"batch_size": self.config.global_batch})
        )

    @cached_property
    def params(self) -> int:
        return estimate(self.config, self.plan, 1, self._rows * self.config.row_tokens).params

    @property
    def _rows(self) -> int:
        return self.config.micro_batch(1)

    @property
    def _micro_batches(self) -> int:
        return self.config.micro_batches(1)

    def _at(self, stage: int) -> Config:
        return at_stage(self.config, stage)

    def _step(self, stage: int, frees_gradients: bool = False) -> BlankStep:
        # Sides that differ in their optimizers alone share it, and so do all stages without gathered weights.
        config = self._at(3 if stage == 3 else 0).model_copy(update={"optim": Optim()})
        return _step_of(config, tuple(self.plan.items()), self._rows, self._micro_batches, frees_gradients)


@cache
def _step_of(
    config: Config, plan: tuple[tuple[str, MatrixPlan], ...], rows: int, micro_batches: int, frees_gradients: bool
) -> BlankStep:
    return deep_step(config, dict(plan), rows, micro_batches, frees_gradients)


def plan_scale(config: Config, vocab_size: int | None, cluster: Cluster) -> ScalePlan:
    """Predictions of the configured run and of its dense twin. Raises ConfigError and DataError."""
    if cluster.processes > LARGEST:
        raise ConfigError(
            f"{cluster.nodes} nodes of {cluster.per_node} processes are {cluster.processes:,} processes; give at most "
            f"{LARGEST:,}"
        )
    if kind_of(config.model).blank_batch(config, 1) is None:
        raise ConfigError(
            f"model.kind = {config.model.kind} has no prediction at scale, which needs the activations of a step; "
            f"choose a decoder or an encoder, or leave out --nodes, --gpus-per-node and --machine"
        )
    sides = sides_of(config, vocab_size)
    rows = [side.row(stage, cluster) for side in sides for stage in ZERO_STAGES]
    return ScalePlan(
        cluster, config.step_tokens * cluster.processes, rows, {side.name: needs_of(side, cluster) for side in sides}
    )


def sides_of(config: Config, vocab_size: int | None) -> list[Side]:
    """The configured model, and its dense twin unless it is dense itself."""
    this = Side("this run", config, plan_run(config, vocab_size, 1, "cuda"))
    twin = dense_twin(config)
    plan = plan_run(twin, vocab_size, 1, "cuda")
    return [this] if plan == this.plan else [this, Side("dense twin", twin, plan)]


def dense_twin(config: Config) -> Config:
    """The same run with dense matrices; with AdamW, if its optimizer does not update those."""
    section = type(config.model.format)
    model = config.model.model_copy(update={"format": section(**dict.fromkeys(section.model_fields, "dense"))})
    tensor = config.tensor.model_copy(update={"layers": (), "embeddings": (), "budget": Budget()})
    dense = config.model_copy(update={"model": model, "tensor": tensor})
    if OPTIMIZERS[config.optim.kind](config.optim).problems(dense):
        return dense.model_copy(update={"optim": config.optim.model_copy(update={"kind": "adamw"})})
    return dense


def fits(memory_bytes: int, cluster: Cluster) -> bool:
    """Whether a process's device has room for so many bytes of tensors."""
    return cluster.machine.memory is None or memory_bytes <= USABLE * cluster.machine.memory


def needs_of(side: Side, cluster: Cluster) -> str:
    """One sentence: the ZeRO stage from which the run fits, or what it needs besides."""

    def stage_of(variant: Side) -> int | None:
        return next((s for s in ZERO_STAGES if fits(variant.memory_bytes(s, cluster), cluster)), None)

    stage = stage_of(side)
    if stage == 0:
        return "data parallelism suffices, without ZeRO"
    if stage is not None:
        return f"data parallelism suffices from ZeRO stage {stage} on"
    smallest = side
    for words, smallest in _remedies(side):
        if (stage := stage_of(smallest)) is not None:
            return f"does not fit; data parallelism suffices with {words} at ZeRO stage {stage}"
    shorter = max(1, side.config.row_tokens // max(2, cluster.per_node))
    if stage_of(smallest.of_length(shorter)) is not None:
        return (
            "does not fit: the activations of one sequence are too large, so it must be divided among processes "
            "(sequence parallelism), which this trainer does not have"
        )
    return (
        "does not fit, even with one sequence and recomputed blocks at ZeRO stage 3: its matrices must be divided "
        "among processes (tensor or pipeline parallelism), which this trainer does not have"
    )


def _remedies(side: Side) -> Iterator[tuple[str, Side]]:
    """Changes that leave the model as it is, one after the other and each with those before it, in words."""
    words: list[str] = []
    deepspeed, train = side.config.deepspeed, side.config.train
    if (deepspeed.zero_optimization.reduce_bucket_size or side.params) > AVERAGED_AT_ONCE:
        words += [f"deepspeed.zero_optimization.reduce_bucket_size={AVERAGED_AT_ONCE}"]
        zero = deepspeed.zero_optimization.model_copy(update={"reduce_bucket_size": AVERAGED_AT_ONCE})
        side = side.with_config(deepspeed=deepspeed.model_copy(update={"zero_optimization": zero}))
        yield words[0], side
    if kind_of(side.config.model).recomputes_blocks and train.activation_checkpointing != "block":
        words += ["train.activation_checkpointing=block"]
        side = side.with_config(train=train.model_copy(update={"activation_checkpointing": "block"}))
        yield " and ".join(words), side
    if side.config.micro_batch(1) > 1:
        words += ["train.micro_batch=1"]
        yield " and ".join(words), side.with_config(train=side.config.train.model_copy(update={"micro_batch": 1}))


def at_stage(config: Config, stage: int) -> Config:
    """The run at another stage, without keys that have no effect there.

    At stage 3 recomputed blocks take the place of selective recomputation, which is not possible there.
    """
    zero = config.deepspeed.zero_optimization
    without = {key: None for key in type(zero).model_fields if stage not in STAGES[key]}
    keys = config.deepspeed.model_copy(update={"zero_optimization": zero.model_copy(update=without)})
    mode = config.train.activation_checkpointing
    mode = "block" if stage == 3 and mode == "selective" else mode
    train = config.train.model_copy(update={"zero_stage": stage, "activation_checkpointing": mode})
    return config.model_copy(update={"train": train, "deepspeed": keys})
