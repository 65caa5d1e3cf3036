from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from runners.observe.viewer.filters import ViewError
from runners.observe.viewer.server import ViewServer, load_token, name_in_address
from runners.observe.viewer.wire_view import PAGE_TEXT, find_wire, wire_to_page
from runners.records.record import WireExchange
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from tests.fakes.records import write_session
from tests.runners.observe.viewer.conftest import (
    ROUTED,
    add_branched,
    add_wired,
    write_routed_rollout,
)

BRANCHED = "train-000002-000-00"


@pytest.fixture
async def server(run_dir: Path) -> AsyncIterator[ViewServer]:
    async with ViewServer(run_dir, 0) as server:
        yield server


async def get(server: ViewServer, path: str, **options: Any) -> tuple[int, Any]:
    """Return status and JSON of an answer."""
    async with (
        aiohttp.ClientSession() as client,
        client.request(options.pop("method", "GET"), f"{server.url}{path}", **options) as response,
    ):
        return response.status, await response.json(content_type=None)


async def test_it_listens_on_loopback_only_and_under_a_secret(server: ViewServer) -> None:
    address = urlsplit(server.url)
    assert address.hostname == "127.0.0.1"
    assert (await get(server, "api/run"))[0] == 200
    async with aiohttp.ClientSession() as client:
        for path in ("/", "/api/run", "/wrong/api/run", "/wrong/"):
            async with client.get(f"http://{address.netloc}{path}") as response:
                assert response.status == 403, path


async def test_the_secret_is_for_its_user_and_stays(run_dir: Path, cache: Path) -> None:
    token = load_token()
    path = cache / "agentrl" / "viewer" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_token() == token
    path.chmod(0o644)
    with pytest.raises(ViewError, match="delete it"):
        load_token()


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8721", ""]
)
async def test_a_name_that_was_bound_to_this_machine_is_refused(
    server: ViewServer, host: str
) -> None:
    status, body = await get(server, "api/run", headers={"Host": host})
    assert (status, list(body)) == (403, ["error"])
    status, _ = await get(server, "api/run", headers={"Host": "localhost:9999"})
    assert status == 200, "a tunnel of ssh has another port"


async def test_other_sites_are_refused(server: ViewServer) -> None:
    cross = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert (await get(server, "api/run", headers=cross))[0] == 403


async def test_what_is_no_http_writes_nothing_to_the_terminal(
    server: ViewServer, caplog: pytest.LogCaptureFixture
) -> None:
    for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
        writer.write(sent)
        assert b" 400 " in await reader.read(1000)
        writer.close()
    assert caplog.records == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(server: ViewServer, method: str) -> None:
    assert (await get(server, "api/run", method=method))[0] == 405


@pytest.mark.parametrize(
    "path", ["..%2f..%2fetc%2fpasswd", "page%2fpage.js", "store.sqlite", "api/rollouts/..%2f..%2fx"]
)
async def test_no_path_leads_out_of_the_page(server: ViewServer, path: str) -> None:
    status, body = await get(server, path)
    assert status in (400, 404)
    assert list(body) == ["error"]


async def test_every_answer_has_a_policy_without_inline_scripts(server: ViewServer) -> None:
    async with aiohttp.ClientSession() as client:
        for path in ("", "page.css", "main.js", "api/run", "missing"):
            async with client.get(f"{server.url}{path}") as response:
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_lists_have_pages_and_unknown_filters_are_errors(server: ViewServer) -> None:
    _, first = await get(server, "api/rollouts", params={"limit": "2"})
    _, second = await get(server, "api/rollouts", params={"limit": "2", "offset": "2"})
    assert [len(first["rows"]), first["sums"]["rollouts"]] == [2, 6]
    assert not {row["rollout_id"] for row in first["rows"]} & {
        row["rollout_id"] for row in second["rows"]
    }
    for wrong in ({"limit": "-1"}, {"limit": "x"}, {"only": "al"}, {"colour": "red"}):
        status, body = await get(server, "api/rollouts", params=wrong)
        assert (status, list(body)) == (400, ["error"])


async def test_a_rollout_has_its_attempts_and_its_tokens(server: ViewServer) -> None:
    _, whole = await get(server, "api/rollouts/train-000001-00-02")
    assert [each["code"] for each in whole["attempts"]] == ["infra.sandbox_lost", "policy.finished"]
    assert (whole["attempt"], whole["turns"][0].get("output_ids")) == (1, None)
    _, lost = await get(server, "api/rollouts/train-000001-00-02", params={"attempt": "0"})
    assert lost["outcome"]["code"] == "infra.sandbox_lost"
    _, page = await get(server, "api/rollouts/train-000001-00-02/tokens", params={"turn": "1"})
    assert (page["start"], page["ids"], page["total"]) == (5, [4, 5, 101, 7], 4)
    assert page["logprobs"] == pytest.approx([None, None, -0.25, -0.1])
    assert (page["versions"], page["routed"]) == ([None, None, 3, 3], None)
    for wrong in ("api/rollouts/none", "api/rollouts/train-000001-00-02/tokens?turn=9"):
        assert (await get(server, wrong))[0] == 400


async def test_a_turn_has_what_was_on_the_wire_in_a_bounded_length(run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        add_wired(store, "train-000003-000-00")
        add_wired(store, "train-000003-000-01", b'"' + b"x" * (2 * PAGE_TEXT) + b'"')
    async with ViewServer(run_dir, 0) as server:
        _, whole = await get(server, "api/rollouts/train-000003-000-00")
        assert [turn["wired"] for turn in whole["turns"]] == [True, False]
        _, wire = await get(server, "api/rollouts/train-000003-000-00/wire?turn=0&attempt=0")
        assert wire["headers"] == [["anthropic-beta", "<b>"], ["x-api-key", "***"]]
        assert '"user_id": "u"' in wire["request"]
        _, long = await get(server, "api/rollouts/train-000003-000-01/wire?turn=0")
        assert "200,002 more characters" in long["request"]
        assert len(long["request"]) < PAGE_TEXT + 200
        for turn, said in ((1, "set gateway.record_wire=true"), (2, "it has 2")):
            status, body = await get(server, f"api/rollouts/train-000003-000-00/wire?turn={turn}")
            assert (status, said in body["error"]) == (400, True)


def test_deep_lists_are_shown_as_they_came() -> None:
    """Indented, a few thousand brackets would be megabytes of blanks."""
    request = b"[" * 400 + b"]" * 400
    wire = WireExchange("/v1/messages", [], request, len(request), b"[[1]]", 5)
    page = wire_to_page(wire)
    assert (page["request"], page["answer"]) == (request.decode(), "[\n  [\n    1\n  ]\n]")


def test_one_body_is_found_without_the_turns_of_its_rollout(run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        add_wired(store, "train-000003-000-00")
        (run_dir / "arrays" / "turns.bin").unlink()
        assert find_wire(store, "train-000003-000-00", 0).path == "/v1/messages"


async def test_tokens_say_whether_their_experts_were_recorded(run_dir: Path) -> None:
    write_routed_rollout(run_dir)
    async with ViewServer(run_dir, 0) as server:
        _, page = await get(server, f"api/rollouts/{ROUTED}/tokens?turn=0")
        _, later = await get(server, f"api/rollouts/{ROUTED}/tokens?turn=1")
    assert page["routed"] == [1, 1, 1, 1, 0], "the last token never went through the model"
    assert later["routed"] == [0, 0, 0, 0]
    assert (page["agreed"], later["agreed"]) == ([100, 87, None, 100, 50], [60, 70, 80])


async def test_a_run_that_goes_on_is_seen(server: ViewServer, run_dir: Path) -> None:
    _, before = await get(server, "api/run")
    assert (await get(server, "api/run"))[1]["version"] == before["version"]
    with RunStore.open(run_dir) as store:
        add_branched(store, "train-000002-000-01")
        write_session(store, "train-000002-000-02-a0", 1)
    _, after = await get(server, "api/run")
    assert after["version"] != before["version"]
    assert after["choices"]["step"]["2"] == before["choices"]["step"]["2"] + 1
    async with asyncio.timeout(60):
        while not (await get(server, "api/rollouts", params={"search": "explorer"}))[1]["rows"]:
            await asyncio.sleep(0.1)


async def test_a_link_into_another_run_does_not_open_this_one(server: ViewServer) -> None:
    before, name, _ = server.url.rsplit("/", 2)
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{before}/other-0123abcd/") as response:
            text = await response.text()
            assert response.status == 404
            assert "another run" in text
            assert f"href='{urlsplit(server.url).path}'" in text
        async with client.get(f"{before}/other-0123abcd/api/run") as response:
            assert response.status == 404
    assert name_in_address(server.run_dir / ".." / server.run_dir.name) == name
    assert name_in_address(server.run_dir / ".." / "elsewhere") != name


async def test_a_run_whose_driver_died_is_not_shown_as_running(
    server: ViewServer, run_dir: Path
) -> None:
    with RunStore.open(run_dir) as store:
        store.set_state(State.RUNNING)
        assert (await get(server, "api/run"))[1]["state"] == "running"
        store.database.execute("UPDATE run SET pid = ?", (2**22 + 1,))  # above Linux's largest
    assert (await get(server, "api/run"))[1]["state"] == "killed"


async def test_a_port_that_is_taken_is_an_error(server: ViewServer, run_dir: Path) -> None:
    port = urlsplit(server.url).port
    with pytest.raises(ViewError, match="--port"):
        async with ViewServer(run_dir, port):
            pass
