"""Histories of real runs, recorded as the adviser reads them.

``python -m tests.fakes.recorded_runs RUN NAME`` records a run; numbers keep six digits.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from runners.observe.adviser.history import History, StepFacts, read_history
from runners.records.store.run_store import RunStore

FOLDER = Path(__file__).parent / "recorded" / "adviser"
_SECTIONS = ("run", "scenario", "sampling", "seed")
"""What tells the runs apart; none of it names a path."""


def healthy_runs() -> dict[str, History]:
    """Return the runs in which an engineer found nothing wrong, by name."""
    return {path.name.partition(".")[0]: _load(path) for path in sorted(FOLDER.glob("well-*"))}


def ill_run(name: str) -> History:
    """Return a run that went wrong by itself: ``collapsed-early`` and others."""
    return _load(FOLDER / f"{name}.json.gz")


def _load(path: Path) -> History:
    document = json.loads(gzip.decompress(path.read_bytes()))
    steps = [StepFacts(**step) for step in document["steps"]]
    return History(document["config"], steps, document["duplicates"])


def record(run_dir: Path, name: str) -> Path:
    """Write the history of a run; return the file."""
    with RunStore.open(run_dir, read_only=True) as store:
        history = read_history(store)
    config = {name: history.config[name] for name in _SECTIONS}
    config["run"].pop("dir", None)
    document = {
        "config": config,
        "duplicates": history.duplicates,
        "steps": [
            {
                "step": each.step,
                "metrics": {key: _shorten(value) for key, value in each.metrics.items()},
                "outcomes": each.outcomes,
                "replaced": each.replaced,
            }
            for each in history.steps
        ],
    }
    path = FOLDER / f"{name}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return path


def _shorten(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    print(record(Path(sys.argv[1]), sys.argv[2]))
