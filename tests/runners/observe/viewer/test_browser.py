"""The page in a real browser: search, filters, links, keys, side by side, and a hostile policy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from runners.observe.export.html import NAME
from runners.observe.export.run_dump import dump
from runners.observe.viewer.server import ViewServer
from runners.records.store.run_state import State
from runners.records.store.run_store import RunStore
from tests.fakes.browser import Browser, needs_chromium, start_browser
from tests.fakes.records import CONFIG, a_rollout, a_turn, branched_turns
from tests.runners.observe.viewer.conftest import (
    ROUTED,
    add_wired,
    write_routed_rollout,
    write_timed_rollout,
)

pytestmark = [pytest.mark.integration, needs_chromium]
HOSTILE = (
    "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"
    "\"'><svg onload=window.owned=3> javascript:alert(1) {{rows}} {{scripts}} "
    "\u202e\u200f\u061c\x00"
)
BRANCHED = "train-000002-000-00"


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with start_browser(tmp_path) as browser:
        yield browser
        assert browser.complaints == []


async def rows(browser: Browser, count: int) -> list[str]:
    """Wait until the list has so many lines, and return the ids of their rollouts."""
    drawn = "document.querySelectorAll('#spacer .row .task').length"
    await browser.until(f"{drawn} === {count} && list.total === {count}")
    ids = await browser.run(
        "[...document.querySelectorAll('#spacer .row')].map((row) => row.id.slice(4))"
    )
    return [str(each) for each in ids]


async def test_a_person_finds_the_test_that_failed(browser: Browser, run_dir: Path) -> None:
    async with ViewServer(run_dir, 0) as server:
        await browser.open(server.url)
        assert len(await rows(browser, 6)) == 6
        await browser.until("at('reach').textContent === ''")  # the index is complete
        await browser.press("/")
        await browser.write("KeyError")
        assert await rows(browser, 1) == ["eval-000001-003-00"]
        await browser.press("Enter")
        await browser.press("j")
        await browser.until("document.querySelector('#tab details pre') !== null")
        assert "✗ test_sum" in await browser.text("#tab")
        assert "KeyError: 'grape'" in await browser.text("#tab details pre")
        assert "fail_to_pass\n0 of 1" in await browser.text("#tab .findings")
        await browser.press("x")
        await rows(browser, 6)


async def test_every_view_has_a_link_that_works(browser: Browser, run_dir: Path) -> None:
    async with ViewServer(run_dir, 0) as server:
        await browser.open(f"{server.url}#{BRANCHED}?chain=2&turn=3&only=train&kind=subagent")
        await browser.until("document.querySelector('#turn-3.wanted') !== null")
        assert await rows(browser, 1) == [BRANCHED]
        await browser.press("3")
        assert "return cloud(apple)" in await browser.text("#tab .diff")
        assert await browser.run("document.querySelectorAll('.diff .keyword').length") == 1
        shown = str(await browser.run("location.href"))
        await browser.open(shown)
        assert "return cloud(apple)" in await browser.text("#tab .diff")
        await browser.run(
            "history.pushState(null, '', '#group:train-1-0'), state = readAddress(), render()"
        )
        await browser.until("document.querySelectorAll('tbody tr').length === 4")
        await browser.open(f"{server.url}#nothing-of-that-name")
        await browser.until("document.body.innerText.includes('there is no rollout')")
        await browser.open(f"{server.url}#%E0%A4%A?sort=none")
        await browser.until("document.body.innerText.includes('choose one of run, task')")
        browser.complaints.clear()  # the browser tells of answers with status 400


async def test_a_rollout_in_progress_is_followed(browser: Browser, run_dir: Path) -> None:
    with RunStore.open(run_dir) as store:
        store.set_state(State.RUNNING)
        record = a_rollout("train-000003-000-01", turns=3)
        store.add_session(record.session_id, {"task": "quartz"})
        store.add_turn(a_turn(record.session_id, 0))
        async with ViewServer(run_dir, 0) as server:
            await browser.open(server.url)
            assert "quartz" in await browser.text("#in-progress")
            await browser.run("document.querySelector('#in-progress a').click()")
            await browser.until("document.querySelector('#turn-0') !== null")
            assert "running.agent" in await browser.text(".facts")
            await browser.run("document.querySelector('#turn-0').dataset.mine = 'yes'")
            store.add_turn(a_turn(record.session_id, 1))
            await browser.until("document.querySelector('#turn-1') !== null")
            assert await browser.run("document.querySelector('#turn-0').dataset.mine") == "yes"
            await browser.run("go({ query: { only: ['running'] } })")
            assert await rows(browser, 1) == [record.rollout_id]
            store.put_rollout(record)
            await browser.until("document.querySelector('.title .good') !== null")
            await rows(browser, 0)
            assert await browser.run("open.progress") is None


async def test_a_turn_shows_what_was_on_the_wire_as_text(
    browser: Browser, run_dir: Path, tmp_path: Path
) -> None:
    with RunStore.open(run_dir) as store:
        store.replace_config({**CONFIG, "gateway": {"record_wire": True}})
        add_wired(store, "train-000003-000-00")
        dump(store, tmp_path, formats=("html",))
    async with ViewServer(run_dir, 0) as server:
        await browser.open(f"{server.url}#train-000003-000-00")
        await browser.until("document.querySelectorAll('.wire').length === 1")
        assert not any("/wire" in each for each in browser.requests)
        await browser.run("document.querySelector('.wire > summary').click()")
        await browser.until("document.querySelectorAll('.wire pre').length === 3")
        shown = await browser.text(".wire")
        assert "anthropic-beta" in shown
        assert "</script><img src=x onerror=owned>\ufffd" in shown
        assert await browser.run("document.querySelectorAll('.wire img').length") == 0
    await browser.open(f"{(tmp_path / NAME).as_uri()}#train-000003-000-00")
    assert "are not in this file" in await browser.text("#tab > p")


async def test_a_token_says_what_is_known_of_its_experts(browser: Browser, run_dir: Path) -> None:
    write_routed_rollout(run_dir)
    async with ViewServer(run_dir, 0) as server:
        await browser.open(f"{server.url}#{ROUTED}?tab=Tokens&colour=routing")
        await browser.until("document.querySelectorAll('#turn-1 [data-n]').length === 4")
        for token, said in (
            ("#turn-0 [data-n='1']", "training's router chooses 87 % of them, too"),
            ("#turn-1 [data-n='3']", "deleted since (routing_replay.keep_steps)"),
        ):
            await browser.run(f"""document.querySelector("{token}").click()""")
            assert said in await browser.text("#detail")
        colour = "document.querySelector(\"#turn-0 [data-n='1']\").style.getPropertyValue('--hue')"
        assert await browser.run(colour) == "113"


async def test_a_step_and_a_rollout_are_seen_by_the_clock(browser: Browser, run_dir: Path) -> None:
    write_timed_rollout(run_dir)
    async with ViewServer(run_dir, 0) as server:
        await browser.open(f"{server.url}#time:train-3")
        await browser.until("document.querySelectorAll('.lanes .chosen').length === 1")
        await browser.run(
            "document.querySelector('.lanes .chosen').dispatchEvent(new MouseEvent('click'))"
        )
        await browser.until("document.querySelectorAll('.moments tbody tr').length === 13")
        assert "finish: abort" in await browser.text(".moments tr.bad")
        await browser.run("document.querySelector('.moments tr.bad a').click()")
        await browser.until("document.querySelector('#turn-2.wanted') !== null")
        await browser.press("6")
        await browser.until("document.querySelectorAll('.moments tbody tr').length === 13")


async def test_two_rollouts_of_a_group_are_seen_where_they_part(
    browser: Browser, run_dir: Path
) -> None:
    with RunStore.open(run_dir) as store:
        for member, word in ((1, "left"), (2, "right")):
            record = a_rollout(f"train-000003-000-0{member}", solved=member == 1)
            store.add_session(record.session_id, {})
            store.add_turn(a_turn(record.session_id, 0))
            said = {"role": "assistant", "content": f"I go {word}."}
            store.add_turn(a_turn(record.session_id, 1, reply=said))
            store.put_rollout(record)
    async with ViewServer(run_dir, 0) as server:
        await browser.open(f"{server.url}#train-000003-000-01")
        await browser.until("document.querySelector('#tab .message') !== null")
        await browser.press("c")
        await browser.until("document.querySelector('.columns') !== null")
        assert "They part at message 5" in await browser.text("#part")
        marks = await browser.run(
            "[...document.querySelectorAll('#part mark')].map((m) => m.innerText)"
        )
        assert marks == ["left.", "right."]
        assert "4 messages" in await browser.text("#main details summary")
        await browser.press("u")
        await browser.until("document.querySelector('#tab') !== null")


async def test_tokens_have_probability_mask_and_version(browser: Browser, run_dir: Path) -> None:
    async with ViewServer(run_dir, 0) as server:
        await browser.open(f"{server.url}#train-000001-00-00?tab=Tokens")
        await browser.until("document.querySelectorAll('.tokens .sampled').length === 4")
        await browser.run("document.querySelector('.tokens .sampled').click()")
        detail = await browser.text("#detail")
        assert "position 3 · id 100 · logprob -0.250 · p 0.779 · version 3 · mask 1" in detail
        for colour in ("mask", "advantage", "version", "routing"):
            await browser.run(f"go({{ view: {{ colour: '{colour}' }} }})")
            await browser.until(
                f"document.querySelector('.tokens[data-colour={colour}] span[data-n]') !== null"
            )


async def test_only_the_lines_that_are_seen_exist(browser: Browser, tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "many", {}) as store:
        for number in range(700):
            store.put_rollout(a_rollout(f"train-{number // 8:06}-000-{number % 8:02}"))
    async with ViewServer(tmp_path / "many", 0) as server:
        await browser.open(server.url)
        await browser.until("list.total === 700")
        await browser.run("at('list').scrollTop = at('list').scrollHeight")
        await browser.until("document.querySelector('#row-train-000087-000-03') !== null")
        assert int(await browser.run("document.querySelectorAll('#spacer .row').length")) < 60


async def test_a_link_to_any_rollout_brings_it_up_in_the_list(
    browser: Browser, tmp_path: Path
) -> None:
    with RunStore.create(tmp_path / "many", {}) as store:
        for number in range(400):
            store.put_rollout(a_rollout(f"train-{number // 8:06}-000-{number % 8:02}"))
    async with ViewServer(tmp_path / "many", 0) as server:
        await browser.open(f"{server.url}#train-000040-000-03")
        await browser.until("document.querySelector('#row-train-000040-000-03.open') !== null")
        await browser.press("j")
        await browser.until("location.hash.startsWith('#train-000040-000-04')")


async def test_the_page_is_not_laid_out_again_for_every_long_output(
    browser: Browser, tmp_path: Path
) -> None:
    output = {"role": "tool", "tool_call_id": "c", "content": "a line\n" * 100}
    with RunStore.create(tmp_path / "long", {}) as store:
        record = a_rollout(turns=60)
        store.add_session(record.session_id, {})
        for index in range(60):
            store.add_turn(a_turn(record.session_id, index, request={"messages": [output]}))
        store.put_rollout(record)
    async with ViewServer(tmp_path / "long", 0) as server:
        await browser.call("Performance.enable")
        await browser.open(f"{server.url}#{record.rollout_id}")
        await browser.until("document.querySelectorAll('#tab button.more').length === 60")
        found = await browser.call("Performance.getMetrics")
    layouts = {each["name"]: each["value"] for each in found["metrics"]}["LayoutCount"]
    assert layouts < 40


async def test_a_call_of_any_number_of_arguments_is_drawn(browser: Browser, tmp_path: Path) -> None:
    given = {f"a{index}": 1 for index in range(80_000)}
    call = {"type": "function", "id": "c", "function": {"name": "Bash", "arguments": given}}
    with RunStore.create(tmp_path / "wide", {}) as store:
        record = a_rollout(turns=1)
        store.add_session(record.session_id, {})
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        store.add_turn(a_turn(record.session_id, reply=said))
        store.put_rollout(record)
    async with ViewServer(tmp_path / "wide", 0) as server:
        await browser.open(f"{server.url}#{record.rollout_id}")
        await browser.until("document.querySelector('#tab .call') !== null")
        assert "800 more arguments, and … 79,000 more" in await browser.text("#tab .call")


async def test_a_word_of_any_length_is_drawn_and_read_whole(
    browser: Browser, tmp_path: Path
) -> None:
    word = "x" * 90_000
    with RunStore.create(tmp_path / "word", {}) as store:
        record = a_rollout(turns=1)
        store.add_session(record.session_id, {})
        said = {"role": "assistant", "content": f"a {word} z"}
        store.add_turn(a_turn(record.session_id, reply=said))
        store.put_rollout(record)
    async with ViewServer(tmp_path / "word", 0) as server:
        await browser.open(f"{server.url}#{record.rollout_id}")
        await browser.until("document.querySelectorAll('.message .text wbr').length > 100")
        shown = "[...document.querySelectorAll('.message .text')].at(-1).textContent"
        assert await browser.run(f"{shown} === 'a ' + 'x'.repeat(90000) + ' z'")


async def test_a_phone_shows_the_list_or_the_rollout(browser: Browser, run_dir: Path) -> None:
    async with ViewServer(run_dir, 0) as server:
        await browser.show_as(390, 844, dark=True)
        await browser.open(server.url)
        await rows(browser, 6)
        await browser.run("document.querySelector('#spacer .row').click()")
        await browser.until("document.querySelector('#tab .message') !== null")
        assert await browser.run("document.querySelector('aside').offsetWidth") == 0
        assert await browser.run("document.documentElement.scrollWidth") == 390
        await browser.run("document.querySelector('.back').click()")
        await browser.until("document.querySelector('aside').offsetWidth === 390")
        await browser.run("at('name').click()")
        await browser.until("document.querySelector('.square')?.offsetWidth > 0")
        await browser.run("document.querySelector('.back').click()")
        await browser.until("document.querySelector('aside').offsetWidth === 390")
        await browser.run("go({ place: 'train-000001-00-00', view: { tab: 'Timeline' } })")
        await browser.until("document.querySelector('.moments td') !== null")
        bar, tab = (
            "document.querySelector('.tabs')",
            "document.querySelector('.tabs [aria-selected=true]')",
        )
        assert await browser.run(
            f"{tab}.getBoundingClientRect().right <= {bar}.getBoundingClientRect().right + 1"
        )


def write_hostile(run_dir: Path) -> None:
    """Write a run in which everything that a policy decides is hostile."""
    with RunStore.create(run_dir, {}) as store:
        record = a_rollout(
            task_id=HOSTILE,
            patch=f"diff --git {HOSTILE}\n+++ b/{HOSTILE}\n@@ -1 +1 @@ {HOSTILE}\n+{HOSTILE}\n",
            verdict={
                "reason": HOSTILE,
                "tests": {HOSTILE: [HOSTILE], "constructor": [HOSTILE], "__proto__": ["a"]},
                "log": HOSTILE,
                HOSTILE: HOSTILE,
            },
            final_message=HOSTILE,
            turns=8,
        )
        store.add_session(record.session_id, {})
        call = {"type": "function", "function": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}}
        said = {"role": HOSTILE, "content": HOSTILE, "reasoning_content": HOSTILE}
        for turn in branched_turns(record.session_id):
            odd = {
                "messages": [
                    said,
                    {
                        "role": "tool",
                        "tool_call_id": HOSTILE,
                        "content": [HOSTILE, {"text": HOSTILE}],
                    },
                ]
            }
            reply = {"role": "assistant", "content": HOSTILE, "tool_calls": [call, {}]}
            store.add_turn(
                replace(turn, request=odd, reply=reply, break_reason=HOSTILE, thread=turn.thread)
            )
        store.put_rollout(record)


@pytest.mark.parametrize("served", [True, False])
async def test_nothing_that_a_policy_wrote_runs(
    browser: Browser, tmp_path: Path, served: bool
) -> None:
    run_dir = tmp_path / "<b>hostile" / "run {{scripts}}"
    write_hostile(run_dir)
    if served:
        async with ViewServer(run_dir, 0) as server:
            await look_at_everything(browser, server.url)
    else:
        with RunStore.open(run_dir) as store:
            dump(store, tmp_path, formats=("html",), decode=lambda ids: HOSTILE)
        await look_at_everything(browser, (tmp_path / NAME).as_uri())


async def look_at_everything(browser: Browser, address: str) -> None:
    """Open every view of the hostile rollout."""
    await browser.open(address)
    await rows(browser, 1)
    place = "train-000001-00-00"
    for tab in ("Conversation", "Tokens", "Patch", "Tests", "Record", "toString"):
        await browser.run(f"go({{ place: '{place}', view: {{ tab: '{tab}', chain: 1 }} }})")
        await browser.until(
            "document.querySelector('#tab').innerText.includes('owned') || tabName() === 'Tokens'"
        )
        steering = "/[\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]/"
        assert not await browser.run(f"{steering}.test(document.body.innerText)")
    await browser.run(f"go({{ place: '{place}', view: {{ with: '{place}', tab: null }} }})")
    await browser.until("document.querySelector('.columns') !== null")
    await browser.run("go({ place: 'group:train-1-0', query: { search: 'owned' } })")
    await browser.until("document.querySelector('#spacer .row .hit') !== null")
    await browser.run("go({ place: '', query: {} })")
    await browser.until("document.querySelector('.square') !== null")
    assert await browser.run("window.owned === undefined")
    assert (
        await browser.run("document.querySelectorAll('img, #main svg[onload], iframe').length") == 0
    )
    foreign = [each for each in browser.requests if not each.startswith((address[:17], "about:"))]
    assert foreign == []


async def test_the_file_has_the_same_views_without_a_server(
    browser: Browser, run_dir: Path, tmp_path: Path
) -> None:
    with RunStore.open(run_dir, read_only=True) as store:
        dump(store, tmp_path, formats=("html",), decode=lambda ids: f"w{[*ids]} ")
    await browser.open((tmp_path / NAME).as_uri())
    await rows(browser, 6)
    await browser.press("/")
    await browser.write("tests:KeyError")
    assert await rows(browser, 1) == ["eval-000001-003-00"]
    await browser.run("go({ query: { only: ['train', 'solved'], sort: '-tokens' } })")
    ids = await rows(browser, 3)
    assert ids[0] == BRANCHED
    assert await browser.run(f"source.place(state.query, '{ids[2]}')") == 2
    await browser.run(f"go({{ place: '{BRANCHED}', view: {{ tab: 'Tokens' }} }})")
    await browser.until("document.querySelectorAll('.tokens .sampled').length > 2")
    assert "w[51]" in await browser.text("#tab .tokens")
    await browser.run("go({ place: 'group:train-1-0' })")
    await browser.until("document.querySelectorAll('tbody tr').length === 4")
