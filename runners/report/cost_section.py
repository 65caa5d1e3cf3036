"""Builds the section of a report about what a run has used, and what that costs."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from runners.observe.cost import Cost, format_amount, format_price
from runners.report.element import Child, make
from runners.report.number_format import UNKNOWN, format_quantity
from runners.report.table import make_section, make_table


def build_cost(cost: Cost) -> Element:
    """Return the table of what was used, with prices where the configuration has them."""
    rows: list[list[Child]] = [
        [
            item.name,
            format_used(amount),
            "" if price is None else format_price(price),
        ]
        for item, amount, price in cost.items()
    ]
    if cost.total is not None:
        rows.append(["together", "", format_price(cost.total)])
        each = cost.per_solved_task
        solved = f"for each of {format_quantity(cost.tasks_solved, 'solved task')}"
        rows.append([solved, "", UNKNOWN if each is None else format_price(each)])
    note = "All attempts count: evaluations, and those that were retried."
    if not cost.priced:
        note += " With observe.prices it says what that costs."
    if cost.gpu_hours is None:
        note += " GPUs are counted of a job, and with trainer.device=cuda."
    measured, held = cost.cpu_attempts
    if held and not measured:
        note += " CPU time is measured in local sandboxes only."
    elif measured < held:
        note += f" CPU time was measured in {measured:,} of {held:,} attempts."
    table = make_table(["", "used", "price"], rows, numbers=(1, 2))
    return make_section("Cost", table, make("p", note, class_="dim"))


def format_used(amount: float | None) -> str:
    """Return an amount as a cell; a dash if it is not known."""
    return UNKNOWN if amount is None else format_amount(amount)
