"""The gateway, and the bounds on what one session may ask of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.section import BaseUrl, Port, Section

LAST_PORT = 65535


class GatewayLimitsConfig(Section):
    """Bounds on one session: whatever its sandbox sends, the other sessions are not slowed down."""

    body_mb: PositiveInt
    """Size of a request body."""
    json_depth: Annotated[int, Field(ge=16, le=128)]
    """Nesting of a request's JSON. Parsers and templates recurse: beyond 128 they fail by it."""
    json_values: PositiveInt
    """Values in a request's JSON: the members of all its objects and lists."""
    bytes_per_token: PositiveInt
    """A request with more bytes of text than this for each token of the context limit is refused as
    too long without being tokenised. Code has 3 to 4 bytes per token.
    """
    requests: PositiveInt
    """Requests of a session at once."""
    requests_mb: PositiveInt
    """Size of the bodies of a session's requests at once."""
    connections: PositiveInt
    """Connections of a session at once."""
    turns: PositiveInt
    """Turns of a session that was created without ``max_turns``."""
    threads: PositiveInt
    """Sub-agents (threads) of a session."""
    history_pieces: PositiveInt
    """Texts, calls and results that a session's history holds."""
    history_mb: PositiveInt
    """Text that a session's history holds, in memory and in the store."""
    client_s: PositiveFloat
    """Seconds for a client to send a request, or to take the next part of an answer."""
    text_s: PositiveFloat
    """Seconds to parse, render or tokenise one long text."""
    text_workers: PositiveInt
    """Processes for long texts; they are started when the first one comes."""
    text_mb: PositiveInt
    """Memory of each, beyond what it has after its start."""


class GatewayConfig(Section):
    """The HTTP service that speaks the agents' dialects and records turns."""

    host: str
    port: Port
    """With ``replicas`` the first of as many; 0: any free ones."""
    public_url: BaseUrl | None
    """URL at which sandboxes on other machines reach it (a public address, a tunnel); null: only
    sandboxes of this machine reach it.
    """
    replicas: Annotated[int, Field(ge=1, le=64)]
    """Processes that share the sessions, each at its own port."""
    metrics_port: Annotated[int, Field(ge=1, le=LAST_PORT)] | None
    """Port on 127.0.0.1 with figures for Prometheus, the first of as many as ``replicas``; null:
    none.
    """
    ping_s: PositiveFloat
    """Seconds between SSE pings while the engine works."""
    record_wire: bool
    """Store each turn's request and answer as they were on the wire, secrets out."""
    limits: GatewayLimitsConfig
