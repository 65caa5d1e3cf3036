"""Hooks of mkdocs: what ``mkdocs.yml`` cannot say.

The site is made of the same pages that a code host shows. ``docs/README.md`` is its only table of
contents; anchors are those of GitHub; a link to the source leads to the repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
GENERATED = "keys.md"
"""Page that is made with the site."""
_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\((\.\.?/[^)\s]*)\)")


def slugify(heading: str, separator: str = "-") -> str:
    """Return the anchor that GitHub gives a heading.

    >>> slugify("What is lost, and when")
    'what-is-lost-and-when'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def read_contents(index: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the sections of ``docs/README.md``: a heading, and title and file of each page."""
    for section in re.split(r"^## ", index, flags=re.M)[1:]:
        heading, _, body = section.partition("\n")
        pages = re.findall(r"^\| \[([^\]]+)\]\((\w+\.md)\) \|", body, re.M)
        if pages:
            yield heading.strip(), pages


def on_config(config: Any) -> Any:
    """Set the navigation and the form of anchors."""
    index = (DOCS / "README.md").read_text("utf-8")
    config["nav"] = [
        {"Contents": "README.md"},
        *({heading: [{t: f} for t, f in pages]} for heading, pages in read_contents(index)),
    ]
    config["mdx_configs"]["toc"] = {"slugify": slugify, "permalink": True}
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add what is made of the code: the page of keys, the JSON schemas of what is exported."""
    from mkdocs.structure.files import File

    from conf.write_reference import render_page
    from runners.campaigns.schema import SCHEMAS, json_schema

    files.append(File.generated(config, GENERATED, content=render_page()))
    for name in SCHEMAS:
        files.append(File.generated(config, f"schemas/{name}", content=json_schema(name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Turn links that leave ``docs/`` into links to the repository; into words if it has none."""
    address = str(config["repo_url"] or "").rstrip("/")
    folder = Path(page.file.src_path).parent

    def replace(found: re.Match[str]) -> str:
        label, target = found.groups()
        path = os.path.normpath(DOCS.name / folder / target.partition("#")[0])
        if path.startswith(f"{DOCS.name}/"):
            return found[0]
        return f"[{label}]({address}/blob/main/{path})" if address else f"{label} (`{path}`)"

    return _LINK.sub(replace, markdown)


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Show the pipes of code in a table's cell as a code host does: without their backslash."""
    return re.sub(r"<td>.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.S)
