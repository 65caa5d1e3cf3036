"""The other processes of a replica's gateway: which of them a request is for, and their addresses.

Invariant: a forwarded request arrives at a listener that forwards nothing, so it never goes round.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from runners.gateway.http_answers import key_of
from runners.gateway.replicas.forwarding import Forwarder
from runners.gateway.replicas.request_head import is_for_all
from runners.gateway.replicas.session_key import replica_of


class Peers:
    """The front and the replicas, as one replica knows them; changed by what the front tells."""

    def __init__(self, number: int, forwarder: Forwarder) -> None:
        """Know none yet; ``number``: this replica's own."""
        self._number = number
        self._forwarder = forwarder
        self._front: str | None = None
        self._replicas: list[str | None] = []

    def learn(self, addresses: dict[str, Any]) -> None:
        """Take the addresses that ``describe_addresses`` made."""
        self._front, self._replicas = addresses["front"], addresses["replicas"]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse | None:
        """Answer a request by the process that it is for; None: it is for this one.

        Raises ConnectionError if that process is gone.
        """
        if is_for_all(request.path):
            url = self._front
        else:
            number = replica_of(key_of(request.headers))
            if number is None or number == self._number or number >= len(self._replicas):
                return None
            url = self._replicas[number]
        if url is None:
            raise ConnectionResetError("a process of the gateway is gone")
        return await self._forwarder.forward(request, url)


def describe_addresses(front: str, replicas: list[str | None]) -> dict[str, Any]:
    """Return what a replica is told; None is a replica that is not there now."""
    return {"front": front, "replicas": replicas}
