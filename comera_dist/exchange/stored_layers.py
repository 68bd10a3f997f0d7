"""Which layers of a trained model become dense, and which keep the form in which they were trained."""

from typing import Any

from torch import nn

from comera_dist.errors import ConfigError
from comera_dist.exchange import comera_layers
from comera_dist.formats.capabilities import ToDense, plan_of
from comera_dist.formats.convert import densify
from comera_dist.formats.plan import Plan
from comera_dist.models.shared_matrices import sharing


def densify_others(model: nn.Module, keeps_factors: bool) -> Plan:
    """Replaces layers by dense ones, in place. Returns the plans of the layers that stay as they are, by name.

    These are layers without a dense equal, and with `keeps_factors` all that comera_layers.py can compute.
    """
    stored = {}
    for name, layer in list(model.named_modules()):
        plan = plan_of(layer)
        if plan is None:
            continue
        has_dense = isinstance(layer, ToDense)
        if has_dense and not (keeps_factors and plan.tag in comera_layers.FORMATS):
            model.set_submodule(name, densify(layer))
        else:
            stored[name] = plan
    return stored


def records(stored: Plan) -> dict[str, dict[str, Any]]:
    """The layers as comera_layers.py reads them. ConfigError for a format that it does not know."""
    for name, plan in stored.items():
        if plan.tag not in comera_layers.FORMATS:
            raise ConfigError(
                f"{name} is stored in the format {plan.tag}, which has no dense equal and is not part of an exported "
                f"model; export with --to tensors"
            )
    found: dict[str, dict[str, Any]] = {
        name: {**plan.to_json(), "is_table": plan.is_embedding, "tensors": plan.tensors}
        for name, plan in stored.items()
    }
    for group in sharing(stored):
        owners = [name for name, plan in group.items() if plan.owns_matrix]
        for name in group:
            found[name]["owners"] = owners
    return found
