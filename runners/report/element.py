"""HTML and SVG as trees of elements.

Whatever a string says, it is text or the value of an attribute, never markup: only ``make`` builds
elements, and only ``written`` turns them into a document.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from runners.observe.terminal import make_printable

Child = Element | str | None


def make(tag: str, *children: Child, **attributes: object) -> Element:
    """Return an element; ``class_`` is ``class`` and ``stroke_width`` ``stroke-width``. What is
    None is left out.
    """
    element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            element.set(name.rstrip("_").replace("_", "-"), _said(value))
    add(element, *children)
    return element


def add(element: Element, *children: Child) -> None:
    """Add children at the end of an element."""
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif child is not None and len(element):
            element[-1].tail = (element[-1].tail or "") + make_printable(child)
        elif child is not None:
            element.text = (element.text or "") + make_printable(child)


def written(page: Element) -> str:
    """Return the document."""
    return "<!doctype html>\n" + tostring(page, encoding="unicode", method="html") + "\n"


def _said(value: object) -> str:
    return (
        f"{value:.2f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else make_printable(str(value))
    )
