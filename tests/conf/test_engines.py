"""Rules of engines with fixed weights: what cannot work is refused with the key and the fix."""

from __future__ import annotations

import pytest

from conf.compose import compose, from_json, to_json
from conf.errors import ConfigError
from conf.exact_tokens import describe_inexactness

VLLM = (
    *("engine=vllm", "engine.url=http://127.0.0.1:8000/v1", "model=local"),
    *("model.tokenizer=DIR", "model.renderer=qwen3", "run.steps=0"),
)


OPENAI = ("engine=openai", "engine.url=http://127.0.0.1:8080/v1", "engine.model=m", "run.steps=0")
ANTHROPIC = ("engine=anthropic", "engine.url=https://a.example", "engine.model=m", "run.steps=0")


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


@pytest.mark.parametrize("endpoint", [OPENAI, ANTHROPIC])
def test_an_endpoint_brings_a_model_without_tokenizer_and_weights(
    endpoint: tuple[str, ...],
) -> None:
    config = compose([*endpoint])
    assert config.model.kind == "endpoint"
    assert (config.model.path, config.model.tokenizer, config.model.renderer) == (None, None, "")
    assert config.engine.kind in (describe_inexactness(config) or "")
    stored = config.model_dump(mode="json")
    assert describe_inexactness(stored) == describe_inexactness(config)
    assert from_json(to_json(config), source="config.json") == config


def test_exact_engines_and_other_documents_say_nothing() -> None:
    assert describe_inexactness(compose([*VLLM])) is None
    assert describe_inexactness(compose([])) is None
    assert describe_inexactness({}) is None
    assert describe_inexactness({"engine": None}) is None


@pytest.mark.parametrize(
    ("base", "changes", "says"),
    [
        (OPENAI, ["run.steps=3"], ("run.steps=3", "engine=openai", "agentrl eval")),
        (OPENAI, ["routing_replay=rollout"], ("routing_replay=rollout", "routing_replay=off")),
        (OPENAI, ["trainer=slime"], ("trainer=slime", "engine=openai")),
        (OPENAI, ["model=tiny"], ("model=tiny", "drop model=")),
        (OPENAI, ["model=local", "model.tokenizer=t", "model.renderer=qwen3"], ("drop model=",)),
        (OPENAI, ["sampling.top_k=5"], ("sampling.top_k=5", "add top_k to engine.sampling_fields")),
        (ANTHROPIC, ["sampling.top_p=0.5"], ("sampling.top_p=0.5", "set sampling.top_p=1")),
        (
            ANTHROPIC,
            ["sampling.eval_temperature=0"],
            ("sampling.eval_temperature=0", "add temperature", "sampling.eval_temperature=1"),
        ),
        (
            ANTHROPIC,
            ["engine.sampling_fields=[temperature]", "sampling.eval_temperature=1.5"],
            ("sampling.eval_temperature=1.5 is more than 1",),
        ),
        (ANTHROPIC, ["engine.sampling_fields=[seed]"], ("engine.sampling_fields",)),
        (VLLM, ["model=endpoint"], ("engine=vllm takes token ids", "engine=openai")),
        ((), ["model=endpoint"], ("engine=embedded takes token ids", "engine=openai")),
    ],
)
def test_what_cannot_work_with_an_endpoint_is_refused_with_the_fix(
    base: tuple[str, ...], changes: list[str], says: tuple[str, ...]
) -> None:
    keys = {change.partition("=")[0] for change in changes}
    kept = [line for line in base if line.partition("=")[0] not in keys]
    if "model=endpoint" in changes:
        kept = [line for line in kept if not line.startswith("model.")]
    with pytest.raises(ConfigError) as refused:
        compose([*kept, *changes])
    for part in says:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "//user:pass-9@host/v1",
        "http:////user:pass-9@host/v1",
        "http://user:pass-9@host/v1",
        "http://user:pa/pass-9@host/v1",
        "user:pass-9@host:80/v1",
        "'http://host/v1?api-key=pass-9'",
        "http://host/v1?api-key=pass-9",
        "'http://host/v1#pass-9'",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["engine=openai", f"engine.url={url}", "engine.model=m", "run.steps=0"])
    assert "engine.url" in str(refused.value)
    assert "pass-9" not in str(refused.value)
