"""Turns result files of benchmarks into Markdown tables: python benchmarks/markdown.py FILE.json ..."""

import json
import sys
from pathlib import Path


def table(rows: list[dict]) -> str:
    """A Markdown table with the columns of the first row; a missing or empty value is a dash."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(path: Path) -> str:
    """Title, machine and table of a result file."""
    result = json.loads(path.read_text(encoding="utf-8"))
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    return f"### {path.stem}\n\n{result['title']}\n\n{machine}\n\n{table(result['rows'])}\n"


def _cell(value) -> str:
    return "–" if value is None else str(value).replace("|", "\\|")


def main() -> None:
    for name in sys.argv[1:]:
        print(section(Path(name)))


if __name__ == "__main__":
    main()
