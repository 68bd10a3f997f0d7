"""Errors that a user can cause. Each message is one sentence: what was found, what was expected, what to do."""


class ComeraError(Exception):
    """Base of all errors that end a command with a sentence and exit status 2 instead of a traceback."""


class ConfigError(ComeraError):
    """The configuration asks for something unknown, ill-typed or impossible."""


class DataError(ComeraError):
    """A corpus, tokenizer or source text is missing, damaged or does not fit the run."""


class CheckpointError(ComeraError):
    """A checkpoint is damaged, or does not fit the model or the corpus of the run."""


class LaunchError(ComeraError):
    """The processes of the run do not know their places, or cannot meet."""


class RunDirectoryError(ComeraError):
    """Another process holds the run, or a file of it cannot be read or written."""


class TrainingError(ComeraError):
    """Training cannot go on: the loss is not finite, a process stopped answering, or weights have drifted apart."""


class RankDivergence(ComeraError):
    """Processes disagree about the rank gates, or about what to cut: the run stops before they part silently."""


def first_line(error: Exception) -> str:
    """Of what a library says of its error, for a sentence of ours; the name of its class where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]
