"""A trace of some steps by torch's profiler, which chrome://tracing and ui.perfetto.dev show."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

MOST_ALLOCATIONS = 100_000  # in a snapshot of memory; the number of torch's tutorial on snapshots


class StepProfile:
    """Traces the steps from `first` to `last` of this process, and writes the trace into `folder` after the last one.

    With CUDA it also writes a snapshot of the allocations of these steps, for docs.pytorch.org/memory_viz. A file that
    cannot be written does not end the run. Everything else that the process does between these steps is in the trace.
    """

    def __init__(self, first: int, last: int, folder: Path):
        self._first, self._last, self._folder = first, last, folder
        self._profile: profile | None = None
        self._traced: list[int] = []

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Call it around every step of the run; steps count from 1."""
        if not self._first <= step <= self._last:
            yield
            return
        if self._profile is None:
            self._start()
        self._traced.append(step)
        with record_function(f"step {step}"):
            yield
        if step == self._last:
            self.close()

    def close(self) -> None:
        """Writes the steps that have been traced, if the run ends among them."""
        if self._profile is None:
            return
        self._profile.stop()
        try:
            self._write(self._profile, self._folder / f"steps_{self._traced[0]}-{self._traced[-1]}")
        except (OSError, RuntimeError) as error:
            print(f"The trace of steps cannot be written to {self._folder} ({error}); the run goes on.", flush=True)
        finally:
            if torch.cuda.is_available():  # also after an error: it notes the stack of every allocation
                torch.cuda.memory._record_memory_history(enabled=None)
        self._profile, self._traced = None, []

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS)
        self._profile = profile(activities=activities, record_shapes=True)
        self._profile.start()

    def _write(self, traced: profile, path: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        traced.export_chrome_trace(f"{path}.json")
        written = f"{path}.json"
        if torch.cuda.is_available():
            torch.cuda.memory._dump_snapshot(f"{path}.memory.pickle")  # type: ignore[no-untyped-call]
            written += f" and {path}.memory.pickle"
        print(f"Trace of steps: {written}.", flush=True)
