"""Find what the chosen sinks lack: a library, an account, a store that can be opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from urllib.parse import urlsplit

from conf.errors import ConfigError, ExitCode, error_text
from conf.schema import Config
from conf.sections.observe import MlflowConfig, WandbConfig
from runners.observe.sinks.mlflow_tracker import make_client

FORMER_HOST = "api.wandb.ai"
"""W&B takes a login of this host for its present default one."""


class MissingLibraryError(ConfigError):
    """A sink's library is not installed."""

    exit_code = ExitCode.PREFLIGHT


@dataclass(frozen=True, slots=True)
class Needed:
    """The library of a chosen sink."""

    setting: str
    """Key and value that choose it."""
    module: str
    extra: str


def find_sink_errors(config: Config) -> Iterator[ConfigError]:
    """Yield what keeps the chosen sinks from working; imports the libraries of trackers, and
    connects to nothing.
    """
    missing = [each for each in list_needed(config) if not _is_installed(each.module)]
    for each in missing:
        yield MissingLibraryError(
            f"{each.setting} needs the package that has {each.module}: "
            f"pip install 'agentrl-campaigns[{each.extra}]', or leave the key out"
        )
    if missing:
        return
    if config.observe.wandb.project is not None:
        yield from _find_account_errors(config.observe.wandb)
    if config.observe.mlflow.uri is not None:
        yield from _find_store_errors(config.observe.mlflow)


def list_needed(config: Config) -> list[Needed]:
    """Return the libraries that the chosen sinks import."""
    observe, port = config.observe, config.gateway.metrics_port
    chosen = (
        ("observe.wandb.project", observe.wandb.project, "wandb", "wandb"),
        ("observe.mlflow.uri", observe.mlflow.uri, "mlflow", "mlflow"),
        ("observe.otlp.url", observe.otlp.url, "opentelemetry.sdk.trace", "otel"),
        ("observe.otlp.url", observe.otlp.url, "opentelemetry.exporter.otlp.proto.http", "otel"),
        ("gateway.metrics_port", port, "prometheus_client", "prometheus"),
    )
    return [
        Needed(f"{key}={value}", module, extra)
        for key, value, module, extra in chosen
        if value is not None
    ]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def _find_account_errors(config: WandbConfig) -> Iterator[ConfigError]:
    """Yield an error if W&B would ask the terminal for a key, which a thread cannot answer."""
    if config.mode == "online" and not _has_account():
        yield ConfigError(
            f"observe.wandb.project={config.project} has no account: set WANDB_API_KEY, run "
            "`wandb login`, or set observe.wandb.mode=offline"
        )


def _has_account() -> bool:
    """Return whether W&B finds a key: in the environment, in netrc, in its own settings."""
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return True
    import wandb

    settings = wandb.setup().settings
    hosts = (urlsplit(settings.base_url).hostname or "", FORMER_HOST)
    with suppress(OSError, NetrcParseError):
        known = netrc(os.environ.get("NETRC"))
        if any(map(known.authenticators, hosts)):
            return True
    return bool(settings.api_key)


def _find_store_errors(config: MlflowConfig) -> Iterator[ConfigError]:
    try:
        make_client(config)
    except Exception as error:  # mlflow's own, and those of the store's library
        yield ConfigError(
            f"observe.mlflow.uri={config.uri} cannot be used here: {error_text(error)} (a database "
            "needs the whole of MLflow, pip install mlflow; a server needs mlflow-skinny only)"
        )
