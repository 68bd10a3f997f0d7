"""constraints.txt pins every package that an installation pulls in, exactly: an audit of it is an audit of all."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires, version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT

LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINS = {canonicalize_name(Requirement(line).name): Requirement(line) for line in LINES}
EXTRAS = ("dev", "gpu", "bench")
# `make` installs them for itself, or they come with torch for GPUs, whose versions torch pins.
UNPINNED = re.compile(r"pip|nvidia-.*|cuda-.*|triton-.*")


def needed() -> set[str]:
    """Names of all packages that the project pulls in here, with all extras."""
    found, open_ones = set[str](), [("comera-dist", extra) for extra in ("", *EXTRAS)]
    seen = set(open_ones)
    while open_ones:
        name, extra = open_ones.pop()
        for line in requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            child = canonicalize_name(requirement.name)
            found.add(child)
            fresh = {(child, wanted) for wanted in ("", *requirement.extras)} - seen
            if _is_installed(child):
                seen |= fresh
                open_ones += fresh
    return found - {"comera-dist"}


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


@pytest.mark.parametrize("line", LINES)
def test_every_version_is_exact(line):
    specifiers = [str(one) for one in Requirement(line).specifier]
    assert len(specifiers) == 1
    assert re.fullmatch(r"==[0-9][0-9A-Za-z.]*", specifiers[0]), line


def test_every_package_that_is_pulled_in_is_pinned():
    assert len(needed()) > 50
    assert sorted(name for name in needed() - PINS.keys() if not UNPINNED.fullmatch(name)) == []


def test_installed_packages_fit_each_other():
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_what_is_installed_is_what_is_pinned():
    """Of the packages that this version of Python takes as they are pinned."""
    pins = {name: pin for name, pin in PINS.items() if pin.marker is None or pin.marker.evaluate()}
    installed = {name: version(name).partition("+")[0] for name in needed() & pins.keys() if _is_installed(name)}
    assert {name: found for name, found in installed.items() if found not in pins[name].specifier} == {}
