"""The hosts that an agent on docker or E2B may reach, and the record of what it tried."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from conf.compose import compose
from conf.errors import ConfigError
from runners.sandboxes.contract import EgressAttempt, SandboxError, SandboxSpec
from runners.sandboxes.remote import containers, e2b
from runners.sandboxes.remote.egress import MOST_ATTEMPTS, EgressAccount, EgressPolicy, EgressProxy
from runners.tasks.contract import Origin, ScriptGrading, Task
from runners.tasks.repositories.task_repositories import denied_hosts
from tests.fakes.docker.installed import can_stand_in, docker_program
from tests.fakes.sandbox_backends import docker_settings

ALLOWED = EgressPolicy(("mirror.example", "*.wild.example"), ("github.com", "evil.wild.example"))
EVERYTHING = EgressPolicy(None, ("github.com",))


@pytest.mark.parametrize(
    ("policy", "host", "allowed"),
    [
        (EgressPolicy(()), "mirror.example", False),
        (ALLOWED, "mirror.example", True),
        (ALLOWED, "sub.mirror.example", False),
        (ALLOWED, "notmirror.example", False),
        (ALLOWED, "a.wild.example", True),
        (ALLOWED, "wild.example", False),
        (ALLOWED, "evil.wild.example", False),
        (EVERYTHING, "any.example", True),
        (EVERYTHING, "github.com", False),
        (EVERYTHING, "api.github.com", False),
        (EVERYTHING, "notgithub.com", True),
        (EVERYTHING, "140.82.121.4", False),
        (EVERYTHING, "2606:4700::1111", False),
    ],
)
def test_a_policy_allows_names_and_never_an_address(
    policy: EgressPolicy, host: str, allowed: bool
) -> None:
    assert policy.allows(host) is allowed


def test_what_a_sandbox_can_have_recorded_is_bounded() -> None:
    account = EgressAccount(EVERYTHING)
    for number in range(MOST_ATTEMPTS):
        assert account.admit(f"host-{number}.example", 443)
    assert account.admit("host-0.example", 443)
    assert not account.admit("one-more.example", 443), "what is not recorded is not allowed"
    assert len(account.attempts()) == MOST_ATTEMPTS


# --- the proxy ---------------------------------------------------------------------------------


class Origins:
    """A server in place of the internet; ``mirror.example`` leads to it."""

    def __init__(self) -> None:
        self.port = 0
        self.heard: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(await reader.read(4096))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    async def resolve(self, host: str, port: int) -> list[str]:
        return ["127.0.0.1"]


@asynccontextmanager
async def running_proxy() -> AsyncIterator[tuple[EgressProxy, Origins]]:
    origins = Origins()
    proxy = EgressProxy(origins.resolve)
    await proxy.start("127.0.0.1")
    async with await asyncio.start_server(origins.serve, "127.0.0.1", 0) as server:
        origins.port = server.sockets[0].getsockname()[1]
        yield proxy, origins
        await proxy.close()


async def exchange(proxy: EgressProxy, account: EgressAccount | None, request: str) -> bytes:
    """Send a request's first line with an account's credentials; return all that comes back."""
    url = proxy.environment(account or EgressAccount(EVERYTHING), "gateway")["HTTP_PROXY"]
    credentials, _, address = url.removeprefix("http://").partition("@")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    encoded = base64.b64encode(credentials.encode()).decode()
    lines = [request, "Host: x", "Keep-Alive: 5", f"Proxy-Authorization: Basic {encoded}", "", ""]
    writer.write("\r\n".join(lines).encode())
    if request.startswith("CONNECT"):
        writer.write(b"through the tunnel")
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.integration
async def test_an_allowed_host_is_reached_through_a_tunnel_and_recorded() -> None:
    async with running_proxy() as (proxy, origins):
        account = proxy.open_account(ALLOWED)
        answer = await exchange(proxy, account, f"CONNECT mirror.example:{origins.port} HTTP/1.1")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"hello")
        assert origins.heard == [b"through the tunnel"]
        assert account.attempts() == (EgressAttempt("mirror.example", origins.port, True, 1),)


@pytest.mark.integration
async def test_a_plain_request_goes_on_alone_and_without_the_credentials() -> None:
    async with running_proxy() as (proxy, origins):
        account = proxy.open_account(ALLOWED)
        url = f"http://mirror.example:{origins.port}/simple/?q=1"
        answer = await exchange(proxy, account, f"GET {url} HTTP/1.1")
    assert answer.endswith(b"hello")
    (heard,) = origins.heard
    assert heard.split(b"\r\n")[0] == b"GET /simple/?q=1 HTTP/1.1"
    assert b"Connection: close" in heard, "a second request might name another host"
    assert b"roxy" not in heard
    assert account.token.encode() not in heard


@pytest.mark.integration
@pytest.mark.parametrize(
    "line", ["CONNECT github.com:443 HTTP/1.1", "GET http://1.1.1.1/ HTTP/1.1"]
)
async def test_another_host_is_refused_and_recorded(line: str) -> None:
    async with running_proxy() as (proxy, origins):
        account = proxy.open_account(EVERYTHING)
        for _ in range(2):
            assert (await exchange(proxy, account, line)).startswith(b"HTTP/1.1 403")
        (attempt,) = account.attempts()
        assert (attempt.allowed, attempt.count) == (False, 2)
        assert not origins.heard


@pytest.mark.integration
async def test_only_a_sandbox_that_is_open_is_served() -> None:
    async with running_proxy() as (proxy, origins):
        line = f"CONNECT mirror.example:{origins.port} HTTP/1.1"
        assert (await exchange(proxy, None, line)).startswith(b"HTTP/1.1 407")
        account = proxy.open_account(ALLOWED)
        proxy.close_account(account)
        assert (await exchange(proxy, account, line)).startswith(b"HTTP/1.1 407")
        assert not origins.heard


@pytest.mark.integration
async def test_a_name_of_this_machine_is_refused_though_it_is_allowed() -> None:
    proxy = EgressProxy()
    await proxy.start("127.0.0.1")
    account = proxy.open_account(EgressPolicy(None))
    answer = await exchange(proxy, account, "CONNECT localhost:22 HTTP/1.1")
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"no public address" in answer
    await proxy.close()


@pytest.mark.integration
@pytest.mark.parametrize(
    "junk", ["", "GET", "CONNECT : HTTP/1.1", "GET ftp://x/ HTTP/1.1", "x" * 20000]
)
async def test_junk_is_answered_or_dropped_and_the_proxy_lives(junk: str) -> None:
    async with running_proxy() as (proxy, origins):
        account = proxy.open_account(ALLOWED)
        assert b" 200 " not in await exchange(proxy, account, junk)
        line = f"CONNECT mirror.example:{origins.port} HTTP/1.1"
        assert b" 200 " in await exchange(proxy, account, line)


# --- docker ------------------------------------------------------------------------------------

FETCH = "import urllib.request; urllib.request.urlopen('http://pypi.example/simple/', timeout=20)"


def agent(source: Path) -> SandboxSpec:
    return SandboxSpec("one", source, "gateway", gateway_url="http://127.0.0.1:8080")


@pytest.mark.integration
async def test_a_container_reaches_other_hosts_only_by_the_proxy_that_records_them(
    tmp_path: Path,
) -> None:
    if not can_stand_in():
        pytest.skip("this machine cannot stand in for a docker engine")
    (source := tmp_path / "source").mkdir()
    settings = docker_settings(network="agents", egress="none")
    with docker_program(tmp_path / "bin", internal="agents"):
        backend = containers.ContainerBackend(settings, tmp_path / "driver")
        sandbox = await backend.create(agent(source))
        result = await sandbox.run(["python", "-c", FETCH], deadline_s=60)
        assert b"403" in result.stderr, result
        assert sandbox.egress_attempts() == (EgressAttempt("pypi.example", 80, False, 1),)
        grader = await backend.create(SandboxSpec("two", source, "none"))
        shown = await grader.run(["env"], deadline_s=60)
        assert b"PROXY" not in shown.stdout
        await backend.close()
    assert "no other host" in backend.guarantees()["no network but the gateway"]


@pytest.mark.integration
async def test_a_network_that_leads_around_the_proxy_is_refused_with_the_fix(
    tmp_path: Path,
) -> None:
    if not can_stand_in():
        pytest.skip("this machine cannot stand in for a docker engine")
    (source := tmp_path / "source").mkdir()
    with docker_program(tmp_path / "bin"):
        backend = containers.ContainerBackend(docker_settings(egress="none"), tmp_path / "driver")
        with pytest.raises(SandboxError, match="network=bridge leads further: `docker network"):
            await backend.create(agent(source))
        other = docker_settings(egress="log", network="unknown")
        with pytest.raises(SandboxError, match="network unknown not found"):
            await containers.ContainerBackend(other, tmp_path / "other").create(agent(source))
        await backend.close()


@pytest.mark.integration
async def test_a_gateway_elsewhere_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"cannot listen on 192\.0\.2\.1.*gateway\.public_url"):
        await EgressProxy().start("192.0.2.1")


# --- E2B, tasks, configuration -----------------------------------------------------------------


def test_e2b_gets_the_allowed_hosts_but_not_the_tasks_own() -> None:
    hosts = ("mirror.example", "*.github.com", "github.com")
    spec = replace(agent(Path()), gateway_url="https://g.example", denied_hosts=("github.com",))
    assert e2b.egress(spec, hosts) == {
        "allow_out": ["g.example", "mirror.example"],
        "deny_out": ["0.0.0.0/0"],
    }
    assert e2b.egress(replace(spec, network="none"), hosts) == {"deny_out": ["0.0.0.0/0"]}


@pytest.mark.parametrize(
    ("url", "works"),
    [
        ("https://g.example", True),
        ("http://g.example:80", True),
        ("http://203.0.113.7:8080", True),
        ("http://g.example:8080", False),
        ("https://g.example:8443", False),
    ],
)
def test_a_gateway_whose_name_e2b_cannot_check_is_refused(url: str, works: bool) -> None:
    spec = replace(agent(Path()), gateway_url=url)
    if works:
        assert "allow_out" in e2b.egress(spec)
    else:
        with pytest.raises(SandboxError, match="port 80 and TLS on port 443"):
            e2b.egress(spec)


def test_a_real_projects_repository_and_package_indexes_are_denied() -> None:
    task = Task("t", "train", Path(), "", "", (), (), (), "", "bug")
    assert denied_hosts(task) == (), "a generated task is in no public place"
    origin = Origin("https://git.example/x.git", "0" * 40)
    real = replace(task, grading=ScriptGrading("eval_cmd", "pytest", "/testbed"), origin=origin)
    policy = EgressPolicy(None, denied_hosts(real))
    for host in ("github.com", "raw.githubusercontent.com", "pypi.org", "git.example"):
        assert not policy.allows(host)
    assert policy.allows("docs.python.org")


REMOTE = ["gateway.public_url=https://g.example", "gateway.port=443"]


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["sandbox=docker", "sandbox.egress=allow"], "name the hosts with egress=allow"),
        (["sandbox=e2b", "sandbox.egress_hosts=[a.example]"], "name the hosts with egress=allow"),
        (["sandbox=e2b", "sandbox.egress=log"], "sandbox.egress"),
        (
            ["sandbox=docker", "sandbox.egress=allow", "sandbox.egress_hosts=['http://x']"],
            "sandbox.egress_hosts",
        ),
    ],
)
def test_hosts_without_use_and_use_without_hosts_are_refused(
    overrides: list[str], found: str
) -> None:
    with pytest.raises(ConfigError, match=found):
        compose([*overrides, *REMOTE])
    compose(["sandbox=docker", "sandbox.egress=allow", "sandbox.egress_hosts=[a.example]", *REMOTE])
