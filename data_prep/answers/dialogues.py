"""A dialogue as a row of a table holds it: one prompt with its answer, or the messages of a chat."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from comera_dist.data.prompt_form import PromptForm
from data_prep.files.rows import Row

ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    prompt: str
    response: str


class Dialogue(NamedTuple):
    """`where` is for messages. `system` is the text before the first turn, "" without one."""

    where: str
    turns: tuple[Turn, ...]
    system: str = ""

    @property
    def words(self) -> str:
        """The text that decides the split: the first prompt, with which all its examples begin.

        So no held-out text before an answer is in train, also where two chats begin alike. A later prompt, such as "Go
        on", may be in both.
        """
        return self.turns[0].prompt

    def examples(self, form: PromptForm) -> Iterator[Turn]:
        """An example for each turn: the text up to its answer, with all that came before, and the answer."""
        before = f"{self.system}\n" if self.system else ""
        for prompt, response in self.turns:
            yield Turn(before + form.asked(prompt), response)
            before += form.answered(prompt, response)


def chat_of(where: str, messages: Any) -> Dialogue:
    """The dialogue of a list of {"role", "content"}; a last prompt without an answer is left out.

    Raises ValueError, with the reason in words, for anything else than an optional system's text and then a user and an
    assistant by turns.
    """
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise ValueError(f"messages are no list of a role ({', '.join(ROLES)}) and a text as content each")
    has_system = bool(messages) and messages[0]["role"] == "system"
    spoken = messages[has_system:]
    if [one["role"] for one in spoken] != [ROLES[1 + place % 2] for place in range(len(spoken))]:
        raise ValueError("user and assistant do not take turns, beginning with the user")
    texts = [one["content"] for one in spoken]
    turns = tuple(Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=False))
    return Dialogue(where, turns, messages[0]["content"] if has_system else "")


def pair_of(where: str, row: Row, prompt_key: str, response_key: str) -> Dialogue:
    """The dialogue of one prompt and its answer. Raises ValueError, with the reason, if either is not a text."""
    for key in (prompt_key, response_key):
        if not isinstance(row.get(key), str):
            raise ValueError(f"no text under {key!r}")
    return Dialogue(where, (Turn(row[prompt_key], row[response_key]),))


def _is_message(message: Any) -> bool:
    is_whole = isinstance(message, dict) and isinstance(message.get("content"), str)
    return is_whole and message.get("role") in ROLES
