"""The gateway, and the bounds on what one session may ask of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from conf.sections.section import BaseUrl, Port, Section

LAST_PORT = 65535
ControlText = Literal["text", "tokens"]
MODEL = "policy"
"""The one name that ``GET /v1/models`` lists; a request may name any other."""


class TextLimitsConfig(Section):
    """The processes for long texts."""

    text_workers: PositiveInt = 4
    """Processes for long texts; they are started when the first one comes."""


class GatewayLimitsConfig(TextLimitsConfig):
    """Bounds on one session: whatever its sandbox sends, the other sessions are not slowed down.

    Settings of the gateway, of which the configuration has ``text_workers`` alone.
    """

    body_mb: PositiveInt = 32
    """Largest request body, in MB."""
    json_depth: Annotated[int, Field(ge=16, le=128)] = 100
    """Nesting of a request's JSON. Parsers and templates recurse: beyond 128 they fail by it."""
    json_values: PositiveInt = 200000
    """Values in a request's JSON: the members of all its objects and lists."""
    bytes_per_token: PositiveInt = 16
    """A request with more bytes of text than this for each token of the context limit is refused as
    too long without being tokenised. Code has 3 to 4 bytes per token.
    """
    requests: PositiveInt = 32
    """Requests of a session at once."""
    requests_mb: PositiveInt = 64
    """Size of the bodies of a session's requests at once, in MB."""
    connections: PositiveInt = 64
    """Connections of a session at once."""
    turns: PositiveInt = 5000
    """Turns of a session that was created without ``max_turns``."""
    threads: PositiveInt = 256
    """Sub-agents (threads) of a session."""
    history_pieces: PositiveInt = 20000
    """Texts, calls and results that a session's history holds."""
    history_mb: PositiveInt = 256
    """Text that a session's history holds, in memory and in the store, in MB."""
    client_s: PositiveFloat = 60
    """Seconds for a client to send a request, or to take the next part of an answer."""
    text_s: PositiveFloat = 30
    """Seconds to parse, render or tokenise one long text."""
    text_mb: PositiveInt = 1024
    """Memory of each process for long texts, beyond what it has after its start, in MB."""


class GatewayConfig(Section):
    """The HTTP service that speaks the agents' dialects and records turns."""

    host: str = "127.0.0.1"
    """Address that the gateway listens on."""
    port: Port = 0
    """Port that it listens on; 0: any free one. With ``replicas`` the first of as many."""
    public_url: BaseUrl | None = None
    """URL at which sandboxes on other machines reach it (a public address, a tunnel); null: only
    sandboxes of this machine reach it.
    """
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that share the sessions, each at its own port; more than 1 where one core is too
    few for all turns (docs/gateway.md). ``rollout.limits`` hold for all of them together,
    ``gateway.limits`` are of one session, and of ``text_workers`` each has at least one.
    """
    metrics_port: Annotated[int, Field(ge=1, le=LAST_PORT)] | None = None
    """Port on 127.0.0.1 with figures for Prometheus, the first of as many as ``replicas``, behind a
    key (docs/sinks.md); null: none. Needs ``agentrl-campaigns[prometheus]``.
    """
    record_wire: bool = False
    """Also store each turn's request and answer as they were on the wire: headers, cache_control,
    metadata; secrets are hidden (docs/look_at_a_run.md).
    """
    control_text: ControlText = "text"
    """Ids of content that spells a control token (``<|im_end|>`` in a tool's result): ``text``: of
    its letters, so that content never passes for a turn; ``tokens``: that of the control token, as
    in engines that tokenise a whole conversation.
    """
    limits: TextLimitsConfig
