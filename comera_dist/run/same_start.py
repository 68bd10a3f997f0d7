"""Whether all processes of a run were started alike.

If they differ, most runs go on without an error and train something that nobody has configured: at ZeRO stages above 0
a process steps its slices with its own learning rate, and gives all processes the result.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from comera_dist.config.tree import Config
from comera_dist.config.yaml_tree import flat
from comera_dist.errors import ConfigError, DataError, LaunchError
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.software import software
from comera_dist.runtime.together import together

Told = tuple[Mapping[str, Any], Mapping[str, str]]  # what processes compare: their keys, and their software
FOLDERS = ("data.corpus", "data.mixture")  # a host may have the same data at a place of its own


def check_same_start(config: Config, processes: Processes) -> None:
    """ConfigError or LaunchError on all processes if one has other keys or software than the first. Collective."""
    if processes.count == 1:
        return
    keys = {key: value for key, value in flat(config.model_dump(mode="json")).items() if key not in FOLDERS}
    own = keys, software()
    together(partial(_check, own, processes.from_first(own), processes.here), processes)


def check_same_data(fingerprint: str, folders: str, processes: Processes) -> None:
    """DataError on all processes if one has opened other data than the first. Collective."""
    first = processes.from_first(fingerprint)

    def check() -> None:
        if fingerprint != first:
            raise DataError(
                f"{folders} on {processes.here} are other data than those of process 0, expected the same; "
                f"copy those of process 0 to this host, or name one folder that all hosts share"
            )

    together(check, processes)


def _check(own: Told, first: Told, here: str) -> None:
    (keys, versions), (first_keys, first_versions) = own, first
    for name, version in first_versions.items():
        if (found := versions.get(name)) != version:
            raise LaunchError(
                f"{name} is {found} on {here} and {version} on process 0, expected the same on all processes; install "
                f"the same packages and code on all hosts"
            )
    for key in {**keys, **first_keys}:
        if keys.get(key) != first_keys.get(key):
            raise ConfigError(
                f"{key} = {keys.get(key)} on {here} and {first_keys.get(key)} on process 0, expected the same "
                f"on all processes; start them with the same file and the same arguments"
            )
