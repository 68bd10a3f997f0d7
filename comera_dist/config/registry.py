"""The doors for additions: tables of the things that a configuration chooses by name.

A built-in thing is imported when it is first asked for, so that reading a configuration imports no torch. Additions get
a new name before the configuration is read, e.g. FORMATS.add("mine", MyFormat()).
"""

from importlib import import_module
from typing import Any, Generic, TypeVar

from comera_dist.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Things by name; `key` is the configuration key that holds the name.

    `places` says where the built-in things are: "module:attribute", without `comera_dist.`.
    """

    def __init__(self, key: str, places: dict[str, str]):
        self._key, self._places = key, places
        self._added: dict[str, T] = {}

    def names(self) -> list[str]:
        """All names: first the built-in things, then the additions."""
        return [*self._places, *self._added]

    def __getitem__(self, name: str) -> T:
        """Raises ConfigError for an unknown name."""
        if name in self._added:
            return self._added[name]
        if name not in self._places:
            raise ConfigError(f"{self._key} = {name} is not possible: expected one of {', '.join(self.names())}")
        module, _, attribute = self._places[name].partition(":")
        thing: T = getattr(import_module(f"comera_dist.{module}"), attribute)
        return thing

    def add(self, name: str, thing: T) -> None:
        """Makes `thing` known as `name`. Raises ConfigError for a name that is taken."""
        if name in self.names():
            raise ConfigError(f"{self._key} = {name} is taken; choose another name for what is added")
        self._added[name] = thing

    def remove(self, name: str) -> None:
        """Forgets an addition."""
        del self._added[name]


DEFAULT_KIND = "decoder"  # of a configuration that names none
KINDS: Registry[Any] = Registry(
    "model.kind",
    {"decoder": "models.decoder.kind:KIND", "encoder": "models.encoder.kind:KIND", "dlrm": "models.dlrm.kind:KIND"},
)
FORMATS: Registry[Any] = Registry(
    "model.format",
    {
        "dense": "formats.dense:DENSE",
        "tensor": "formats.tensor_train.format:TENSOR",
        "low_rank": "formats.tensor_train.format:LOW_RANK",
        "block_train": "formats.block_train:BLOCK_TRAIN",
        "bottleneck": "formats.bottleneck:BOTTLENECK",
        "sltrain": "formats.sltrain:SLTRAIN",
        "mixed_dimension": "formats.mixed_dimension:MIXED_DIMENSION",
        "shared": "formats.shared:SHARED",
        "auto": "formats.auto:AUTO",
    },
)
OPTIMIZERS: Registry[Any] = Registry(
    "optim.kind",
    {
        "adamw": "optim.adamw:AdamW",
        "galore": "optim.galore:GaLore",
        "fira": "optim.fira:Fira",
        "apollo": "optim.apollo:Apollo",
        "apollo_mini": "optim.apollo:ApolloMini",
        "gum": "optim.gum:Gum",
        "relora": "optim.relora:ReLora",
        "muon": "optim.muon:Muon",
        "spectral": "optim.spectral:Spectral",
        "dion": "optim.dion:Dion",
        "soap": "optim.soap:SOAP",
        "mlorc": "optim.mlorc:MLorc",
        "mofasgd": "optim.mofasgd:MoFaSGD",
        "loro": "optim.loro:Loro",
    },
)
POLICIES: Registry[Any] = Registry("ranks.policy", {"threshold": "ranks.threshold:Threshold"})
