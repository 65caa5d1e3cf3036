"""Builds the section of a report about what a run has used, and what that costs."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from runners.report.cost import Cost
from runners.report.element import Child, make
from runners.report.number_format import UNKNOWN, format_count, format_significant
from runners.report.table import make_section, make_table

PRICES = {
    "gpu_hour": "GPU hours",
    "sandbox_hour": "sandbox hours",
    "input_token_million": "prompt tokens",
    "output_token_million": "sampled tokens",
}


def build_cost(cost: Cost) -> Element:
    """Return the table of what was used, with prices where the configuration has them."""
    amounts = {
        "gpu_hour": format_significant(cost.gpu_hours) if cost.gpu_hours else UNKNOWN,
        "sandbox_hour": format_significant(cost.sandbox_hours),
        "input_token_million": format_count(cost.prompt_tokens),
        "output_token_million": format_count(cost.sampled_tokens),
    }
    rows: list[list[Child]] = [["hours of the run", format_significant(cost.run_hours), ""]]
    for name, text in PRICES.items():
        price = cost.priced.get(name)
        rows.append([text, amounts[name], "" if price is None else f"{price:,.2f}"])
    if cost.total is not None:
        rows.append(["together", "", f"{cost.total:,.2f}"])
        each = cost.per_solved_task
        solved = f"for each of {cost.tasks_solved:,} solved tasks"
        rows.append([solved, "", UNKNOWN if each is None else f"{each:,.2f}"])
    note = "All attempts count: evaluations, and those that were retried."
    if not cost.priced:
        note += " With observe.prices it says what that costs."
    if not cost.gpu_hours:
        note += " GPUs are counted of a job, and with trainer.device=cuda."
    table = make_table(["", "used", "price"], rows, numbers=(1, 2))
    return make_section("Cost", table, make("p", note, class_="dim"))
