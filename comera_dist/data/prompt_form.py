"""The form in which a model gets a prompt and gives its answer, e.g. "Question: {prompt}\\nAnswer:{response}"."""

from comera_dist.errors import DataError

PROMPT, RESPONSE = "{prompt}", "{response}"
PLAIN = f"{PROMPT}\n{RESPONSE}"  # chosen: a line break ends the prompt


class PromptForm:
    """A template with one {prompt} and, at its end, one {response}. Raises DataError for another text.

    The answer stands at the end because the end of a document follows it, so the model learns where answers end.
    """

    def __init__(self, template: str):
        head = template.removesuffix(RESPONSE)
        if head == template or head.count(PROMPT) != 1 or RESPONSE in head:
            raise DataError(
                f"template {template!r} does not hold {PROMPT} once and then, at its end, {RESPONSE}; write one like "
                f"{PLAIN!r}"
            )
        self.template = template
        self.before, self.after = head.split(PROMPT)

    def asked(self, prompt: str) -> str:
        """The text up to the answer."""
        return f"{self.before}{prompt}{self.after}"

    def answered(self, prompt: str, response: str) -> str:
        """The text with its answer, as an earlier turn of a conversation stands in the prompts of later ones."""
        return f"{self.asked(prompt)}{response}\n"
