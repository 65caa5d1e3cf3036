"""Writes pages of a run, ``report.html``, and of runs side by side: one file each, without network.

Both are drawn by the scripts of ``export/page``, from a document that is in the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from conf.errors import AgentrlError, ExitCode
from runners.observe.export.html import NAME as EXPORTED_PAGE
from runners.observe.export.page_assets import build_document_page
from runners.observe.report.against import Against
from runners.observe.report.report_data import read_document
from runners.records.store import RunStore
from runners.system.processes import atomic_file

NAME = "report.html"
QUICK = 5_000
"""Attempts whose report takes about a second: up to there a run writes it at its end."""


class ReportError(AgentrlError):
    """The page cannot be written to its path."""

    exit_code = ExitCode.USAGE


def write_report(run_dir: Path, out: Path | None = None, against: Against | None = None) -> Path:
    """Write a run's report to ``out`` (None: ``RUN/report.html``) and return its path.

    ``against``: its comparison with another run, task by task. Raises StoreError and ReportError.
    """
    path = run_dir / NAME if out is None else out
    with RunStore.open(run_dir, read_only=True) as store:
        document = read_document(store, against)
    exported = (run_dir / "dump" / EXPORTED_PAGE).resolve()
    link = _link(exported, path) if exported.is_file() else None
    title = f"{run_dir.resolve().name} · report"
    _write(path, title, document.to_dict() | {"exported_page": link}, "--out")
    return path


def is_quick(run_dir: Path) -> bool:
    """Return whether a run's report takes about a second at most; raises StoreError."""
    with RunStore.open(run_dir, read_only=True) as store:
        ((attempts,),) = store.query("SELECT count(*) FROM rollout")
    return int(attempts) <= QUICK


def write_comparison(found: Mapping[str, Any], run_dirs: Sequence[Path], out: Path) -> None:
    """Write the page of ``compare_runs``' document; raises ReportError.

    It links the reports of the runs that have been written.
    """
    reports = [run_dir.resolve() / NAME for run_dir in run_dirs]
    links = [
        _link(each, out) if each.is_file() and each != out.resolve() else None for each in reports
    ]
    title = f"{len(run_dirs)} runs"
    document = {**found, "title": title, "reports": links, "written_at": time.time()}
    _write(out, f"{title} · comparison", document, "--html")


def _link(target: Path, page: Path) -> str:
    """Return the address of a file in a page that will lie at ``page``."""
    return quote(os.path.relpath(target, page.resolve().parent))


def _write(path: Path, title: str, document: Mapping[str, Any], option: str) -> None:
    """Write a page; raises ReportError, which names the option that chooses another path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as partial:
            partial.write_text(build_document_page(title, document), "utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportError(
            f"{path} cannot be written ({reason}): choose another {option}"
        ) from error
