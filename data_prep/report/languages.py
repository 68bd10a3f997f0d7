"""Writing systems and languages of documents."""

from collections import Counter
from functools import cache

from fontTools import unicodedata
from py3langid.langid import MODEL_FILE, LanguageIdentifier

_LOOKED_AT = 1000  # chosen: characters of a document that tell its language
_LEAST_CONFIDENCE = 0.9  # chosen: below it a language counts as undetermined
_OF_NO_SCRIPT = ("Zyyy", "Zinh", "Zzzz")  # ISO 15924: common (digits, spaces, marks), inherited and unknown


class Languages:
    """Counts characters by script, and documents by the language of their beginning (ISO 639 codes)."""

    def __init__(self) -> None:
        self.scripts, self.languages = Counter[str](), Counter[str]()

    def add(self, text: str) -> None:
        for character, count in Counter(text).items():
            if (script := _script(character)) is not None:
                self.scripts[script] += count
        self.languages[_identifier().classify(text[:_LOOKED_AT])[0]] += 1


@cache
def _identifier() -> LanguageIdentifier:
    """The model in py3langid's package. It says "und" of a language that it is not sure of, and "zxx" of none."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_LEAST_CONFIDENCE)


@cache
def _script(character: str) -> str | None:
    """The name of its writing system; None of a character that is used in many, such as a digit."""
    code = unicodedata.script(character)
    return None if code in _OF_NO_SCRIPT else unicodedata.script_name(code)
