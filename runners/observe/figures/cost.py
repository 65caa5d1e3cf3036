"""Reckon what a run has used, and what that costs where the configuration has prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runners.records.outcome import TEARDOWN, Stage
from runners.records.store import SAMPLED_TOKENS, RunStore
from runners.system.processes import CPU_S

HELD = (Stage.BOOT, Stage.HARNESS, Stage.PATCH, TEARDOWN, Stage.GRADE)
"""Stages during which an attempt holds a sandbox: its own, or that of its grading."""
HOUR_S, MILLION = 3600.0, 1e6


@dataclass(frozen=True, slots=True)
class Item:
    """A kind of use that a reader is shown."""

    name: str
    heading: str
    """Its short name, above a column."""
    field: str
    """Of ``Cost``: the amount, None where it is not known."""
    price: str | None = None
    """Its key of ``observe.prices``; None: it has no price."""
    per: float = 1.0
    """The amount that the price is of."""


ITEMS = (
    Item("hours of the run", "run h", "run_hours"),
    Item("GPU hours", "GPU h", "gpu_hours", "gpu_hour"),
    Item("sandbox hours", "sandbox h", "sandbox_hours", "sandbox_hour"),
    Item("CPU hours in them", "CPU h", "cpu_hours"),
    Item("prompt tokens", "prompt", "prompt_tokens", "input_token_million", MILLION),
    Item("sampled tokens", "sampled", "sampled_tokens", "output_token_million", MILLION),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """The use of a run so far, over all its attempts: retried ones and evaluations too."""

    run_hours: float
    """In which its driver ran."""
    gpu_hours: float | None
    """Of the GPUs that a job holds, or the local trainer is given; None: none is known."""
    sandbox_hours: float
    """In which attempts held a sandbox."""
    cpu_hours: float | None
    """Of processors, that commands in these used, as far as it was measured; None: nowhere."""
    cpu_attempts: tuple[int, int]
    """Attempts whose CPU time was measured, and all that held a sandbox."""
    prompt_tokens: int
    """Of stored turns, what the engine had cached included."""
    sampled_tokens: int
    tasks_solved: int
    """Tasks that a rollout solved."""
    priced: dict[str, float]
    """By the key of the price; only what has one, and is known."""

    @property
    def total(self) -> float | None:
        """Sum of what has a price; None if nothing has."""
        return sum(self.priced.values()) if self.priced else None

    @property
    def per_solved_task(self) -> float | None:
        """``total`` by the tasks that were solved; None without one."""
        total = self.total
        return total / self.tasks_solved if total is not None and self.tasks_solved else None

    def items(self) -> Iterator[tuple[Item, float | None, float | None]]:
        """Yield each kind of use, its amount, and its price, None where one is not known."""
        for item in ITEMS:
            price = None if item.price is None else self.priced.get(item.price)
            yield item, getattr(self, item.field), price

    def describe(self) -> Iterator[tuple[str, str]]:
        """Yield names and values for a terminal; the tokens that were sampled it has elsewhere."""
        for item, amount, _ in self.items():
            if item.field != "sampled_tokens":
                yield item.name, format_amount(amount)
        if self.total is not None:
            each = self.per_solved_task
            of = (
                "no task is solved"
                if each is None
                else f"{format_price(each)} for each solved task"
            )
            yield "price", f"{format_price(self.total)}, {of}"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return asdict(self) | {"total": self.total, "per_solved_task": self.per_solved_task}


def format_amount(amount: float | None) -> str:
    """Return an amount as text: hours with three digits or more, counts whole."""
    if amount is None:
        return "not known"
    if isinstance(amount, int):
        return f"{amount:,}"
    return f"{amount:,.0f}" if amount >= 99.95 else f"{amount:.3g}"


def format_price(price: float) -> str:
    """Return a price: hundredths, and of less than one three significant digits."""
    return f"{price:,.2f}" if price >= 1 or not price else f"{price:.3g}"


def read_cost(store: RunStore, config: dict[str, Any], wall_s: float) -> Cost:
    """Return the cost of a run whose driver ran for ``wall_s`` seconds; raises StoreError."""
    held = " + ".join(f"coalesce(json_extract(timings, '$.{stage}'), 0)" for stage in HELD)
    ((seconds, holders, solved, cpu_s, measured),) = store.query(
        f"SELECT coalesce(sum(held), 0), count(CASE WHEN held > 0 THEN 1 END), count(DISTINCT "
        "CASE WHEN counts AND solved THEN task_id END), sum(cpu_s), count(cpu_s) FROM "
        f"(SELECT {held} AS held, json_extract(extra, '$.{CPU_S}') AS cpu_s, counts, solved, "
        "task_id FROM rollout)"
    )
    ((prompts, sampled),) = store.query(
        "SELECT coalesce(sum(json_extract(usage, '$.prompt_tokens')), 0), "
        f"coalesce(sum({SAMPLED_TOKENS}), 0) FROM turn"
    )
    hours = wall_s / HOUR_S
    gpus = count_gpus(config)
    used = Cost(
        run_hours=hours,
        gpu_hours=hours * gpus if gpus else None,
        sandbox_hours=seconds / HOUR_S,
        cpu_hours=None if cpu_s is None else cpu_s / HOUR_S,
        cpu_attempts=(measured, max(holders, measured)),
        prompt_tokens=prompts,
        sampled_tokens=sampled,
        tasks_solved=solved,
        priced={},
    )
    prices = config.get("observe", {}).get("prices", {})  # runs of older versions have none
    priced = {
        item.price: amount / item.per * prices[item.price]
        for item, amount, _ in used.items()
        if item.price is not None and amount is not None and prices.get(item.price) is not None
    }
    return replace(used, priced=priced)


def count_gpus(config: dict[str, Any]) -> int:
    """Return the GPUs of a configuration: of the nodes of a job, or of the local trainer."""
    launch, trainer = config.get("launch", {}), config.get("trainer", {})
    if "gpus_per_node" in launch:
        return int(launch.get("nodes") or 1) * int(launch["gpus_per_node"] or 0)
    return int(trainer.get("devices", 1)) if trainer.get("device") == "cuda" else 0


def read_run_cost(run_dir: Path) -> Cost:
    """Return the cost of the run in a directory; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        return read_cost(store, store.config(), store.state().spent_s)
