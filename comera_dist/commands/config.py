"""Shows a configuration as a run would read it: python launch/config.py FILE [section.key=value …]

With --keys it lists every key instead, with its type, default and meaning.
"""

import argparse
import sys

import yaml
from rich.console import Console
from rich.table import Column, Table

from comera_dist.commands.arguments import refuse
from comera_dist.commands.shipped import config_file
from comera_dist.config.keys import key_sections
from comera_dist.config.reader import read_config
from comera_dist.errors import ComeraError

NARROWEST = 150  # columns of the table of keys; without a terminal rich would take 80


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", action="store_true", help="list every key of the configuration")
    parser.add_argument("file", nargs="?", help="YAML file, or name of a shipped configuration, e.g. quickstart")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of single keys")
    arguments = parser.parse_args()
    if arguments.keys:
        return _show_keys()
    if arguments.file is None:
        parser.error("name a configuration file, or give --keys")
    try:
        config = read_config(config_file(arguments.file), arguments.overrides)
    except ComeraError as error:
        return refuse(error, is_first=True)
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")
    return 0


def _show_keys() -> int:
    console = Console()
    table = Table(Column("key", no_wrap=True), "type", "default", Column("meaning", ratio=1))
    for section in key_sections():
        table.add_section()
        for key in section.keys:
            table.add_row(key.name, key.type, key.default, key.sentence)
    console.print(table, width=max(console.width, NARROWEST))
    return 0


if __name__ == "__main__":
    sys.exit(main())
