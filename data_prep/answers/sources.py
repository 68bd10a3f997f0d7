"""Sources of dialogues. Another kind is a class like these that is added to Dialogues.kinds."""

from collections.abc import Iterator
from dataclasses import dataclass

from data_prep.answers.dialogues import Dialogue, chat_of, pair_of
from data_prep.files.reading import is_utf8
from data_prep.files.rows import Table
from data_prep.files.skips import Skips
from data_prep.files.sources import Sources
from data_prep.files.table_sources import HubTable, TableFiles

EMPTY, TOO_LONG = "empty", "too_long"
SKIPPED = (EMPTY, "bad_encoding", "broken_line", "broken_file", "held_out", TOO_LONG)


@dataclass(frozen=True)
class Keys:
    """Columns of a row: a prompt and its answer, or the messages of a chat. A row with messages is a chat."""

    prompt: str = "prompt"
    response: str = "response"
    messages: str = "messages"

    def items(self, table: Table, skips: Skips) -> Iterator[Dialogue]:
        for where, row in table.rows:
            table.check(row, (self.prompt, self.messages), option="prompt-key")
            try:
                if row.get(self.messages) is not None:  # a table has the column in every row
                    yield chat_of(where, row[self.messages])
                else:
                    yield pair_of(where, row, self.prompt, self.response)
            except ValueError as error:
                skips.add("broken_line", where, str(error))


class Dialogues(Sources[Dialogue]):
    kinds = (TableFiles, HubTable)

    def fault(self, item: Dialogue) -> tuple[str, str] | None:
        texts = [text for turn in item.turns for text in turn]
        if not all(map(is_utf8, [*texts, item.system])):
            return "bad_encoding", "a text that is not UTF-8"
        if not texts or not all(text.strip() for text in texts):
            return EMPTY, "no answer, or an empty prompt or answer"
        return None
