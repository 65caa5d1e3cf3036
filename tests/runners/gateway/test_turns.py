"""Turns through a running gateway: continuation, breaks, retries, disconnects, streaming."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.testing.completions import END, Completion, spoken
from agentrl.testing.scripted_engine import ScriptedEngine
from runners.engines.client import HttpEngine
from runners.engines.contract import Engine
from runners.engines.prompt_json import LEAST_TOKENS
from runners.gateway.service import GatewayHooks
from runners.gateway.sessions.turn_log import AsyncTurnLog
from tests.fakes.running_gateway import (
    Agent,
    Gateway,
    assemble_message,
    echo,
    results,
    running_gateway,
    user,
)

BASH = {"type": "tool_use", "name": "Bash", "input": {"command": "ls"}}
LOOK = spoken([{"type": "text", "text": "I look."}, BASH])
DONE = spoken([{"type": "text", "text": "Done."}])


def sampled_tokens(engine: ScriptedEngine) -> list[int]:
    return [token for ids, _ in engine.seen.answered for token in ids]


def trained_tokens(finished: dict[str, Any]) -> list[int]:
    return [
        token
        for chain in finished["segments"]
        for token, mask in zip(chain["tokens"], chain["loss_mask"], strict=True)
        if mask
    ]


def reverse_keys(value: Any) -> Any:
    """Return JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: reverse_keys(value[key]) for key in sorted(value, reverse=True)}
    return [reverse_keys(item) for item in value] if isinstance(value, list) else value


async def test_a_tool_loop_continues_the_models_own_tokens(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, spoken([BASH, BASH]), DONE)
    messages = [user("fix it")]
    for texts in (["a.py"], ["one", "two"]):
        answer = await agent.ask(messages)
        messages += [echo(answer), results(answer, *texts)]
    last = await agent.ask(messages)
    assert last["stop_reason"] == "end_turn"
    first, second, third = (request["input_ids"] for request in engine.seen.requests)
    (one, _), (two, _), _ = engine.seen.answered
    assert second[: len(first) + len(one)] == first + one
    assert third[: len(second) + len(two)] == second + two
    finished = await agent.finish()
    assert trained_tokens(finished) == sampled_tokens(engine)
    assert [chain["kind"] for chain in finished["segments"]] == ["final"]


async def test_a_stored_turn_holds_its_request_and_its_answer(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.weight_version = "7"
    engine.say(LOOK, DONE)
    answer = await agent.ask([user("fix it")])
    final = await agent.ask([user("fix it"), echo(answer), results(answer, "a.py")])
    one, two = gateway.turns("s1")
    assert one.reply["tool_calls"][0]["id"] == answer["content"][-1]["id"]
    assert two.reply == {"role": "assistant", "content": final["content"][0]["text"]}
    assert (one.parent, two.parent, two.thread, two.branch) == (None, 0, "main", "main")
    assert (one.index, two.index, one.weight_version, two.finish_reason) == (0, 1, 7, "stop")
    assert one.prompt_new.tolist() == engine.seen.requests[0]["input_ids"]
    assert two.prompt_kept == len(one.prompt_new) + len(one.output_ids)
    assert two.output_logprobs.tolist() == engine.seen.answered[1][1]
    assert [message["role"] for message in one.request["messages"]] == ["system", "user"]
    assert one.request["tools"][0]["function"]["name"] == "Bash"
    assert [message["role"] for message in two.request["messages"]] == ["tool"]
    assert "tools" not in two.request
    assert two.usage["prompt_tokens"] == len(engine.seen.requests[1]["input_ids"])


async def test_a_history_without_thoughts_with_moved_cache_marks_and_reordered_keys_continues(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken([{"type": "text", "text": "I look."}, BASH], thinking="where?"), DONE)
    body = agent.body([user("fix it")], thinking={"type": "adaptive"})
    answer = assemble_message(await agent.stream(body))
    assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
    call = {**answer["content"][2], "input": {"timeout": None, **answer["content"][2]["input"]}}
    marked = {"type": "text", "text": "fix it", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [marked]},
        {"role": "assistant", "content": [{"type": "text", "text": "  I look.\n"}, call]},
        results(answer, "a.py"),
    ]
    await agent.ask(reverse_keys(messages), system=[{"type": "text", "text": "You fix bugs."}])
    finished = await agent.finish()
    assert finished["stats"]["breaks"] == []
    assert trained_tokens(finished) == sampled_tokens(engine)


async def test_system_messages_in_the_middle_continue_the_chain(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, DONE)
    answer = await agent.ask([user("fix it"), {"role": "system", "content": "env"}])
    note = {"role": "system", "content": "a reminder"}
    rest = [echo(answer), results(answer, "a.py"), note]
    await agent.ask([user("fix it"), {"role": "system", "content": [
        {"type": "text", "text": "env"}]}, *rest])  # fmt: skip
    assert (await agent.stats())["breaks"] == []
    assert "a reminder" in engine.tokenizer.decode(
        engine.seen.requests[1]["input_ids"], skip_special_tokens=False
    )


async def test_an_empty_answer_that_the_client_leaves_out_can_be_continued(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(END, DONE)
    await agent.ask([user("fix it")])
    nudged = {
        "role": "user",
        "content": [{"type": "text", "text": "fix it"}, {"type": "text", "text": "go on"}],
    }
    await agent.ask([nudged])
    finished = await agent.finish()
    assert finished["stats"]["breaks"] == []
    assert trained_tokens(finished) == sampled_tokens(engine)


async def test_tools_whose_descriptions_change_do_not_break_the_chain_and_are_counted(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, DONE)
    answer = await agent.ask([user("fix it")])
    more = [tool | {"description": "anew"} for tool in agent.body([])["tools"]]
    await agent.ask([user("fix it"), echo(answer), results(answer, "a.py")], tools=more)
    stats = await agent.stats()
    assert (stats["breaks"], stats["tools_changed"]) == ([], 1)
    texts = [each["function"]["description"] for each in gateway.turns("s1")[1].request["tools"]]
    assert texts == ["anew"]


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ("user", "rewrite", "message 0 (user text) is not what was sent before"),
        ("system", "rewrite", "the system prompt is not what was sent before"),
        ("call", "rewrite", "message 1 (assistant tool_call) came back with ids of other calls"),
        ("answer", "rewrite", "message 2 (user tool_result) stands where an assistant turn was"),
        ("again", "repeat", "the last turn was asked for again, with other parameters"),
    ],
)
async def test_a_rewritten_history_starts_a_new_chain_with_its_reason(
    change: str, kind: str, reason: str, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(spoken([BASH]), DONE)
    answer = await agent.ask([user("fix it")])
    messages = [user("fix it"), echo(answer), results(answer, "a.py")]
    more: dict[str, Any] = {}
    match change:
        case "user":
            messages[0] = user("fix that")
        case "system":
            more = {"system": "You write poems."}
        case "call":
            messages[1] = {"role": "assistant", "content": [{**BASH, "id": "toolu_foreign"}]}
        case "answer":
            messages[1] = {"role": "system", "content": ""}
        case "again":
            messages, more = messages[:1], {"max_tokens": 999}
    await agent.ask(messages, **more)
    finished = await agent.finish()
    (broken,) = finished["stats"]["breaks"]
    assert (broken["turn"], broken["kind"], broken["reason"]) == (1, kind, reason)
    first, second = (request["input_ids"] for request in engine.seen.requests)
    seen = first + engine.seen.answered[0][0]
    assert seen[: broken["token"]] == second[: broken["token"]]
    assert broken["before"] != broken["after"]
    assert finished["stats"]["forks"] == 1
    assert [chain["kind"] for chain in finished["segments"]] == ["wipe", "final"]
    assert trained_tokens(finished) == sampled_tokens(engine)
    for chain, request, (output, _) in zip(
        finished["segments"], engine.seen.requests, engine.seen.answered, strict=True
    ):
        assert chain["tokens"] == request["input_ids"] + output
    assert gateway.turns("s1")[1].break_reason == f"{kind}: {reason}"


async def test_a_side_request_does_not_end_the_chain_it_interrupts(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, spoken([{"type": "text", "text": "A title"}]), DONE)
    answer = await agent.ask([user("fix it")])
    await agent.ask([user("Give this conversation a title.")], tools=[])
    await agent.ask([user("fix it"), echo(answer), results(answer, "a.py")])
    finished = await agent.finish()
    assert [chain["turns"] for chain in finished["segments"]] == [[0, 2], [1]]
    assert trained_tokens(finished) == [
        token for index in (0, 2, 1) for token in engine.seen.answered[index][0]
    ]


async def test_an_unclosed_thought_breaks_the_chain_with_its_reason(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(f"<think>\nand so on{END}", DONE)
    await agent.ask([user("fix it")])
    await agent.ask([user("fix it"), user("well?")])
    finished = await agent.finish()
    (broken,) = finished["stats"]["breaks"]
    assert broken["turn"] == 1
    assert "renderer cannot continue" in broken["reason"]
    assert trained_tokens(finished) == sampled_tokens(engine)


async def test_an_answer_cut_by_its_limit_is_continued_after_a_close_that_is_not_trained(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(Completion("I think that", finish="length"), DONE)
    answer = await agent.ask([user("fix it")])
    assert answer["stop_reason"] == "max_tokens"
    await agent.ask([user("fix it"), echo(answer), user("Resume directly.")])
    finished = await agent.finish()
    (chain,) = finished["segments"]
    assert trained_tokens(finished) == sampled_tokens(engine)
    close = engine.tokenizer.token_to_id(END)
    end = len(engine.seen.requests[0]["input_ids"]) + len(engine.seen.answered[0][0])
    assert (chain["tokens"][end], chain["loss_mask"][end]) == (close, False)


async def test_a_stop_sequence_ends_the_answer_and_is_not_shown(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(Completion("one STOP", stop_string="STOP"))
    answer = await agent.ask([user("count")], stop_sequences=["STOP"])
    assert answer["content"] == [{"type": "text", "text": "one "}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "STOP")
    assert engine.seen.requests[0]["sampling_params"]["stop"] == ["STOP"]
    assert gateway.turns("s1")[0].output_ids.tolist() == engine.seen.answered[0][0]


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "Bash", "arguments": {"command": }}',
        '{"arguments": {}}',
        '{"name": "Bash", "arguments": "ls"}',
        '{"name": "Bash", "arguments": {"n": 123456789012345678901234567890}}',
        '{"name": "Bash", "arguments": {"n": "\\ud800"}}',
        '{"name": "Bash", "arguments": {"n": ' + "9" * 5000 + "}}",
        '{"name": "Bash", "arguments": {"n": ' + "[" * 80 + "]" * 80 + "}}",
        "[" * 2000,
        "[]",
        "",
    ],
)
async def test_a_malformed_call_is_shown_as_text_and_counted(
    call: str, gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session(sampling={"max_new_tokens": 20_000})
    engine.say(f"Let me.\n<tool_call>\n{call}\n</tool_call>{END}")
    answer = await agent.ask([user("fix it")], max_tokens=100_000)
    (block,) = answer["content"]
    assert block["type"] == "text"
    assert block["text"].startswith("Let me.")
    assert call[:1000] in block["text"]
    assert answer["stop_reason"] == "end_turn"
    assert (await agent.stats())["malformed_calls"] == 1
    assert gateway.turns("s1")[0].malformed_calls == 1


async def test_a_valid_call_next_to_a_malformed_one_is_still_sent(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK.replace(END, f"\n<tool_call>\nnonsense\n</tool_call>{END}"))
    answer = await agent.ask([user("fix it")])
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]
    assert answer["content"][0]["text"] == "I look.\n<tool_call>\nnonsense\n</tool_call>"
    assert answer["stop_reason"] == "tool_use"


async def test_a_retried_request_does_not_fork(gateway: Gateway, engine: ScriptedEngine) -> None:
    agent = await gateway.session()
    engine.say(LOOK)
    first = await agent.ask([user("fix it")])
    again = await agent.ask([user("fix it")])
    streamed = assemble_message(await agent.stream(agent.body([user("fix it")])))
    assert first == again == streamed
    stats = await agent.stats()
    assert (stats["turns"], stats["retries"], stats["breaks"]) == (1, 2, [])
    assert len(engine.seen.requests) == 1


async def test_the_same_request_in_flight_waits_for_the_same_turn(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(Completion(LOOK, delay_s=0.1))
    one, two = await asyncio.gather(agent.ask([user("fix it")]), agent.ask([user("fix it")]))
    assert one == two
    assert len(engine.seen.requests) == 1


async def test_two_different_requests_at_once_are_taken_one_after_the_other(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(Completion(LOOK, delay_s=0.1), DONE)
    await asyncio.gather(agent.ask([user("a")]), agent.ask([user("b")]))
    finished = await agent.finish()
    assert len(finished["segments"]) == 2
    assert trained_tokens(finished) == sampled_tokens(engine)


async def disconnect_while_sampling(agent: Agent, engine: ScriptedEngine) -> None:
    engine.arrived.clear()
    asking = asyncio.create_task(agent.stream(agent.body([user("fix it")])))
    await engine.arrived.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_a_disconnect_aborts_the_generation_and_no_turn_is_recorded(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(Completion(LOOK, delay_s=30))
    await disconnect_while_sampling(agent, engine)
    await engine.aborted.wait()
    assert set(engine.seen.aborted) == {engine.seen.requests[0]["rid"]}
    stats = await agent.stats()
    assert (stats["turns"], stats["aborted"]) == (0, 1)
    assert gateway.turns("s1") == []


async def test_a_retry_after_a_disconnect_samples_the_turn_again_with_the_same_seed(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session(seed=5)
    engine.say(Completion(LOOK, delay_s=30), DONE)
    await disconnect_while_sampling(agent, engine)
    answer = await agent.ask([user("fix it")])
    assert answer["content"][0]["text"] == "Done."
    one, two = (request["sampling_params"] for request in engine.seen.requests)
    assert one == two
    assert len(gateway.turns("s1")) == 1


async def test_a_turn_continues_while_any_client_waits_for_it(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(Completion(LOOK, delay_s=0.2))
    staying = asyncio.create_task(agent.ask([user("fix it")]))
    await engine.arrived.wait()
    leaving = asyncio.create_task(agent.ask([user("fix it")]))
    while (await agent.stats())["retries"] == 0:
        await asyncio.sleep(0.01)
    leaving.cancel()
    assert (await staying)["stop_reason"] == "tool_use"
    assert engine.seen.aborted == []


FAULTS = [
    (Completion(status=500), 529, "overloaded_error"),
    (Completion(status=503), 529, "overloaded_error"),
    (Completion(status=400), 400, "invalid_request_error"),
    (Completion(raw=b"<html>"), 500, "api_error"),
    (Completion(LOOK, finish="abort"), 529, "overloaded_error"),
    (Completion(LOOK, delay_s=30), 529, "overloaded_error"),
]
NAMES = ["500", "503", "400", "garbage", "abort", "timeout"]


@pytest.mark.parametrize(("fault", "status", "kind"), FAULTS, ids=NAMES)
async def test_an_engine_fault_is_an_error_and_never_a_turn(
    fault: Completion,
    status: int,
    kind: str,
    impatient_gateway: Gateway,
    engine: ScriptedEngine,
) -> None:
    agent = await impatient_gateway.session()
    engine.say(fault, fault, DONE)
    answered, body = await agent.post("/v1/messages", agent.body([user("fix it")]))
    assert (answered, body["type"], body["error"]["type"]) == (status, "error", kind)
    start, *pings, error = await agent.stream(agent.body([user("fix it")]))
    assert start["type"] == "message_start"
    assert {ping["type"] for ping in pings} <= {"ping"}
    assert (error["type"], error["error"]["type"]) == ("error", kind)
    assert impatient_gateway.turns("s1") == []
    assert (await agent.ask([user("fix it")]))["stop_reason"] == "end_turn"
    assert len(impatient_gateway.turns("s1")) == 1


async def test_the_stream_opens_at_once_and_pings_while_the_engine_works(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(Completion(LOOK, delay_s=30))
    async with gateway.http.post(
        gateway.url + "/v1/messages",
        data=orjson.dumps({**agent.body([user("fix it")]), "stream": True}),
        headers={"x-api-key": agent.key},
    ) as response:
        await engine.arrived.wait()
        head = await response.content.readuntil(b"\n\n")
        usage = orjson.loads(head.split(b"data: ")[1])["message"]["usage"]
        assert usage["input_tokens"] == len(engine.seen.requests[0]["input_ids"])
        assert b"event: ping" in await response.content.readuntil(b"\n\n")
        assert b"event: ping" in await response.content.readuntil(b"\n\n")


async def test_finishing_aborts_running_generations_and_refuses_later_requests(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(DONE, Completion(LOOK, delay_s=30))
    await agent.ask([user("hello")])
    engine.arrived.clear()
    asking = asyncio.create_task(agent.post("/v1/messages", agent.body([user("fix it")])))
    await engine.arrived.wait()
    finished = await agent.finish()
    status, body = await asking
    assert (status, body["error"]["type"]) == (403, "permission_error")
    assert (finished["stats"]["turns"], finished["stats"]["aborted"]) == (1, 1)
    status, body = await agent.post("/v1/messages", agent.body([user("more")]))
    assert status == 403
    assert "session s1 is finished" in body["error"]["message"]
    again = await agent.finish()
    assert again["segments"] == finished["segments"]


async def test_sampling_is_the_campaigns_and_the_clients_settings_are_counted(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session(sampling={"temperature": 0.25})
    engine.say(DONE)
    await agent.ask([user("hi")], temperature=0.0, top_p=0.1, top_k=1)
    stop = [engine.tokenizer.token_to_id(token) for token in (END, "<|endoftext|>")]
    assert engine.seen.requests[0]["sampling_params"] == {
        "temperature": 0.25,
        "top_p": 0.9,
        "top_k": 40,
        "max_new_tokens": 1000,
        "stop_token_ids": stop,
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    assert (await agent.stats())["ignored"] == {"temperature": 1, "top_p": 1, "top_k": 1}


async def test_seeds_differ_between_turns_and_repeat_with_the_session_seed(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    for name in ("a", "b"):
        agent = await gateway.session(name, seed=11)
        engine.say(LOOK, DONE)
        answer = await agent.ask([user("fix it")])
        await agent.ask([user("fix it"), echo(answer), results(answer, "x")])
    seeds = [request["sampling_params"]["sampling_seed"] for request in engine.seen.requests]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**31 for seed in seeds)


async def test_the_context_limit_clamps_answers_and_refuses_longer_prompts(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session("probe")
    engine.say(DONE, DONE)
    await agent.ask([user("hi")])
    prompt = len(engine.seen.requests[0]["input_ids"])
    tight = await gateway.session("tight", max_context_tokens=prompt + 1)
    await tight.ask([user("hi")])
    assert engine.seen.requests[1]["sampling_params"]["max_new_tokens"] == 1
    full = await gateway.session("full", max_context_tokens=prompt)
    status, body = await full.post("/v1/messages", full.body([user("hi")], stream=True))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    wanted = f"prompt is too long: {prompt} tokens > {prompt} maximum"
    assert body["error"]["message"] == wanted


async def test_counted_tokens_are_the_prompt_of_the_turn_that_follows(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    engine.say(LOOK, DONE)
    answer = await agent.ask([user("fix it")])
    messages = [user("fix it"), echo(answer), results(answer, "a.py")]
    body = agent.body(messages)
    del body["max_tokens"]
    status, counted = await agent.post("/v1/messages/count_tokens", body)
    assert status == 200
    await agent.ask(messages)
    assert counted == {"input_tokens": len(engine.seen.requests[1]["input_ids"])}


async def test_random_outputs_are_trained_exactly(gateway: Gateway, engine: ScriptedEngine) -> None:
    """Tokens that no template would ever write: the chain holds them as sampled all the same."""
    chance = random.Random(3)
    agent = await gateway.session()
    messages = [user("fix it")]
    letters = ["<tool_call>", "</tool_call>", "</think>", "é🤗", "\n", " ", '{"name": "x"', "ab"]
    for _ in range(25):
        engine.say("".join(chance.choices(letters, k=6)) + LOOK)
        answer = await agent.ask(messages)
        calls = sum(block["type"] == "tool_use" for block in answer["content"])
        messages += [echo(answer), results(answer, *["out"] * calls) if calls else user("go on")]
    finished = await agent.finish()
    assert finished["stats"]["breaks"] == []
    assert trained_tokens(finished) == sampled_tokens(engine)


async def test_only_outputs_that_their_text_would_not_give_back_are_mismatches(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    """Of a word that is one token the policy may sample the letters: the text is the same."""
    word = " function"
    (whole,) = engine.tokenizer.encode(word).ids
    letters = [id_ for letter in word for id_ in engine.tokenizer.encode(letter).ids]
    assert engine.tokenizer.decode(letters) == engine.tokenizer.decode([whole]) == word
    (end,) = engine.tokenizer.encode(END).ids
    agent, messages, counts = await gateway.session(), [user("fix it")], []
    for ids in ([whole, end], [*letters, end], [whole, whole, end], [whole, *letters, end]):
        engine.say(Completion(ids=tuple(ids)))
        answer = await agent.ask(messages)
        messages += [echo(answer), user("go on")]
        counts.append((await agent.stats())["retokenization_mismatches"])
    assert counts == [0, 1, 1, 2]
    finished = await agent.finish()
    assert finished["stats"]["retokenization_mismatches"] == 2
    assert trained_tokens(finished) == sampled_tokens(engine), (
        "they are trained as they were sampled"
    )


async def test_a_sub_agents_count_is_of_its_own_thread(
    gateway: Gateway, engine: ScriptedEngine
) -> None:
    agent = await gateway.session()
    who = {"x-claude-code-agent-id": "a1"}
    engine.say(f"<think>\nI must look.\n</think>\n\n{LOOK}", DONE)
    _, answer = await agent.post("/v1/messages", agent.body([user("fix it")]), **who)
    body = agent.body([user("fix it"), echo(answer), results(answer, "a.py")])
    counted = {k: v for k, v in body.items() if k != "max_tokens"}
    path = "/v1/messages/count_tokens"
    _, own = await agent.post(path, counted, **who)
    _, others = await agent.post(path, counted)
    await agent.post("/v1/messages", body, **who)
    assert own["input_tokens"] == len(engine.seen.requests[1]["input_ids"])
    assert others["input_tokens"] != own["input_tokens"], "without its thread the thought is lost"


async def test_a_finished_session_leaves_no_text_of_its_prompts_behind(
    engine: ScriptedEngine, tokenizer_dir: Path, tmp_path: Path
) -> None:
    clients: list[HttpEngine] = []

    def keep(client: Engine, _: AsyncTurnLog) -> Engine:
        assert isinstance(client, HttpEngine)
        clients.append(client)
        return client

    hooks = GatewayHooks(wrap_engine=keep)
    async with running_gateway(engine.url, tokenizer_dir, tmp_path, hooks=hooks) as gateway:
        agent = await gateway.session()
        engine.say(LOOK, LOOK, DONE)
        messages = [user("fix it " * LEAST_TOKENS)]
        for _ in range(2):
            answer = await agent.ask(messages)
            messages += [echo(answer), results(answer, "a.py")]
        await agent.ask(messages)
        first, *_, last = (request["input_ids"] for request in engine.seen.requests)
        assert last[: len(first)] == first
        assert clients[0]._prompts.bytes > LEAST_TOKENS
        await agent.finish()
        assert clients[0]._prompts.bytes == 0
