"""A console that may go away: `… | head`, a closed terminal, a full disk behind `> file`."""

import sys


class KeptStream:
    """A text stream whose writes never fail: what nobody can read any more is dropped."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            return

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


def keep_streams() -> None:
    """From now on no print ends this process."""
    sys.stdout, sys.stderr = KeptStream(sys.stdout), KeptStream(sys.stderr)
