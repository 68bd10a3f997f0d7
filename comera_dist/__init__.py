"""comera_dist: distributed pretraining of language models whose weights are tensor trains.

The names below are the public Python interface. Each is imported when it is first used. Only a call of `train` imports
DeepSpeed or opens a process group.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comera_dist.config.reader import read_config as read_config
    from comera_dist.costs.of_run import estimate as estimate
    from comera_dist.exchange.export import export as export
    from comera_dist.formats.convert import LinearFormat as LinearFormat
    from comera_dist.formats.convert import TableFormat as TableFormat
    from comera_dist.formats.convert import densify as densify
    from comera_dist.formats.convert import tensorize as tensorize
    from comera_dist.ranks.scheduler import RankScheduler as RankScheduler
    from comera_dist.ranks.scheduler import adamw as adamw
    from comera_dist.run.train import train as train
    from comera_dist.run.trained import load_trained as load  # noqa: F401

__version__ = "0.1.0"

# Module and attribute of each public name.
_PUBLIC = {
    "LinearFormat": "formats.convert:LinearFormat",
    "RankScheduler": "ranks.scheduler:RankScheduler",
    "TableFormat": "formats.convert:TableFormat",
    "adamw": "ranks.scheduler:adamw",
    "densify": "formats.convert:densify",
    "estimate": "costs.of_run:estimate",
    "export": "exchange.export:export",
    "load": "run.trained:load_trained",
    "read_config": "config.reader:read_config",
    "tensorize": "formats.convert:tensorize",
    "train": "run.train:train",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'comera_dist' has no attribute {name!r}; it has {', '.join(_PUBLIC)}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(import_module(f"comera_dist.{module}"), attribute)


def __dir__() -> list[str]:
    return __all__
