"""Looks up the kind of model that a configuration names, and calls its methods."""

from typing import TYPE_CHECKING, Any

from comera_dist.config.model_section import ModelSection
from comera_dist.config.registry import KINDS
from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.base import Kind
from comera_dist.models.shared_matrices import placed, share_matrices

if TYPE_CHECKING:
    import torch


def kind_of(section: ModelSection) -> Kind[Any]:
    """The kind of model that a section `model` configures."""
    kind: Kind[Any] = KINDS[section.kind]
    return kind


def plan_model(config: Config, facts: Any) -> Plan:
    """`Kind.plan` of the configured kind, with the places of layers that share matrices. Raises ConfigError."""
    return placed(kind_of(config.model).plan(config, facts))


def known_facts(config: Config, vocab_size: int | None = None) -> Any | None:
    """`Kind.known_facts` of the configured kind."""
    return kind_of(config.model).known_facts(config.model, vocab_size)


def build_model(section: ModelSection, plan: Plan, generator: "torch.Generator | None") -> "torch.nn.Module":
    """`Kind.build` of the configured kind, with matrices shared as the plan says."""
    model = kind_of(section).build(section, plan, generator)
    share_matrices(model, plan)
    return model
