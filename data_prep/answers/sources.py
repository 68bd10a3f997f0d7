"""Sources of dialogues. Another kind is a class like these that is added to Dialogues.kinds."""

from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.answers.dialogues import Dialogue, chat_of, pair_of
from data_prep.files.finding import glob_paths
from data_prep.files.hub import HubStream
from data_prep.files.reading import is_utf8
from data_prep.files.rows import Table, check_readable, file_table
from data_prep.files.skips import Skips
from data_prep.files.sources import Sources

TOO_LONG = "too_long"
SKIPPED = ("empty", "bad_encoding", "broken_line", "broken_file", "held_out", TOO_LONG)


@dataclass(frozen=True)
class Keys:
    """Columns of a row: a prompt and its answer, or the messages of a chat. A row with messages is a chat."""

    prompt: str = "prompt"
    response: str = "response"
    messages: str = "messages"


class DialogueFiles:
    """Tables with a header, or of JSON lines."""

    usage = "files:GLOB"

    def __init__(self, pattern: str, keys: Keys):
        self._paths, self._keys = glob_paths(pattern), keys
        for path in self._paths:
            check_readable(path)

    def read(self, skips: Skips) -> Iterator[Dialogue]:
        for path in self._paths:
            yield from _dialogues(file_table(path, skips), self._keys, skips)


class HubDialogues:
    """Columns of a data set of the Hugging Face hub."""

    usage = "hub:NAME[:CONFIG[:SPLIT]]"

    def __init__(self, spec: str, keys: Keys):
        self._spec, self._keys = spec, keys

    def read(self, skips: Skips) -> Iterator[Dialogue]:
        return _dialogues(HubStream(self._spec).table(), self._keys, skips)


class Dialogues(Sources[Dialogue]):
    kinds = (DialogueFiles, HubDialogues)

    def fault(self, item: Dialogue) -> tuple[str, str] | None:
        texts = [text for turn in item.turns for text in turn]
        if not all(map(is_utf8, [*texts, item.system])):
            return "bad_encoding", "a text that is not UTF-8"
        if not texts or not all(text.strip() for text in texts):
            return "empty", "no answer, or an empty prompt or answer"
        return None


def _dialogues(table: Table, keys: Keys, skips: Skips) -> Iterator[Dialogue]:
    for where, row in table.rows:
        table.check(row, (keys.prompt, keys.messages), option="prompt-key")
        try:
            if keys.messages in row:
                yield chat_of(where, row[keys.messages])
            else:
                yield pair_of(where, row, keys.prompt, keys.response)
        except ValueError as error:
            skips.add("broken_line", where, str(error))
