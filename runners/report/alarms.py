"""Builds the section of a report about the adviser's alarms."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from runners.adviser.adviser import ALARMS
from runners.adviser.alarm import Alarm
from runners.report.element import Child, make
from runners.report.report_data import ReportData
from runners.report.table import make_section, make_table


def build_alarms(facts: ReportData) -> Element | None:
    """Return every illness that the run had, those that it has now first; None without steps."""
    if not facts.steps:
        return None
    raised: dict[str, list[tuple[int, Alarm]]] = {}
    for row in facts.steps:
        for alarm in row[ALARMS]:
            raised.setdefault(alarm["name"], []).append((row["step"], Alarm(**alarm)))
    if not raised:
        return make_section(
            "Alarms", make("p", "✓ The adviser found nothing wrong.", class_="good")
        )
    last = facts.steps[-1]["step"]
    ordered = sorted(raised.values(), key=lambda found: (found[-1][0] != last, found[0][0]))
    rows: list[list[Child]] = []
    for found in ordered:
        newest, alarm = found[-1]
        rows.append(
            [
                make("code", alarm.name),
                name_ranges([step for step, _ in found]),
                "now" if newest == last else "over",
                make("span", alarm.evidence, class_="message"),
                make("span", alarm.fix, class_="message"),
            ]
        )
    columns = ["alarm", "after steps", "", "evidence, the last", "fix"]
    return make_section("Alarms", make_table(columns, rows))


def name_ranges(steps: list[int]) -> str:
    """Return ``3–5, 9`` for steps in order."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and step == ranges[-1][1] + 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in ranges)
