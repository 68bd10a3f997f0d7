"""Versions of Python and of the packages that a run imports."""

import platform
from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement

from comera_dist.doctor.finding import Finding, Grade

PACKAGE = "comera-dist"


def software() -> Iterator[Finding]:
    """Python, torch, and the other packages that a run needs."""
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("Python", f"{platform.python_version()}, torch {metadata.version('torch')}, {system}")
    try:
        requirements = metadata.requires(PACKAGE) or ()
    except metadata.PackageNotFoundError:  # a checkout that was put on the path
        found = "not installed, so it is not known which versions of its packages fit"
        yield Finding(PACKAGE, found, Grade.DOUBTFUL, "python -m pip install -c constraints.txt -e .")
        return
    yield from packages(requirements)


def packages(requirements: Iterable[str]) -> Iterator[Finding]:
    """One finding if all `requirements` that belong to no extra are met, or one for each that is not."""
    needed = [one for one in map(Requirement, requirements) if one.marker is None or one.marker.evaluate({"extra": ""})]
    found = [_package(requirement) for requirement in needed]
    wrong = [finding for finding in found if finding.grade is not Grade.FINE]
    yield from wrong or [Finding("packages", f"all {len(found)} have versions that fit")]


def _package(requirement: Requirement) -> Finding:
    remedy = f"python -m pip install -c constraints.txt '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(requirement.name, "not installed", Grade.BROKEN, remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(requirement.name, version)
    return Finding(requirement.name, f"{version}, expected {requirement.specifier}", Grade.BROKEN, remedy)
