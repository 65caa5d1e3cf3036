"""A job that is started again goes on with the tasks with which it began."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.compose import compose
from runners.campaigns.slime.job_store import open_store
from runners.records.store.store_error import StoreError


async def test_a_job_whose_rows_have_changed_is_not_continued(tmp_path: Path) -> None:
    rows, run_dir = tmp_path / "rows.jsonl", tmp_path / "run"
    rows.write_text("{}\n")
    model = ["model=local", "model.path=m", "model.tokenizer=m", "model.renderer=qwen3"]
    engine = ["engine=sglang", "engine.url=http://127.0.0.1:9"]
    config = compose(["task=jsonl", f"task.path={rows}", *model, *engine])
    for _ in range(2):
        (await open_store(config, run_dir)).close()
    rows.write_text("{}\n{}\n")
    with pytest.raises(StoreError, match=r"rows\.jsonl has changed or is missing"):
        await open_store(config, run_dir)
    rows.write_text("{}\n")
    (await open_store(config, run_dir)).close()
