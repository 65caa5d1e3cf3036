"""The starting policy: shipped whole, kept by each run, and found again for an earlier run."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from conf.cache import cache_root
from conf.compose import compose
from runners.engines.embedded.weights import load_weights
from runners.records.checkpoints import (
    SHIPPED,
    StartingPolicyError,
    check_files,
    find_run_policy,
    find_shipped_policy,
    keep_policy,
    keep_tokenizer,
)
from runners.records.tokenizer import load_tokenizer, write_tiny_tokenizer

CONFIG = compose([]).model_dump(mode="json")


def test_the_shipped_policy_is_whole_small_and_fits_its_tokenizer() -> None:
    directory = find_shipped_policy()
    sizes = [file.stat().st_size for file in directory.iterdir()]
    assert max(sizes) < 1_000_000
    assert sum(sizes) <= 5_000_000
    config = load_weights(directory).config
    assert config.vocab_size == load_tokenizer(directory).vocab_size
    assert config.max_position == CONFIG["model"]["max_context_tokens"]


@pytest.mark.parametrize("name", sorted(file.name for file in SHIPPED.iterdir()))
def test_a_damaged_or_missing_file_is_named_with_the_way_out(name: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(SHIPPED, tmp_path / "copy"))
    check_files(copy)
    content = (copy / name).read_bytes()
    for damaged in (content[:-1], content[:-1] + b"!", None):
        (copy / name).unlink()
        if damaged is not None:
            (copy / name).write_bytes(damaged)
        with pytest.raises(StartingPolicyError, match=r"is damaged .* install agentrl again, or"):
            check_files(copy)
        (copy / name).write_bytes(content)


def test_a_run_keeps_the_policy_that_it_began_with(tmp_path: Path) -> None:
    kept = keep_policy(tmp_path, CONFIG, began=False)
    check_files(kept)
    (kept / "config.json").write_text("of another version")
    assert keep_policy(tmp_path, CONFIG, began=True) == kept
    assert (kept / "config.json").read_text() == "of another version"
    assert find_run_policy(tmp_path, CONFIG) == kept


def test_a_run_keeps_the_tokenizer_that_it_began_with_and_nothing_else(tmp_path: Path) -> None:
    given, run_dir = tmp_path / "model", tmp_path / "run"
    write_tiny_tokenizer(given)
    (given / "model.safetensors").write_bytes(b"weights")
    (run_dir / ".tokenizer.partial").mkdir(parents=True)
    keep_tokenizer(run_dir, given)
    kept = run_dir / "tokenizer"
    assert load_tokenizer(kept).decode([5, 6]) == load_tokenizer(given).decode([5, 6])
    assert sorted(file.name for file in run_dir.rglob("*.*") if file.is_file()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    (given / "tokenizer.json").write_text("of another model")
    keep_tokenizer(run_dir, given)
    assert load_tokenizer(kept).vocab_size > 0
    keep_tokenizer(tmp_path, kept)
    assert not (tmp_path / "tokenizer").exists(), "it is in the run already"


def test_a_tokenizer_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(StartingPolicyError, match="the tokenizer cannot be kept in"):
        keep_tokenizer(tmp_path / "run", write_tiny_tokenizer(tmp_path / "model"))


def test_an_earlier_run_goes_on_with_its_cached_policy_or_its_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That version cached what it made under a hash of these inputs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(StartingPolicyError, match="start a new run"):
        keep_policy(tmp_path, CONFIG, began=True)
    for step in (1, 2):
        newest = tmp_path / "checkpoints" / f"step-{step:06}"
        write_tiny_tokenizer(newest)
    assert keep_policy(tmp_path, CONFIG, began=True) == newest
    inputs = {
        **{"copying_steps": 120, "demonstrations": 2000, "elsewhere": 0.05},
        **{"max_context_tokens": 1024, "renderer": "qwen3", "right": 0.27},
        **{"scenario": "linear", "seed": 0, "told": 0.6, "verify": 0.2},
        **{"version": 3, "vocabulary": 1000, "warmup_steps": 300},
    }
    name = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]
    cached = write_tiny_tokenizer(cache_root() / "tiny" / name)
    assert keep_policy(tmp_path, CONFIG, began=True) == cached
    elsewhere = CONFIG | {"model": CONFIG["model"] | {"cache_dir": str(tmp_path / "none")}}
    assert find_run_policy(tmp_path, elsewhere) == newest
