"""The doors for additions: things that a configuration chooses by name.

A built-in thing is imported when it is first asked for: reading a configuration imports no torch. A thing of one's own
is added under a new name before the configuration is read, e.g. FORMATS.add("mine", MyFormat()).
"""

from importlib import import_module
from typing import Any, Generic, TypeVar

from comera_dist.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Things by name; `key` is the configuration's key that names one.

    `places` says where the built-in ones are, as "module:attribute".
    """

    def __init__(self, key: str, places: dict[str, str]):
        self._key, self._places = key, dict(places)
        self._added: dict[str, T] = {}

    def names(self) -> list[str]:
        return [*self._places, *self._added]

    def __getitem__(self, name: str) -> T:
        """ConfigError for a name that nothing has."""
        if name in self._added:
            return self._added[name]
        if name not in self._places:
            raise ConfigError(f"{self._key} = {name} is not possible: expected one of {', '.join(self.names())}")
        module, _, attribute = self._places[name].partition(":")
        thing: T = getattr(import_module(module), attribute)
        return thing

    def add(self, name: str, thing: T) -> None:
        """Makes `thing` known under `name`. ConfigError for a name that is taken."""
        if name in self._places or name in self._added:
            raise ConfigError(f"{self._key} = {name} is taken; choose another name for what is added")
        self._added[name] = thing

    def remove(self, name: str) -> None:
        """Forgets a thing that was added."""
        del self._added[name]


DEFAULT_KIND = "decoder"  # of a configuration that names none
KINDS: Registry[Any] = Registry(
    "model.kind",
    {
        "decoder": "comera_dist.models.decoder.kind:KIND",
        "encoder": "comera_dist.models.encoder.kind:KIND",
        "dlrm": "comera_dist.models.dlrm.kind:KIND",
    },
)
FORMATS: Registry[Any] = Registry(
    "model.format",
    {
        "dense": "comera_dist.formats.dense:DENSE",
        "tensor": "comera_dist.formats.tensor_train.format:TENSOR",
        "low_rank": "comera_dist.formats.tensor_train.format:LOW_RANK",
        "block_train": "comera_dist.formats.block_train:BLOCK_TRAIN",
        "bottleneck": "comera_dist.formats.bottleneck:BOTTLENECK",
    },
)
OPTIMIZERS: Registry[Any] = Registry(
    "optim.kind",
    {
        "adamw": "comera_dist.optim.adamw:AdamW",
        "galore": "comera_dist.optim.galore:GaLore",
        "muon": "comera_dist.optim.muon:Muon",
    },
)
POLICIES: Registry[Any] = Registry("ranks.policy", {"threshold": "comera_dist.ranks.threshold:Threshold"})
