"""A report as a parser of HTML reads it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from runners.report.page import render_report
from runners.store.run_store import RunStore

_VOID = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """What a page holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.sections: dict[str, str] = {"": ""}
        """The text of each section, tooltips too; of what is before the first under ""."""
        self._open: list[str] = []
        self._section = ""
        self.feed(text)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = {name: value or "" for name, value in attrs}
        self.attributes += found.items()
        if tag == "section":
            self._section = found["id"]
            self.sections[self._section] = ""
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.sections[self._section] += f"{data} "


def page_of(store: RunStore) -> Page:
    """Return the report of a run."""
    return Page(render_report(store, Path(store.run_dir) / "report.html"))
