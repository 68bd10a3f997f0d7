"""Secrets in text: passwords in URLs, and the values of environment variables that hold keys, tokens or passwords."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

HIDDEN = "***"
SHORTEST = 8  # characters of a secret; chosen: a shorter value would be found in harmless words
# Names such as WANDB_API_KEY, HF_TOKEN, AWS_SECRET_ACCESS_KEY and PGPASSWORD; not TOKENIZERS_PARALLELISM.
_NAME = re.compile(r"(API|ACCESS|PRIVATE)_?KEY$|TOKEN$|SECRET|PASSWORD|PASSWD|_PASS$", re.IGNORECASE)
# The part of a URL before its host; one slash of two may be gone after the text was read as a path.
_IN_URL = re.compile(r"(?<=:/)(/?)[^\s/@'\"]*:[^\s/@'\"]+@")
_OPTION = re.compile(r"(?P<name>-*[\w.-]+)=.*", re.DOTALL)


def redacted(text: str, secrets: Sequence[str] | None = None) -> str:
    """`text` with *** in place of each secret; `secrets` are those of this process where nothing else is said."""
    for value in secret_values() if secrets is None else secrets:
        text = text.replace(value, HIDDEN)
    return _IN_URL.sub(rf"\1{HIDDEN}@", text)


def redacted_command(words: Iterable[str], variables: Mapping[str, str] = os.environ) -> list[str]:
    """The words of a command line without secrets, also without the values of options such as --hf-token."""
    found, is_value, secrets = list[str](), False, secret_values(variables)
    for word in words:
        option = _OPTION.fullmatch(word)
        if is_value:
            found.append(HIDDEN)
        elif option and _names_secret(option["name"]):
            found.append(f"{option['name']}={HIDDEN}")
        else:
            found.append(redacted(word, secrets))
        is_value = word.startswith("-") and option is None and _names_secret(word)
    return found


def secret_values(variables: Mapping[str, str] = os.environ) -> list[str]:
    """The values of the variables that are secret, longest first: one may be a part of another."""
    found = (value for name, value in variables.items() if _NAME.search(name) and len(value) >= SHORTEST)
    return sorted(found, key=len, reverse=True)


def holds_secret(words: list[str]) -> bool:
    """Whether a command line holds one."""
    return redacted_command(words) != words


def _names_secret(option: str) -> bool:
    return _NAME.search(option.replace("-", "_").replace(".", "_")) is not None
