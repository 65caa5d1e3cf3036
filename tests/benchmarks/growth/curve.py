"""A cost over the size of the work, and the exponent of its growth."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("agg")

from matplotlib import pyplot as plt  # the backend is chosen first


@dataclass(frozen=True, slots=True)
class Curve:
    """What something costs at several sizes of the work."""

    part: str
    """What does the work: gateway, store, …"""
    cost: str
    """With its unit."""
    size: str
    """What grows."""
    limit: float
    """Exponent of work that does only what is new: 0 for a cost per piece, 1 for one of the whole.
    """
    points: tuple[tuple[float, float], ...]
    """Size and cost, by size."""

    @property
    def exponent(self) -> float:
        """Slope of the cost over the size, both as logarithms (least squares).

        A cost of 0 counts as a thousandth of the greatest: it is below what can be measured.
        """
        greatest = max(cost for _, cost in self.points)
        if greatest <= 0 or len(self.points) < 2:
            return 0.0
        sizes = [math.log(size) for size, _ in self.points]
        costs = [math.log(max(cost, greatest / 1000)) for _, cost in self.points]
        return statistics.linear_regression(sizes, costs).slope

    def row(self) -> dict[str, str]:
        """Return the curve as a row of a table."""
        (first, low), (last, high) = self.points[0], self.points[-1]
        return {
            "part": self.part,
            "cost": self.cost,
            "over": self.size,
            "from": f"{low:.3g} at {first:,.0f}",
            "to": f"{high:.3g} at {last:,.0f}",
            "exponent": f"{self.exponent:.2f}",
            "limit": f"{self.limit:g}",
        }


def plot_curves(curves: list[Curve], path: Path) -> None:
    """Write the curves as one PNG, a panel each, both axes logarithmic, the limit dashed."""
    columns = 3
    rows = math.ceil(len(curves) / columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(4 * columns, 3 * rows), layout="constrained", squeeze=False
    )
    for panel, curve in zip(panels.flat, curves, strict=False):
        sizes, found = zip(*curve.points, strict=True)
        costs = [max(cost, (max(found) or 1) / 1000) for cost in found]
        panel.loglog(sizes, costs, marker="o", color="#1f6feb")
        limit = [costs[0] * (size / sizes[0]) ** curve.limit for size in sizes]
        panel.loglog(sizes, limit, linestyle="--", color="#888888")
        # a decade at least: a flat curve is to look flat
        middle = math.sqrt(min(costs) * max(costs))
        panel.set_ylim(min(min(costs) / 1.2, middle / 3.2), max(max(costs) * 1.2, middle * 3.2))
        panel.set_title(f"{curve.part}: exponent {curve.exponent:.2f}", fontsize=10)
        panel.set_xlabel(curve.size, fontsize=8)
        panel.set_ylabel(curve.cost, fontsize=8)
        panel.tick_params(which="both", labelsize=7)
    for panel in list(panels.flat)[len(curves) :]:
        panel.axis("off")
    figure.savefig(path, dpi=80)
    plt.close(figure)
