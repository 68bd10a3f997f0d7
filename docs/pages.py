"""A hook of mkdocs: makes pages of the Markdown files beside it, of the configuration's keys and of the code."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from comera_dist.config.keys import KeySection, key_sections

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(
    path.stem for path in (ROOT / "comera_dist").iterdir() if path.suffix in ("", ".py") and "__" not in path.name
)
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
KEYS_HEAD = """# Configuration keys

`comera-config --keys` prints this list. `section.key=value` on the command line overrides a key, and `null` stands for
a key that is not set.
"""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the pages of the API reference."""
    entry = next(entry for entry in config.nav if "API reference" in entry)
    entry["API reference"] = [
        {"public names": "api/index.md"},
        *({package: f"api/{package}.md"} for package in PACKAGES),
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to those of docs/."""
    pages = {target: as_page((ROOT / source).read_text()) for source, target in FROM_ROOT.items()}
    pages |= {f"api/{package}.md": f"::: comera_dist.{package}\n" for package in PACKAGES}
    pages["api/index.md"] = "::: comera_dist\n    options: {show_submodules: false}\n"
    pages["configuration.md"] = KEYS_HEAD + "".join(map(key_table, key_sections()))
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def as_page(text: str) -> str:
    """A file of the repository's root as a page: links lead to pages of the site, other files are only named."""

    def follow(link: re.Match) -> str:
        words, target = link.groups()
        if target.startswith(("http", "#")):
            return link[0]
        page = FROM_ROOT.get(target, target.removeprefix("docs/"))
        return f"[{words}]({page})" if page != target else words

    return re.sub(r"\[([^\]]*)\]\(([^)]+)\)", follow, text)


def key_table(section: KeySection) -> str:
    """The keys of a section as a table of Markdown."""
    rows = (
        f"| `{key.name}` | {key.type.replace('|', '&#124;')} | `{key.default}` | {key.sentence} |\n"
        for key in section.keys
    )
    head = "| key | type | default | meaning |\n|---|---|---|---|\n"
    return f"\n## {section.title or 'top level'}\n\n{section.text}\n\n{head}{''.join(rows)}"
