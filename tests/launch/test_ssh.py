"""The way by ssh from the first host to the others."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conf.errors import ConfigError
from launch.job_files import render_settings
from launch.job_preflight import find_job_problems
from launch.plan import plan_job
from tests.fakes.cluster import HOSTS, make_cluster
from tests.fakes.cluster_config import a_config

LOGIN = ("launch.login.user=trainer", "launch.login.port=2222", "launch.login.jump='me@gate:22'")


def options(*overrides: str) -> list[str]:
    """Return the options as a shell reads them."""
    settings = render_settings(plan_job(a_config(*overrides, launch="ssh")), ["agentrl"])
    script = f'{settings}\nprintf "%s\\n" "${{SSH_OPTIONS[@]}}"'
    printed = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    return printed.stdout.split()


def test_ssh_understands_the_options() -> None:
    given = options(*LOGIN, "launch.login.key=/keys/cluster")
    if shutil.which("ssh") is None:
        pytest.skip("ssh is missing (apt-get install openssh-client)")
    read = subprocess.run(
        ["ssh", *given, "-G", "node1"], capture_output=True, text=True, check=True
    )
    lines = read.stdout.splitlines()
    for line in ("user trainer", "port 2222", "identityfile /keys/cluster", "identitiesonly yes"):
        assert line in lines
    assert any(line.startswith("proxyjump me@gate") for line in lines)
    assert options() == []


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("launch.login.user='a b'", "launch.login.user"),
        ("launch.login.port=70000", "launch.login.port"),
        ("launch.login.key=id_rsa", "launch.login.key"),
        ("launch.login.jump='-oProxyCommand=x'", "launch.login.jump"),
    ],
)
def test_a_login_that_cannot_be_meant_is_refused(override: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        a_config(override, launch="ssh")
    assert re.search(rf"{re.escape(key)}=.* must be ", "".join(caught.value.faults))


def test_a_key_that_ssh_would_not_use_is_found_before_the_start(tmp_path: Path) -> None:
    hosts, key = tmp_path / "hosts", tmp_path / "key"
    hosts.write_text("localhost\n" * 8)
    asked = (f"launch.hosts_file={hosts}", f"launch.login.key={key}")

    def problems() -> str:
        plan = plan_job(a_config(*asked, launch="ssh"))
        return "\n".join(problem.message for problem in find_job_problems(plan))

    assert f"launch.login.key={key} cannot be read" in problems()
    key.write_text("a key")
    key.chmod(0o644)
    assert f"`chmod 600 {key}`" in problems()
    key.chmod(0o600)
    assert "launch.login.key" not in problems()


@pytest.mark.integration
def test_every_host_is_reached_with_the_login(tmp_path: Path) -> None:
    cluster = make_cluster(tmp_path)
    done = cluster.start(cluster.write("ssh", *LOGIN))
    assert done.returncode == 0, done.stderr
    calls = cluster.calls("ssh ")
    assert len(calls) == 2 * (len(HOSTS) - 1)  # each is started and stopped
    assert all(
        "-o User=trainer -o Port=2222 -o ProxyJump=me@gate:22 node" in call for call in calls
    )
