"""Starts a run again until it is finished: python launch/supervise.py --run runs/NAME -- deepspeed launch/pretrain.py …

The command may be a run under any launcher: deepspeed, torchrun, srun or mpirun. Fresh processes resume from the newest
checkpoint. A run is finished when the command ends with status 0 and the run has its summary.json, because a launcher
that is killed may end with 0. Status 2, a mistake of the user, is final. After any other end the command is started
again, after a pause that doubles as long as no new checkpoint comes. After --tries starts in a row without a new
checkpoint it gives up. A signal to stop is passed on to the run. Exit status: 0 finished, 2 a mistake, 75 stopped or
given up.
"""

import math
import os
import signal
import subprocess
import sys
import threading
from argparse import REMAINDER
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from comera_dist.checkpoints.disk import published, step_of
from comera_dist.commands.arguments import MISTAKE_STATUS, plain_parser, positive
from comera_dist.runtime.endings import POLL_SECONDS, TRY_AGAIN_STATUS, heeded_signals
from comera_dist.storage.run_directory import RunDirectory

LONGEST_PAUSE = 300.0  # seconds; chosen: a cluster's file system or network is often back within minutes
MOST_DOUBLINGS = 64  # of the pause; chosen: any pause is then the longest, and a float holds many more


class Supervisor:
    """Starts `command` until the run in `directory` is finished. `pause` is the first one, in seconds."""

    def __init__(self, command: Sequence[str], directory: RunDirectory, tries: int, pause: float):
        self._command, self._directory, self._tries, self._pause = command, directory, tries, pause
        self._child: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._signal: int | None = None  # that the run is still to get
        self._known = 0

    def run(self) -> int:
        """The exit status of the command supervise."""
        for number in heeded_signals():
            signal.signal(number, self._at_signal)
        fruitless, newest = 0, self._newest()
        while True:
            status = self._start()
            if status == MISTAKE_STATUS:
                return MISTAKE_STATUS
            self._wait_for_orphans()
            if status == 0 and self._directory.read_summary() is not None:
                return 0
            fruitless = 0 if self._newest() > newest else fruitless + 1
            newest = self._newest()
            if self._stop.is_set():
                return TRY_AGAIN_STATUS
            ended = self._end_of_start(status, newest)
            if fruitless == self._tries:
                _say(
                    f"{ended}; {fruitless} starts in a row brought no new checkpoint: mend what the messages above "
                    f"say, and start again"
                )
                return TRY_AGAIN_STATUS
            pause = min(LONGEST_PAUSE, self._pause * 2 ** min(max(0, fruitless - 1), MOST_DOUBLINGS))
            _say(f"{ended}; next start in {pause:g} s")
            if self._stop.wait(pause):
                return TRY_AGAIN_STATUS

    def _end_of_start(self, status: int, newest: int) -> str:
        path = self._directory.path
        if status == 0 and not newest and not (path / "config.yaml").exists():  # a launcher was killed early, or a slip
            return f"the command ended with status 0 and {path} holds no run: check that it is run.directory/run.name"
        return f"the run ended with status {status} after the checkpoint of step {newest}"

    def _start(self) -> int:
        """The exit status of the command. Its processes are a group, which gets our signals as a whole."""
        try:
            self._child = subprocess.Popen(self._command, start_new_session=True)
        except OSError as error:
            _say(f"{self._command[0]} cannot be started ({error.strerror}); give a command after --")
            return MISTAKE_STATUS
        self._pass_on()  # what came before the child was known
        return self._child.wait()

    def _newest(self) -> int:
        """The step of the newest checkpoint, 0 without one; the last one known while the disk is away."""
        try:
            folders = published(self._directory.checkpoints)
            self._known = step_of(folders[0]) if folders else 0
        except OSError as error:
            _say(f"{self._directory.checkpoints} cannot be read now ({error.strerror})")
        return self._known

    def _wait_for_orphans(self) -> None:
        """Waits until no process of the earlier start holds the run: they end by themselves without their launcher.

        A signal to stop ends the wait. So does a disk that is away: a start of a run that is held is refused anyway.
        """
        with suppress(OSError):
            holder, said = self._directory.holder(), None
            while holder is not None and not self._stop.is_set():
                if holder != said:
                    _say(f"the run is still held by {holder}; waiting for its end")
                    said = holder
                self._stop.wait(POLL_SECONDS)
                holder = self._directory.holder()

    def _at_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        self._stop.set()
        self._pass_on()

    def _pass_on(self) -> None:
        if self._signal is not None and self._child is not None and self._child.poll() is None:
            number, self._signal = self._signal, None
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)


def seconds(words: str) -> float:
    """A time, as argparse reads it."""
    found = float(words)
    if not 0 <= found < math.inf:
        raise ValueError(words)
    return found


def _say(sentence: str) -> None:
    print(f"supervise: {sentence}", file=sys.stderr, flush=True)


def main() -> int:
    """Returns the exit status."""
    parser = plain_parser(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="directory of the run: run.directory/run.name")
    parser.add_argument("--tries", type=positive, default=5, help="starts in a row without a checkpoint (default: 5)")
    parser.add_argument("--pause", type=seconds, default=5.0, help="first pause in seconds (default: 5)")
    parser.add_argument("command", nargs=REMAINDER, help="-- and the command that trains or resumes the run")
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command was given; add -- and the command that trains the run")
    return Supervisor(command, RunDirectory(arguments.run), arguments.tries, arguments.pause).run()


if __name__ == "__main__":
    sys.exit(main())
