"""An HTTP proxy as the only way out for sandboxes on a network that leads to this machine alone.

Each sandbox has credentials of its own, so an attempt is known by its sandbox. Every attempt is
recorded, whether it is allowed or not.

Invariant: only names are allowed, only if the sandbox's policy allows them, and only at public
addresses: neither this machine's own services nor those of its network are reached. What a sandbox
can make the proxy keep or carry is bounded.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from runners.sandboxes.contract import EgressAttempt, SandboxError

HEAD_BYTES = 16 << 10
HEAD_S = 30.0
CONNECT_S = 10.0
IDLE_S = 300.0
"""A tunnel in which nothing flows for so long is closed."""
CHUNK = 1 << 16
MOST_CONNECTIONS = 32
"""Of one sandbox at a time."""
MOST_BYTES = 2 << 30
"""That one sandbox sends and receives."""
MOST_ATTEMPTS = 200
"""Different hosts and ports that are recorded for one sandbox; further ones are refused."""

HOP_BY_HOP = ("connection:", "proxy-", "keep-alive:")
"""Beginnings of header lines that are the proxy's own."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a name that may be connected to; raises OSError."""


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """The hosts that a sandbox may reach."""

    hosts: tuple[str, ...] | None
    """Names; ``*.example.com`` stands for every subdomain. None: all."""
    denied: tuple[str, ...] = ()
    """Names that are never allowed, nor their subdomains."""

    def allows(self, host: str) -> bool:
        """Return whether the name of a host is allowed; an address never is."""
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(host.strip("[]"))
            return False
        if is_below(host, self.denied):
            return False
        return self.hosts is None or any(_matches(host, pattern) for pattern in self.hosts)


def narrow_hosts(
    hosts: tuple[str, ...] | None, limit: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """Return the hosts, or patterns of them, that both allow; None: all."""
    if hosts is None or limit is None:
        return limit if hosts is None else hosts
    pairs = ((hosts, EgressPolicy(limit)), (limit, EgressPolicy(hosts)))
    both = [each for some, other in pairs for each in some if other.allows(each)]
    return tuple(dict.fromkeys(both))


def is_below(host: str, names: tuple[str, ...]) -> bool:
    """Return whether a host, or a pattern of hosts, is one of some names or a subdomain of one."""
    plain = host.removeprefix("*.")
    return any(plain == name or plain.endswith(f".{name}") for name in names)


def _matches(host: str, pattern: str) -> bool:
    wildcard = pattern.startswith("*.") and host.endswith(pattern[1:])
    return host == pattern or wildcard


@dataclass(slots=True)
class EgressAccount:
    """One sandbox's policy and what it tried; mutated by the proxy."""

    policy: EgressPolicy
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    connections: int = 0
    bytes_left: int = MOST_BYTES
    tried: Counter[tuple[str, int, bool]] = field(default_factory=Counter)

    def attempts(self) -> tuple[EgressAttempt, ...]:
        """Return what was tried, each host and port once."""
        return tuple(EgressAttempt(*key, count) for key, count in sorted(self.tried.items()))

    def admit(self, host: str, port: int) -> bool:
        """Record an attempt; return whether it is allowed."""
        allowed = self.policy.allows(host)
        key = (host, port, allowed)
        if key not in self.tried and len(self.tried) >= MOST_ATTEMPTS:
            return False
        self.tried[key] += 1
        return allowed


class EgressRefusal(Exception):
    """A request that is answered with a status and a line, and goes nowhere."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


def proxy_environment(account: EgressAccount, address: str, gateway_host: str) -> dict[str, str]:
    """Return the variables by which programs find the proxy at ``host:port``."""
    url = f"http://agentrl:{account.token}@{address}"
    direct = f"{gateway_host},localhost,127.0.0.1"
    both = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": direct}
    return {**both, **{name.lower(): value for name, value in both.items()}}


async def resolve_public(host: str, port: int) -> list[str]:
    """Return the public addresses of a name; raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(address[4][0]) for address in found)
    return [each for each in addresses if ipaddress.ip_address(each.partition("%")[0]).is_global]


class EgressProxy:
    """A proxy on one address of this machine."""

    def __init__(self, resolve: Resolve = resolve_public) -> None:
        self._resolve = resolve
        self._accounts: dict[str, EgressAccount] = {}
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    async def start(self, address: str) -> None:
        """Listen on any free port of an address, if it does not yet; raises SandboxError."""
        async with self._lock:
            if self._server is not None:
                return
            try:
                self._server = await asyncio.start_server(self._serve, address, 0, limit=HEAD_BYTES)
            except OSError as error:
                raise SandboxError(
                    f"the egress proxy cannot listen on {address}: {error}; gateway.public_url "
                    "must name an address of this machine on the sandboxes' network (of podman's: "
                    "as root, with netavark, while a container is on it)"
                ) from error

    def open_account(self, policy: EgressPolicy) -> EgressAccount:
        """Return a new sandbox's account."""
        account = EgressAccount(policy)
        self._accounts[account.token] = account
        return account

    def close_account(self, account: EgressAccount) -> None:
        """Accept nothing from a sandbox any more; its attempts stay."""
        self._accounts.pop(account.token, None)

    def environment(self, account: EgressAccount, gateway_host: str) -> dict[str, str]:
        """Return the variables by which the programs in a sandbox find the proxy."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return proxy_environment(account, f"{host}:{port}", gateway_host)

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        """Serve on a listening socket too, until the server that is returned is closed."""
        return await asyncio.start_server(self._serve, sock=listener, limit=HEAD_BYTES)

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._answer(reader, writer)
        except EgressRefusal as refusal:
            text = f"agentrl: {refusal}\n"
            lines = [f"HTTP/1.1 {refusal.status} Refused", f"Content-Length: {len(text)}"]
            lines += ["Connection: close", 'Proxy-Authenticate: Basic realm="agentrl"', "", text]
            writer.write("\r\n".join(lines).encode())
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the sandbox's client went away, or speaks no HTTP
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request's head and carry what follows; raises EgressRefusal."""
        try:
            async with asyncio.timeout(HEAD_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            raise EgressRefusal(431, "the request's head is too large") from None
        request, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = request.split(" ")
        account = self._find_account(lines)
        tunnel = method == "CONNECT"
        url = urlsplit(f"//{target}" if tunnel else target)
        host = (url.hostname or "").rstrip(".")
        port = url.port or (443 if tunnel else 80)
        if not host or (not tunnel and url.scheme != "http"):
            raise EgressRefusal(400, "only http://… and CONNECT host:port")
        if not account.admit(host, port):
            raise EgressRefusal(403, f"this sandbox may not reach {host}:{port}")
        if account.connections >= MOST_CONNECTIONS:
            raise EgressRefusal(429, f"more than {MOST_CONNECTIONS} connections")
        account.connections += 1
        try:
            there, to_there = await self._connect(host, port)
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = f"{url.path or '/'}{'?' if url.query else ''}{url.query}"
                # One request per connection: the next might name another host.
                kept = [line for line in lines if not line.lower().startswith(HOP_BY_HOP)]
                text = [f"{method} {path} {version}", *kept, "Connection: close", "", ""]
                to_there.write("\r\n".join(text).encode("latin-1"))
            await _carry(account, (reader, to_there), (there, writer))
        finally:
            account.connections -= 1

    def _find_account(self, lines: list[str]) -> EgressAccount:
        for line in lines:
            name, _, value = line.partition(":")
            if name.lower() == "proxy-authorization":
                scheme, _, encoded = value.strip().partition(" ")
                with contextlib.suppress(ValueError):
                    given = base64.b64decode(encoded).decode("latin-1").partition(":")[2]
                    if scheme.lower() == "basic" and given in self._accounts:
                        return self._accounts[given]
        raise EgressRefusal(407, "the proxy's credentials are missing or over")

    async def _connect(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONNECT_S):
                addresses = await self._resolve(host, port)
                for address in addresses:
                    with contextlib.suppress(OSError):
                        return await asyncio.open_connection(address, port, limit=CHUNK)
        except (OSError, TimeoutError, UnicodeError):
            addresses = [""]
        if not addresses:
            raise EgressRefusal(403, f"{host} has no public address")
        raise EgressRefusal(502, f"{host}:{port} does not answer")


Way = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _carry(account: EgressAccount, *ways: Way) -> None:
    """Copy in both directions until one of them ends."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            while account.bytes_left > 0:
                async with asyncio.timeout(IDLE_S):
                    data = await reader.read(CHUNK)
                    if not data:
                        writer.write_eof()
                        return
                    account.bytes_left -= len(data)
                    writer.write(data)
                    await writer.drain()

    copies = [asyncio.ensure_future(copy(*way)) for way in ways]
    try:
        # The server's end is the end: a client that has sent everything still waits for its answer.
        await asyncio.wait(copies[1:])
    finally:
        for each in copies:
            each.cancel()
        for _, writer in ways:
            writer.close()


def find_gateway_host(url: str | None) -> str:
    """Return the host of a gateway's URL; raises SandboxError."""
    host = urlsplit(url or "").hostname
    if host is None:
        raise SandboxError("network='gateway' needs gateway_url")
    return host
