"""Frames and writes a page: one HTML file, which has no scripts and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from conf.errors import AgentrlError, ExitCode
from runners.processes.atomic_write import atomic_file
from runners.report.element import make, render_html

_STYLE = Path(__file__).with_name("page.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class ReportError(AgentrlError):
    """The page cannot be written to its path."""

    exit_code = ExitCode.USAGE


def render_document(title: str, head: Element, sections: Sequence[Element | None]) -> str:
    """Return the page of the sections that there are, with links to each below its head."""
    shown = [section for section in sections if section is not None]
    names = [(section[0].text or "", f"#{section.get('id')}") for section in shown]
    bar = make("nav", *(make("a", name, href=place) for name, place in names))
    return render_html(
        make(
            "html",
            make(
                "head",
                make("meta", charset="utf-8"),
                make("meta", name="viewport", content="width=device-width, initial-scale=1"),
                make("meta", http_equiv="Content-Security-Policy", content=_POLICY),
                make("title", title),
                make("style", _STYLE.read_text("utf-8")),
            ),
            make("body", head, bar, make("main", *shown)),
            lang="en",
        )
    )


def write_document(path: Path, text: str, option: str) -> None:
    """Write a page; raises ReportError, which names the option that chooses another path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            partial.write_text(text, "utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(
            f"{path} cannot be written ({reason}): choose another {option}"
        ) from error
