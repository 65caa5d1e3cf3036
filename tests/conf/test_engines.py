"""Rules of engines with fixed weights: what cannot work is refused with the key and the fix."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.errors import ConfigError

VLLM = (
    *("engine=vllm", "engine.url=http://127.0.0.1:8000/v1", "model=local"),
    *("model.tokenizer=DIR", "model.renderer=qwen3", "run.steps=0"),
)


def test_vllm_evaluates_a_served_model() -> None:
    config = compose([*VLLM])
    assert (config.engine.kind, config.model.kind) == ("vllm", "local")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["run.steps=3"], ("run.steps=3", "engine=vllm", "engine=sglang")),
        (["routing_replay=rollout"], ("routing_replay=rollout", "set routing_replay=off")),
        (["model=tiny"], ("model.tokenizer=null", "set model=local")),
        (["model.renderer=chat_template"], ("model.renderer=chat_template", "engine=sglang")),
    ],
)
def test_what_cannot_work_with_vllm_is_refused_with_the_fix(
    changes: list[str], says: tuple[str, ...]
) -> None:
    keys = {change.partition("=")[0] for change in changes}
    kept = [line for line in VLLM if line.partition("=")[0] not in keys]
    if "model=tiny" in changes:
        kept = [line for line in kept if not line.startswith("model.")]
    with pytest.raises(ConfigError) as refused:
        compose([*kept, *changes])
    for part in says:
        assert part in str(refused.value)
