"""The result of one check."""

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """What a finding means for a run."""

    FINE = "ok"
    DOUBTFUL = "look"  # a run starts, and may be slow or miss something
    BROKEN = "mend"  # a run does not start or may fail


@dataclass(frozen=True)
class Finding:
    """What `check` found in words; `remedy` says what to do unless all is fine."""

    check: str
    found: str
    grade: Grade = Grade.FINE
    remedy: str = ""
