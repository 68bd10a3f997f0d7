"""Errors that a user can cause. Each message is one sentence: found, expected, remedy."""


class ComeraError(Exception):
    """Base of all errors that end a command with a sentence and exit status 2 instead of a traceback."""


class ConfigError(ComeraError):
    """The configuration asks for something unknown, ill-typed or impossible."""


class DataError(ComeraError):
    """A corpus, tokenizer or source text is missing, damaged or does not fit the run."""


class PassingError(ComeraError):
    """A host, a network or a disk fails that is often back later: the same command may succeed then."""


class CheckpointError(ComeraError):
    """A checkpoint is damaged, or does not fit the model or the corpus of the run."""


class DiskError(CheckpointError, PassingError):
    """A file cannot be read or written now, because a disk or a network file system is away."""


class LaunchError(ComeraError):
    """A process of the run does not know its index or their number, or cannot reach the others."""


class MeetingError(LaunchError, PassingError):
    """The processes of the run do not meet. The same command may succeed when a host or the network is back."""


class RunDirectoryError(ComeraError):
    """Another process holds the run's lock, or a file of the run cannot be read or written."""


class TrainingError(ComeraError):
    """Training cannot continue: the loss is not finite, a process does not answer, or processes differ in weights."""


class StopRequested(ComeraError):
    """A process is asked to stop while all of them validate; the run saves the step and ends."""


class RankDivergence(ComeraError):
    """Processes disagree about rank gates or cuts. The run stops before their models differ unnoticed."""


def first_line(error: Exception) -> str:
    """The first line of a library's error message; the name of the error's class if there is no message."""
    return (str(error).splitlines() or [type(error).__name__])[0]
