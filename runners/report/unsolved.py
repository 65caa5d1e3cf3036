"""Builds the section of a report about why rollouts do not solve their tasks."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from runners.report.element import Child, make
from runners.report.links import Links
from runners.report.number_format import format_count, format_share
from runners.report.report_data import ReportData
from runners.report.table import make_details, make_section, make_table

_SHOWN = 12


def build_unsolved(facts: ReportData, links: Links) -> Element | None:
    """Return the verdicts of unsolved rollouts by their reason, each with the end of a log."""
    causes = sorted(facts.sums.causes.values(), key=lambda cause: -cause.count)
    if not causes:
        return None
    whole = sum(cause.count for cause in causes)
    rows: list[list[Child]] = [
        [
            make("span", cause.reason, class_="message"),
            format_count(cause.count),
            format_share(cause.count / whole),
            links.to(cause.rollout_id),
            make_details("end of its log", make("pre", cause.tail)) if cause.tail else "",
        ]
        for cause in causes[:_SHOWN]
    ]
    more = len(causes) - _SHOWN
    note = make("p", f"{more:,} more reasons.", class_="dim") if more > 0 else None
    table = make_table(["reason", "rollouts", "", "for example", ""], rows, numbers=(1, 2))
    return make_section("Unsolved", table, note)
