"""Display, metrics files, diagnostics, and what is sent to trackers and collectors."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from conf.sections.plugin import PluginConfig, by_name
from conf.sections.section import BaseUrl, Section

_HOST_AND_PORT = re.compile(r"[^/:]+:\d+(/.*)?")


def _check_store(uri: str) -> str:
    if not uri.strip():
        raise ValueError("must be a URL or a folder; null: nothing is sent there")
    if _HOST_AND_PORT.fullmatch(uri):  # MLflow would take it for a folder
        raise ValueError(f"must begin with http:// or https:// for a server: http://{uri}")
    if any(sign in uri for sign in "@?#"):
        raise ValueError(
            "must hold no user, password or query, since the configuration is stored and shown: "
            "MLflow reads MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and "
            "MLFLOW_TRACKING_TOKEN"
        )
    return uri


class WandbConfig(Section):
    """Steps as a run of Weights & Biases; the key of the account is ``WANDB_API_KEY``."""

    project: str | None = None
    """Project; null: nothing is sent. The key of the account is WANDB_API_KEY, or what `wandb
    login` stored.
    """
    entity: str | None = None
    """Team or user; null: the account's own."""
    name: str | None = None
    """Name of the run; null: that of its directory."""
    mode: Literal["online", "offline"] = "online"
    """online, or offline: files in RUN/trackers, which `wandb sync` sends later."""


class MlflowConfig(Section):
    """Steps as a run of MLflow; credentials are MLflow's own environment variables."""

    uri: Annotated[str, AfterValidator(_check_store)] | None = None
    """Tracking server, e.g. http://127.0.0.1:5000; null: nothing is sent."""
    experiment: str = "agentrl"
    """Experiment; it is created if it is not there."""
    name: str | None = None
    """Name of the run; null: that of its directory."""


class OtlpConfig(Section):
    """Spans of rollouts, to an OpenTelemetry collector (OTLP over HTTP)."""

    url: BaseUrl | None = None
    """Base URL of a collector that takes OTLP over HTTP, e.g. http://127.0.0.1:4318; null: nothing
    is sent.
    """


Price = Annotated[float, Field(ge=0)]


class PricesConfig(Section):
    """Prices, in any currency, with which reports reckon; null: what it buys is not priced."""

    gpu_hour: Price | None = None
    """An hour of each GPU of a job, or of the local trainer with trainer.device=cuda."""
    sandbox_hour: Price | None = None
    """An hour in which an attempt holds a sandbox."""
    input_token_million: Price | None = None
    """A million tokens of prompts."""
    output_token_million: Price | None = None
    """A million sampled tokens."""


class ObserveConfig(Section):
    """Display, metrics files and diagnostics."""

    dashboard: Literal["auto", "on", "off"] = "auto"
    """Live view in the terminal: auto (only if stderr is a terminal), on, off."""
    tensorboard: bool = True
    """Write TensorBoard event files into the run directory."""
    wandb: WandbConfig
    mlflow: MlflowConfig
    otlp: OtlpConfig
    prices: PricesConfig
    sinks: tuple[Annotated[PluginConfig, by_name("sinks")], ...] = ()
    """Plug-ins that receive each step's metrics: a list of targets, or of {target: T, options: {…}}
    (docs/extending.md).
    """
    watchdog_s: Annotated[float, Field(ge=0)] = 15
    """Seconds after which a blocked event loop is described in RUN/diagnostics; 0: off."""
    stuck_s: Annotated[float, Field(ge=0)] = 900
    """Seconds without progress (a stage, a turn) after which an attempt is described in a file; 0:
    off. It is not ended: deadlines do that.
    """
