"""The site has every page once, its links lead somewhere, and its pictures are small and whole."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.documentation.site import (
    DOCS,
    GENERATED,
    on_config,
    on_page_content,
    on_page_markdown,
    read_contents,
)

PICTURES = sorted((DOCS / "pictures").iterdir())
LARGEST, ALL_OF_THEM = 200_000, 1_000_000
"""Bytes: a clone stays small, a page loads at once."""


def test_the_table_of_contents_has_every_page_once() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    listed = [file for _, pages in read_contents(index) for _, file in pages]
    assert sorted(listed) == sorted(
        {*(page.name for page in DOCS.glob("*.md")), GENERATED} - {"README.md"}
    )


def test_the_navigation_has_the_kinds_of_pages_in_order() -> None:
    config: dict[str, object] = {"mdx_configs": {}}
    navigation = on_config(config)["nav"]
    assert [next(iter(entry)) for entry in navigation] == [
        *("Contents", "Start", "How to", "Explanation", "Reference")
    ]
    assert {"Quickstart": "quickstart.md"} in navigation[1]["Start"]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("", "as `x.py` (`runners/x.py`) and [keys](keys.md#a) and ![p](../p.png)"),
        (
            "https://host/a/b/",
            "as [`x.py`](https://host/a/b/blob/main/runners/x.py) and [keys](keys.md#a) "
            "and ![p](../p.png)",
        ),
    ],
    ids=["no repository", "repository"],
)
def test_a_link_to_the_source_leads_to_the_repository(address: str, shown: str) -> None:
    text = "as [`x.py`](../runners/x.py) and [keys](keys.md#a) and ![p](../p.png)"
    page = SimpleNamespace(file=SimpleNamespace(src_path="when_it_fails.md"))
    assert on_page_markdown(text, page=page, config={"repo_url": address}, files=None) == shown


def test_a_pipe_in_a_table_has_no_backslash_and_one_in_a_program_keeps_it() -> None:
    html = r"<td><code>[run \| eval]</code></td><pre><code>grep 'a\|b'</code></pre>"
    shown = on_page_content(html, page=None, config=None, files=None)
    assert shown == r"<td><code>[run | eval]</code></td><pre><code>grep 'a\|b'</code></pre>"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_shown_by_a_page_and_described(picture: Path) -> None:
    assert picture.stat().st_size <= LARGEST
    texts = [page.read_text("utf-8") for page in DOCS.glob("*.md")]
    shown = [
        alt
        for text in texts
        for alt in re.findall(rf"!\[([^\]]*)\]\(pictures/{re.escape(picture.name)}\)", text)
    ]
    assert shown
    assert all(len(alt.split()) >= 4 for alt in shown)


def test_all_pictures_together_are_small() -> None:
    assert sum(path.stat().st_size for path in PICTURES) <= ALL_OF_THEM


@pytest.mark.parametrize(
    "picture", [p for p in PICTURES if p.suffix == ".svg"], ids=lambda path: path.name
)
def test_a_drawing_loads_nothing(picture: Path) -> None:
    text = picture.read_text("utf-8")
    assert not re.search(r"""(href|src)\s*=|url\((?!\w*#)|@import|<script""", text)
