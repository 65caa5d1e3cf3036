"""Rules between remote sandboxes and the rest of the configuration."""

from __future__ import annotations

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.sections.sandbox import ContainerSandboxConfig, E2bSandboxConfig

E2B = ["sandbox=e2b", "gateway.public_url=https://g.example/", "gateway.port=8080"]


def fault(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    (found,) = caught.value.faults
    return found


def test_remote_sandboxes_compose() -> None:
    e2b = compose(E2B)
    assert isinstance(e2b.sandbox, E2bSandboxConfig)
    assert e2b.gateway.public_url == "https://g.example"
    for kind in ("docker", "podman"):
        containers = compose([f"sandbox={kind}", *E2B[1:]]).sandbox
        assert isinstance(containers, ContainerSandboxConfig)
        assert containers.kind == kind


@pytest.mark.parametrize("kind", ["e2b", "docker", "podman"])
def test_a_remote_sandbox_needs_the_gateway_s_public_url(kind: str) -> None:
    found = fault(f"sandbox={kind}")
    assert found.startswith(f"gateway.public_url=null, but sandbox={kind}")
    assert "set gateway.public_url" in found


def test_apptainer_carries_the_gateway_into_its_sandboxes() -> None:
    assert compose(["sandbox=apptainer"]).sandbox.kind == "apptainer"
    allowed = "sandbox.egress_hosts=[example.com]"
    assert "name the hosts with egress=allow" in fault("sandbox=apptainer", allowed)
    compose(["sandbox=apptainer", "sandbox.egress=allow", allowed])


def test_a_public_url_needs_a_fixed_port() -> None:
    assert "set gateway.port" in fault("gateway.public_url=https://g.example")


def test_a_sandbox_lives_as_long_as_an_attempt_may() -> None:
    found = fault(*E2B, "sandbox.lifetime_s=200", "rollout.deadlines.guard_s=250")
    assert found.startswith("sandbox.lifetime_s=200 is less than rollout.deadlines.guard_s=250")
    assert found.endswith("raise sandbox.lifetime_s")
    compose([*E2B, "sandbox.lifetime_s=250", "rollout.deadlines.guard_s=250"])


def test_a_size_needs_a_service_of_images() -> None:
    assert "set sandbox.image_key" in fault(*E2B, "sandbox.size=lg")
    compose([*E2B, "sandbox.size=lg", "sandbox.image_key=example.com/image"])


def test_a_sandbox_refuses_the_keys_of_another() -> None:
    assert "sandbox.isolation" in fault(*E2B, "sandbox.isolation=auto")


def test_local_limits_of_the_agent_program_do_not_apply_to_remote_sandboxes() -> None:
    compose([*E2B, "harness=claude_code"])


def test_the_port_of_the_metrics_is_not_that_of_the_agents() -> None:
    with pytest.raises(ConfigError, match=r"gateway\.metrics_port=8080 is gateway\.port, too"):
        compose(["gateway.port=8080", "gateway.metrics_port=8080"])
    compose(["gateway.port=8080", "gateway.metrics_port=8081"])
