"""Run the referee on our own gateway; print or write the section of docs/referee.md about it.

python -m tests.documentation.referee_column            # print it
python -m tests.documentation.referee_column --write    # put it into the page
"""

from __future__ import annotations

import argparse
import asyncio
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentrl.referee.adapters import read_samples
from agentrl.referee.clients import APIS, ApiClient, HttpClient
from agentrl.referee.conversation import TrainedSample
from agentrl.referee.judge import Cell
from agentrl.referee.policy import CueEngine, Vocabulary
from agentrl.referee.program import Scenario, load_scenarios
from agentrl.referee.report import describe_run, list_rows, write_scores, write_totals
from agentrl.referee.trial import Trial
from agentrl.referee.wires import serve_engine
from runners.records.checkpoints import SHIPPED
from tests.fakes.running_gateway import Gateway, running_gateway

PAGE = Path(__file__).parents[2] / "docs" / "referee.md"
_SECTION = re.compile(r"(<!-- made by [^\n]*-->\n).*?(?=\n## )", re.DOTALL)
TIMEOUT_S = 20.0


class OwnGateway:
    """Our gateway, in this process."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def open(self, wire: str) -> tuple[ApiClient, Any]:
        session, key = await self._gateway.admin.create_session(None)
        headers = {"authorization": f"Bearer {key}"}
        return HttpClient(wire, self._gateway.url, headers, TIMEOUT_S), session

    async def finish(self, handle: Any) -> list[TrainedSample]:
        ended = await self._gateway.admin.finish(handle)
        return read_samples(
            [
                {**row, "mask": row["loss_mask"], "versions": row["weight_versions"]}
                for row in ended["segments"]
            ]
        )


@asynccontextmanager
async def own_trial(run_dir: Path) -> Any:
    """Yield a trial of our gateway, and its vocabulary."""
    vocabulary = Vocabulary(SHIPPED)
    engine = CueEngine(vocabulary)
    async with (
        serve_engine(engine) as url,
        running_gateway(url, SHIPPED, run_dir, ping_s=5.0) as gateway,
    ):
        yield Trial(OwnGateway(gateway), engine)


async def judge_own(run_dir: Path, scenarios: Iterable[Scenario]) -> tuple[list[Cell], str]:
    """Return the cells of our gateway on all APIs, and why the run ended early."""
    async with own_trial(run_dir) as trial:
        cells, ended = await trial.run(scenarios, list(APIS))
        return cells, ended


def write_section(run: dict[str, Any]) -> str:
    """Return the section in Markdown: the totals, and each scenario that is not clean."""
    wires, rows = list_rows(run)
    return "\n".join(
        [
            f"Run on {run['date']}, {len(rows)} scenarios on {len(wires)} APIs:",
            f"{write_totals(run)}.",
            "",
            *_write_table(wires, rows),
            "",
        ]
    )


def _write_table(wires: Sequence[str], rows: Sequence[Any]) -> Iterator[str]:
    yield f"| scenario that is not clean | {' | '.join(wires)} |"
    yield f"|---|{'---|' * len(wires)}"
    for group, name, cells in rows:
        if any(cell["state"] != "clean" for cell in cells.values()):
            shown = (write_scores(cells[wire]) if wire in cells else "" for wire in wires)
            yield f"| {group}: `{name}` | {' | '.join(shown)} |"


def read_section(page: str) -> str:
    """Return the section of the page without its first line, which has a date."""
    found = _SECTION.search(page)
    assert found is not None
    return found[0].partition("\n")[2].partition("\n")[2]


def main() -> None:
    """Run, then print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as place:
        cells, ended = asyncio.run(judge_own(Path(place) / "run", load_scenarios().values()))
    if ended:
        raise SystemExit(f"the run ended early: {ended}")
    run = describe_run(cells, Vocabulary(SHIPPED), gateway="agentrl")
    section = write_section(run)
    if write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(_SECTION.sub(lambda found: found[1] + section, page), "utf-8")
    else:
        print(section)


if __name__ == "__main__":
    main()
