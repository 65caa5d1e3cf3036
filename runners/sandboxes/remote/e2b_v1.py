"""Create sandboxes by the first version of E2B's API, the only one that many servers have.

The SDK requests ``POST /v2/sandboxes`` since 2.51. Servers of one's own may have stayed at
``POST /sandboxes``: ROCK, CubeSandbox, E2B's own until September 2026, AgentENV until then.
"""

from __future__ import annotations

from e2b import AsyncSandbox
from e2b.api import handle_api_exception
from e2b.api.client.api.sandboxes import post_sandboxes
from e2b.api.client.models import Error, NewSandbox, SandboxNetworkConfig
from e2b.api.client.types import UNSET
from e2b.api.client_async import get_api_client
from e2b.connection_config import ApiParams, ConnectionConfig
from e2b.exceptions import SandboxException
from e2b.sandbox.sandbox_api import SandboxNetworkOpts, to_sandbox_create_response
from packaging.version import Version


async def create_by_v1(
    template: str,
    timeout: int,
    metadata: dict[str, str],
    network: SandboxNetworkOpts,
    api: ApiParams,
) -> AsyncSandbox:
    """Create a sandbox that ends, and is not paused, at its timeout; raises the SDK's errors."""
    body = NewSandbox(
        template_id=template,
        timeout=timeout,
        metadata=metadata,
        env_vars={},
        auto_pause=False,
        secure=True,
        network=SandboxNetworkConfig.from_dict(_rename(network)) if network else UNSET,
    )
    client = get_api_client(ConnectionConfig(**api))
    response = await post_sandboxes.asyncio_detailed(body=body, client=client)
    if response.status_code >= 300:
        raise handle_api_exception(response)
    if response.parsed is None or isinstance(response.parsed, Error):
        raise SandboxException(f"no sandbox in the answer: {response.content[:200]!r}")
    made = to_sandbox_create_response(response.parsed)
    headers = {
        "E2b-Sandbox-Id": made.sandbox_id,
        "E2b-Sandbox-Port": str(ConnectionConfig.envd_port),
    }
    if made.envd_access_token is not None:
        headers["X-Access-Token"] = made.envd_access_token
    return AsyncSandbox(
        sandbox_id=made.sandbox_id,
        sandbox_domain=made.sandbox_domain,
        envd_version=Version(made.envd_version),
        envd_access_token=made.envd_access_token,
        traffic_access_token=made.traffic_access_token,
        connection_config=ConnectionConfig(extra_sandbox_headers=headers, **api),
    )


def _rename(network: SandboxNetworkOpts) -> dict[str, object]:
    """Return network rules under the names of the wire."""
    names = {"allow_out": "allowOut", "deny_out": "denyOut"}
    return {names[key]: value for key, value in network.items()}
