"""The parser of all commands."""

import argparse
import sys
from typing import Any, NoReturn

from comera_dist.config.secrets import redacted_command


class Parser(argparse.ArgumentParser):
    """Ends with status 2 for a mistake, and repeats no secret."""

    def error(self, message: str) -> NoReturn:
        self.end_with(" ".join(redacted_command(message.split(" "))))

    def end_with(self, sentence: str) -> NoReturn:
        """Prints `sentence`, without secrets, and ends the process with status 2."""
        super().error(sentence)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses --option=--, for which Python before 3.13 stores an empty list in place of a value."""
        words = list(sys.argv[1:] if args is None else args)
        for word in words:
            if word.startswith("--") and word.endswith("=--"):
                self.error(f"argument {word.removesuffix('=--')}: -- is not a value; name one")
        return super().parse_known_args(words, namespace)
