"""The launcher of this process: the process's place in the run, and the ancestors without which it must not go on.

Imports nothing heavy: the first process reports a mistake in the command line before torch is imported.
"""

import os
import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import psutil

from comera_dist.errors import LaunchError

USUAL_PORT = 29500  # torch's default
DERIVED_PORTS = range(12000, 32000)  # chosen: below 32768, from where on Linux hands out ports by itself
# The ones that are set tell two jobs on one host apart.
JOB_IDS = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")


@dataclass(frozen=True)
class Launcher:
    """Environment variables of a launcher, which is at work if one of `signs` is set.

    They hold the index of the process, the number of processes (the first of `counts` that is set) and the index within
    the host.
    """

    name: str
    signs: tuple[str, ...]
    index: str
    counts: tuple[str, ...]
    local: str

    def is_at_work(self, variables: Mapping[str, str]) -> bool:
        return any(sign in variables for sign in self.signs)


_SLURM_COUNTS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
SRUN = Launcher("srun", ("SLURM_PROCID",), "SLURM_PROCID", _SLURM_COUNTS, "SLURM_LOCALID")
_WORLD = "OMPI_COMM_WORLD"
_OPENMPI = Launcher(
    "OpenMPI", (f"{_WORLD}_RANK", f"{_WORLD}_SIZE"), f"{_WORLD}_RANK", (f"{_WORLD}_SIZE",), f"{_WORLD}_LOCAL_RANK"
)
# The first one at work counts. mpirun and mpiexec start their daemons by srun, and processes inherit srun's variables,
# so these come first. In some clusters srun itself sets PMI_RANK and PMI_SIZE, but never MPI_LOCALRANKID.
LAUNCHERS = (
    Launcher("deepspeed or torchrun", ("RANK", "WORLD_SIZE"), "RANK", ("WORLD_SIZE",), "LOCAL_RANK"),
    _OPENMPI,
    Launcher("MPICH or Intel MPI", ("MPI_LOCALRANKID",), "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID"),
    SRUN,
    Launcher("PMI", ("PMI_RANK", "PMI_SIZE"), "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID"),
    Launcher("PMIx", ("PMIX_RANK",), "PMIX_RANK", ("PMIX_SIZE", "PMI_SIZE"), "PMIX_LOCAL_RANK"),
)
# Scripts and modules that Python runs as a launcher, and programs that are launchers. A shell or make is not one: a run
# may outlive it.
LAUNCHER_SCRIPTS = {
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
}
LAUNCHER_PROGRAMS = {"mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "prterun", "orted", "prted"}


@dataclass(frozen=True)
class Place:
    """This process is number `index` of `count`, and number `local` on its host; all meet at `address` and `port`."""

    index: int = 0
    count: int = 1
    local: int = 0
    address: str = "127.0.0.1"
    port: int = USUAL_PORT

    def variables(self) -> dict[str, str]:
        """The environment variables from which torch and DeepSpeed read the place."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
        return dict(zip(names, map(str, vars(self).values()), strict=True))


def find_place(variables: Mapping[str, str] = os.environ) -> Place:
    """The place that the launcher at work describes; without a launcher the process is alone.

    LaunchError if variables are missing or contradict each other.
    """
    launcher = next((one for one in LAUNCHERS if one.is_at_work(variables)), None)
    # sbatch gives its script index 0 and the job's SLURM_NTASKS, though srun did not start the script.
    is_batch_script = "SLURM_STEP_ID" not in variables and variables.get("ENVIRONMENT") == "BATCH"
    if launcher is None or (launcher is SRUN and is_batch_script):
        return Place()
    count_name = next((name for name in launcher.counts if name in variables), launcher.counts[0])
    index, count = (_number(variables, name, launcher) for name in (launcher.index, count_name))
    if index >= count:
        raise LaunchError(
            f"{launcher.index} = {index} and {count_name} = {count} contradict each other: processes are numbered from "
            f"0; set both as {launcher.name} does, or unset both to train with one process"
        )
    local = _number(variables, launcher.local, launcher) if launcher.local in variables else 0
    if count == 1:
        return Place(local=local)
    return Place(index, count, local, _address(variables, launcher, index == local), _port(variables, launcher))


def check_is_alone(command: str) -> None:
    """Raises LaunchError if a launcher started several processes, each of which would give the answer of `command`."""
    count = find_place().count
    if count > 1:
        raise LaunchError(
            f"{command} works on one process and {count} were started; start it with python instead of a launcher"
        )


def _number(variables: Mapping[str, str], name: str, launcher: Launcher) -> int:
    value = variables.get(name)
    if value is None or not value.isascii() or not value.isdigit():
        found = "is not set" if value is None else f"= {value!r} is not a number"
        shown = ", ".join(f"{sign} = {variables[sign]}" for sign in launcher.signs if sign in variables)
        raise LaunchError(
            f"{name} {found} beside {shown}; start the command with {launcher.name}, or unset the variables to train "
            f"with one process"
        )
    return int(value)


def _address(variables: Mapping[str, str], launcher: Launcher, may_share_host: bool) -> str:
    """The first process's host. A process on another host never has the same index in the run and on its host."""
    if "MASTER_ADDR" in variables:
        return variables["MASTER_ADDR"]
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST")
    if launcher is SRUN and nodes:
        return _first_host(nodes)
    if not may_share_host:
        raise LaunchError(
            f"MASTER_ADDR is not set and {launcher.name} does not tell where the first process runs; set it to the "
            f"first host's name on all of them"
        )
    return Place.address


def _first_host(nodes: str) -> str:
    """The first host of Slurm's short form: `gpu03` for `gpu[03-07,9],login`."""
    name = re.split(r",(?![^\[]*\])", nodes, maxsplit=1)[0]  # at the first comma outside of brackets
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", name)


def _port(variables: Mapping[str, str], launcher: Launcher) -> int:
    if "MASTER_PORT" in variables:
        return _number(variables, "MASTER_PORT", launcher)
    job = " ".join(variables[name] for name in JOB_IDS if name in variables)
    return DERIVED_PORTS[zlib.crc32(job.encode()) % len(DERIVED_PORTS)] if job else USUAL_PORT


@cache
def launching_ancestors() -> tuple[psutil.Process, ...]:
    """Launchers among the ancestors of this process at the first call; psutil identifies each by its time of birth."""
    with suppress(psutil.Error):
        return tuple(process for process in psutil.Process().parents() if _is_launcher(process))
    return ()


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, also if its parent has not waited for it yet."""
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def _is_launcher(process: psutil.Process) -> bool:
    try:
        words = [os.path.basename(word) for word in process.cmdline()]
    except psutil.Error:
        return False
    if not words or not words[0].startswith("python"):
        return bool(words) and words[0] in LAUNCHER_PROGRAMS
    # Options of the interpreter, such as -u and -m, stand before the script.
    return any(word in LAUNCHER_SCRIPTS for word in words[1:4])
