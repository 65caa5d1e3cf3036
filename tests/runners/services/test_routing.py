"""The routing that a policy must have to be replayed, checked before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ConfigError, ExitCode
from runners.records.routing import RoutingShape
from runners.services.policy import find_captured_shape

MOE = {"num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}


def model(directory: Path, config: dict[str, int] | None) -> Path:
    """Write a model's configuration, or none."""
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_routing_is_captured_in_the_policy_s_shape_only_where_it_is_replayed(
    tmp_path: Path,
) -> None:
    weights = model(tmp_path, MOE)
    found = {
        kind: find_captured_shape(compose([f"routing_replay={kind}"]), weights)
        for kind in ("off", "recompute", "rollout")
    }
    shape = RoutingShape(layers=2, top_k=2, experts=8, routed=(0, 1))
    assert found == {"off": None, "recompute": None, "rollout": shape}


@pytest.mark.parametrize("kind", ["recompute", "rollout"])
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"num_hidden_layers": 2}, "the policy in it is dense; set routing_replay=off"),
        ({"num_experts": 8}, "no num_experts_per_tok"),
        (None, "No such file"),
    ],
)
def test_a_policy_without_routing_is_refused_with_the_fix(
    tmp_path: Path, kind: str, config: dict[str, int] | None, reason: str
) -> None:
    with pytest.raises(ConfigError, match=f"routing_replay={kind} needs a policy") as caught:
        find_captured_shape(compose([f"routing_replay={kind}"]), model(tmp_path, config))
    assert reason in str(caught.value)
    assert "routing_replay=off" in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_dense_policy_runs_where_nothing_is_replayed(tmp_path: Path) -> None:
    dense = model(tmp_path, {"num_hidden_layers": 2})
    assert find_captured_shape(compose([]), dense) is None


def test_an_engine_whose_policy_nobody_named_needs_a_path() -> None:
    with pytest.raises(ConfigError, match=r"model\.path=null.*set model\.path, or"):
        find_captured_shape(compose(["routing_replay=rollout"]), None)
