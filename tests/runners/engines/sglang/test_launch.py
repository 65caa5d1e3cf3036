"""The SGLang server of a run, with a fake of the program."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from conf.compose import compose
from conf.errors import ConfigError
from conf.schema import Config
from runners.engines.client import HttpEngine
from runners.records.store.run_store import RunStore
from runners.services.engine_service import start_engine
from runners.system.processes.ledger import Ledger
from runners.system.processes.service import ServiceError, ServiceStarter

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parents[3] / "fakes" / "sglang_package"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes find the stand-in under the name of the package."""
    monkeypatch.setenv("PYTHONPATH", str(PROGRAM))


def config_for(*overrides: str) -> Config:
    return compose(["model=tiny", "engine=sglang_launch", "seed=7", *overrides])


def lives(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


class Started:
    """Starts a server for a run, and keeps the errors reported at its end."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.store = RunStore.create(run_dir, {})
        self.ledger = Ledger(self.store)
        self.exits = AsyncExitStack()
        self.gone: asyncio.Queue[ServiceError] = asyncio.Queue()

    async def start(
        self,
        config: Config,
        weights: Path | None = Path("weights"),
        *,
        with_adapters: bool = False,
    ) -> str:
        starter = ServiceStarter(self.run_dir, self.exits, self.gone.put_nowait, self.ledger)
        return await start_engine(
            config, starter, weights, Path("tok"), 4, with_adapters=with_adapters
        )

    async def close(self) -> None:
        await self.exits.aclose()
        self.store.close()


async def test_the_server_gets_the_configured_arguments_and_ends_with_the_run(
    tmp_path: Path,
) -> None:
    run = Started(tmp_path / "run")
    config = config_for(
        "engine.tensor_parallel=4", "engine.reasoning_parser=qwen3",
        "routing_replay=rollout", "engine.arguments=[--dp-size,'2']",
    )  # fmt: skip
    url = await run.start(config)
    client = HttpEngine(url)
    info = await client.request_json("/server_info", deadline_s=10)
    await client.close()
    assert info["model_path"] == "weights"
    assert info["tokenizer_path"] == "tok"
    assert info["context_length"] == config.model.max_context_tokens
    assert (info["tp_size"], info["dp_size"], info["random_seed"]) == (4, 2, 7)
    assert (info["weight_version"], info["reasoning_parser"]) == ("4", "qwen3")
    assert info["enable_return_routed_experts"] is True
    assert [entry.kind for entry in run.ledger.entries()] == ["process"]
    log = (tmp_path / "run" / "logs" / "engine.log").read_text()
    assert "fired up" in log
    await run.close()
    assert not lives(info["scheduler"])
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert Ledger(store).entries() == []


@pytest.mark.parametrize(
    ("overrides", "dtype"),
    [
        ((), None),
        (("trainer.precision=bfloat16",), "bfloat16"),
        (("trainer.precision=bfloat16", "engine.arguments=[--dtype,float16]"), "float16"),
    ],
)
async def test_the_server_computes_with_the_numbers_of_the_trainer_unless_it_is_told(
    tmp_path: Path, overrides: tuple[str, ...], dtype: str | None
) -> None:
    run = Started(tmp_path / "run")
    client = HttpEngine(await run.start(config_for(*overrides)))
    info = await client.request_json("/server_info", deadline_s=10)
    await client.close()
    assert info["dtype"] == dtype
    await run.close()


async def test_a_server_for_adapters_can_load_those_of_the_run(tmp_path: Path) -> None:
    run = Started(tmp_path / "run")
    config = config_for("trainer.lora.rank=16", "trainer.lora.targets=[q_proj,o_proj]")
    url = await run.start(config, with_adapters=True)
    client = HttpEngine(url)
    info = await client.request_json("/server_info", deadline_s=10)
    await client.close()
    assert (info["enable_lora"], info["max_lora_rank"]) == (True, 16)
    assert info["lora_target_modules"] == ["q_proj", "o_proj"]
    assert info["max_loras_per_batch"] == 2
    await run.close()


async def test_a_server_that_dies_while_loading_is_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", "die")
    run = Started(tmp_path / "run")
    with pytest.raises(ServiceError, match=r"CUDA out of memory.*ended by itself \(exit 3\)"):
        await run.start(config_for())
    await run.close()


async def test_a_server_that_dies_later_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SGLANG", "die_later")
    run = Started(tmp_path / "run")
    await run.start(config_for())
    error = await run.gone.get()
    assert "SGLang ended by itself (exit 9)" in str(error)
    await run.close()


async def test_a_missing_package_is_reported_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    run = Started(tmp_path / "run")
    with pytest.raises(ServiceError, match=r"pip install 'agentrl-campaigns\[sglang\]'"):
        await run.start(config_for())
    await run.close()


async def test_a_server_without_weights_is_refused(tmp_path: Path) -> None:
    run = Started(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"model\.path"):
        await run.start(config_for(), weights=None)
    await run.close()
