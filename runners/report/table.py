"""Builds the sections and tables of a report."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from xml.etree.ElementTree import Element

from runners.report.element import Child, make


def make_section(title: str, *content: Child) -> Element:
    """Return a section with its title, to which the head of the page links."""
    return make("section", make("h2", title), *content, id=title.lower().replace(" ", "-"))


def make_table(
    columns: Sequence[Child], rows: Iterable[Sequence[Child]], *, numbers: Container[int] = ()
) -> Element:
    """Return a table; the columns in ``numbers`` are aligned to the right."""

    def cells(tag: str, row: Sequence[Child]) -> Element:
        return make(
            "tr",
            *(
                make(tag, cell, class_="number" if place in numbers else None)
                for place, cell in enumerate(row)
            ),
        )

    body = make("tbody", *(cells("td", row) for row in rows))
    return make("div", make("table", make("thead", cells("th", columns)), body), class_="scrolled")


def list_more(number: int, where: str = "") -> Element | None:
    """Return a line about entries that are not shown, and where they are; None if all are."""
    if number <= 0:
        return None
    return make("p", f"and {number:,} more{f': {where}' if where else ''}", class_="dim")


def make_details(title: str, *content: Child, opened: bool = False) -> Element:
    """Return content that a reader can fold; at first it is, unless ``opened``."""
    return make("details", make("summary", title), *content, open="open" if opened else None)
