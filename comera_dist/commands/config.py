"""Shows a configuration as a run would read it: python launch/config.py FILE [section.key=value …]

With --keys it lists every key instead, with its type, default and meaning.
"""

import sys

import yaml
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from comera_dist.commands.arguments import plain_parser, printing, refuse
from comera_dist.commands.shipped import config_file
from comera_dist.config.keys import key_sections
from comera_dist.config.reader import read_config
from comera_dist.errors import ComeraError

NARROWEST = 150  # characters in a line of the table of keys, so that no name is cut off; narrow terminals wrap lines


@printing()
def main() -> int:
    """Returns the exit status."""
    parser = plain_parser(__doc__)
    parser.add_argument("--keys", action="store_true", help="list every key of the configuration")
    parser.add_argument("file", nargs="?", help="YAML file, or name of a shipped configuration, e.g. quickstart")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of single keys")
    arguments = parser.parse_args()
    if arguments.keys:
        _show_keys()
        return 0
    if arguments.file is None:
        parser.error("name a configuration file, or give --keys")
    try:
        config = read_config(config_file(arguments.file), arguments.overrides)
    except ComeraError as error:
        return refuse(error, is_first=True)
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")
    return 0


def _show_keys() -> None:
    """One table for each section."""
    console = Console(width=max(Console().width, NARROWEST))
    for section in key_sections():
        text = section.text.split("\n\n")[0].replace("\n", " ")
        console.print(Text(f"{section.title}: {text}", style="bold"))
        table = Table(Column("key", no_wrap=True), "type", "default", Column("meaning", ratio=1), box=box.SIMPLE_HEAD)
        for key in section.keys:
            table.add_row(*map(Text, (key.name, key.type, key.default, key.sentence)))
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
