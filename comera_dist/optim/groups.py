"""Which parameters share a learning rate, a weight decay and an optimizer."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from comera_dist.config.optim_section import Optim
from comera_dist.config.registry import OPTIMIZERS
from comera_dist.formats.base import GATE, MIXTURE
from comera_dist.formats.capabilities import Gated, plan_of
from comera_dist.optim.base import Group
from comera_dist.optim.factors import factors_of, fan_in_rates, low_rank_parameters

GROUPS = ("matrices", "factors", "low_rank", "cores", "gates", "fixed_gates", "dense", "no_decay")

OTHERWISE = {"matrices": "dense", "factors": "cores"}  # groups of parameters whose own group no optimizer takes
WITH_MATRIX_RATE = (*OTHERWISE, "low_rank")
DECAYING = ("matrices", "factors", "low_rank", "cores", "dense")


def parameter_groups(model: nn.Module, config: Optim, adapted: tuple[str, ...] = ("*",)) -> list[Group]:
    """The non-empty ones of `GROUPS`, each with its learning-rate scale and weight decay.

    `matrices` are the weights of dense linear layers in blocks, `factors` the cores of other linear layers in blocks
    that are batches of matrices (`Unfoldings`). They are part of `dense` and `cores` unless the optimizer `config.kind`
    takes them. An optimizer that takes `low_rank` gets cores and gates of all layers in blocks that are two factors.
    `gates` are the gates of layers that match one of the shell-style patterns `adapted`, all others are `fixed_gates`,
    because only the moments of the former begin anew at a sync. A group is divided into one for each rate where
    `config.core_rates`, `config.table_lr_scale` or `config.head_lr_scale` give parameters rates of their own.
    AssertionError if a parameter is in no group or in two.
    """
    takes = OPTIMIZERS[config.kind].takes
    factors = factors_of(model)
    low_rank = low_rank_parameters(model) if "low_rank" in takes else {}
    steps_cores = not {"cores", "factors"} & set(takes)  # with AdamW, not with another optimizer
    others = {parameter: factor for parameter, factor in factors.items() if parameter not in low_rank}
    rates = fan_in_rates(others) if steps_cores and config.core_rates == "fan_in" else {}
    rates |= dict.fromkeys(_in_head(model), config.head_lr_scale)
    rates |= dict.fromkeys(_in_tables(model), config.table_lr_scale)  # also of a table that is the head's weight
    members: dict[tuple[int, float], list[nn.Parameter]] = defaultdict(list)  # by place in GROUPS and rate
    for parameter, (path, module, name) in _owners(model).items():
        group = "low_rank"
        if parameter not in low_rank:
            group = _group_of(path, module, name, parameter, adapted, parameter in factors)
        place = GROUPS.index(group if group in takes else OTHERWISE.get(group, group))
        members[place, rates.get(parameter, 1.0)].append(parameter)
    check_cover(model, [p for group in members.values() for p in group])
    return [_group(GROUPS[place], rate, members[place, rate], config) for place, rate in sorted(members)]


def idle_rates(groups: Sequence[Group], model: nn.Module, config: Optim) -> list[str]:
    """One sentence for each learning rate of `config` that no parameter of the model, which has these groups, has."""
    names = {group["group"] for group in groups}
    tables = set(_in_tables(model))
    idle = {
        "matrix_lr_scale": (not names & set(WITH_MATRIX_RATE), f"optim.kind = {config.kind} leaves all to AdamW"),
        "table_lr_scale": (not tables, "the model has no embedding table"),
        "head_lr_scale": (not set(_in_head(model)) - tables, "the model has no output layer of its own"),
        "core_lr_scale": ("cores" not in names, "AdamW steps no cores of the model"),
        "gate_lr_scale": (not names & {"gates", "fixed_gates"}, "the model has no gates"),
    }
    found = [
        f"optim.{key} = {getattr(config, key):g} has no effect: {reason}."
        for key, (is_idle, reason) in idle.items()
        if is_idle and getattr(config, key) != 1
    ]
    if config.core_rates == "fan_in" and not fan_in_rates(factors_of(model)):
        found.append("optim.core_rates = fan_in has no effect: no layer in the model's blocks has several cores.")
    return found


def _owners(model: nn.Module) -> dict[nn.Parameter, tuple[str, nn.Module, str]]:
    """Each parameter's first module, with the module's path and the parameter's name there."""
    owners: dict[nn.Parameter, tuple[str, nn.Module, str]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(parameter, (path, module, name))
    return owners


def _group(name: str, rate: float, parameters: list[nn.Parameter], config: Optim) -> Group:
    """Parameters whose learning rate is `rate` times that of the group `name`."""
    scales = {"cores": config.core_lr_scale, "gates": config.gate_lr_scale, "fixed_gates": config.gate_lr_scale}
    scale = rate * (scales | dict.fromkeys(WITH_MATRIX_RATE, config.matrix_lr_scale)).get(name, 1.0)
    return {
        "name": name if rate == 1 else f"{name} x {rate}",  # of its own, so that a checkpoint finds it
        "group": name,
        "params": parameters,
        "lr": config.lr * scale,
        "lr_scale": scale,
        "weight_decay": config.weight_decay if name in DECAYING else 0.0,
    }


def _group_of(
    path: str, module: nn.Module, name: str, parameter: nn.Parameter, adapted: tuple[str, ...], is_factor: bool
) -> str:
    plan = plan_of(module)
    if isinstance(module, Gated) and name.startswith(GATE):
        return "gates" if any(fnmatchcase(path, pattern) for pattern in adapted) else "fixed_gates"
    if plan is not None and name in plan.cores:
        return "factors" if is_factor else "cores"
    if is_factor:
        return "matrices"
    is_weight = parameter.ndim >= 2 or (plan is not None and name in plan.tensors and name != MIXTURE)
    return "dense" if is_weight else "no_decay"


def _in_tables(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of embedding tables, without gates and projections.

    A projection is a matrix like those of the blocks, which a table's rate is too high for (docs/recipe.md).
    """
    for module in model.modules():
        plan = plan_of(module)
        if isinstance(module, nn.Embedding) or (plan is not None and plan.is_embedding):
            for name, parameter in module.named_parameters(recurse=False):
                if not name.startswith(GATE) and (plan is None or name != plan.projection):
                    yield parameter


def _in_head(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of an output layer of its own, by the name of published checkpoints, without gates."""
    for path, module in model.named_modules():
        if path.rpartition(".")[2] == "lm_head":
            yield from (p for name, p in module.named_parameters(recurse=False) if not name.startswith(GATE))


def check_cover(model: nn.Module, grouped: list[nn.Parameter]) -> None:
    """AssertionError unless `grouped` is every trainable parameter of the model exactly once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    counts = Counter(map(id, grouped))
    missing = [name for key, name in names.items() if key not in counts]
    surplus = [names.get(key, "a stranger") for key, count in counts.items() if count > 1 or key not in names]
    assert not missing, f"parameter groups miss {missing}"
    assert not surplus, f"parameter groups repeat or invent {surplus}"


def set_learning_rate(param_groups: list[Group], lr: float) -> None:
    """Sets the rate of each group to `lr` times its scale. A tensor is filled: a CUDA graph may read it."""
    for group in param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr * group["lr_scale"])
        else:
            group["lr"] = lr * group["lr_scale"]
