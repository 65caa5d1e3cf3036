"""Sections and tables of a report."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from xml.etree.ElementTree import Element

from runners.report.element import Child, make


def section(title: str, *content: Child) -> Element:
    """Return a part of the page under its title, which the head of the page links to."""
    return make("section", make("h2", title), *content, id=title.lower().replace(" ", "-"))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Child]], *, numbers: Container[int] = ()
) -> Element:
    """Return a table; the columns in ``numbers`` are figures, to the right."""

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


def folded(title: str, *content: Child) -> Element:
    """Return what is shown when somebody opens it."""
    return make("details", make("summary", title), *content)
