"""The tokenizer of a stored run, for the text of its tokens."""

from __future__ import annotations

from pathlib import Path

from runners.observe.export.contract import Decode
from runners.records.checkpoints import TOKENIZER, find_run_policy
from runners.records.store import RunStore
from runners.records.tokenizer import load_tokenizer


def find_decode(store: RunStore) -> Decode | None:
    """Return the ``decode`` of a run's tokenizer; None if it is not there any more."""
    directory = find_run_tokenizer(store)
    return None if directory is None else load_tokenizer(directory).decode


def find_run_tokenizer(store: RunStore) -> Path | None:
    """Return the directory of a run's tokenizer; None if it is not there any more."""
    config = store.config()
    model = config.get("model", {})
    kept = store.run_dir / TOKENIZER  # earlier runs have none
    # Without a tokenizer of its own a checkpoint in model.path has one beside it.
    for given in filter(None, (kept, model.get("tokenizer"), model.get("path"))):
        if (Path(given) / "tokenizer.json").is_file():
            return Path(given)
    return find_run_policy(store.run_dir, config) if model.get("kind") == "tiny" else None
