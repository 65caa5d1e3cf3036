"""The scripted engine on its five wires."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from shutil import copytree
from typing import Any

import aiohttp
import pytest

from agentrl.referee.conversation import PolicyAnswer, PolicyCall, RefereeError
from agentrl.referee.policy import FORMS, CueEngine, Vocabulary
from agentrl.referee.wires import serve_engine

CUE, OTHER = "zxaaaaaa", "zxbbbbbb"


@pytest.fixture
def engine(vocabulary: Vocabulary) -> CueEngine:
    return CueEngine(vocabulary)


@pytest.fixture
async def url(engine: CueEngine) -> AsyncIterator[str]:
    async with serve_engine(engine) as url:
        yield url


async def post(url: str, body: dict[str, Any]) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as response:
        return response.status, await response.text()


async def ask(url: str, body: dict[str, Any]) -> Any:
    status, text = await post(url, body)
    assert status == 200, text
    return json.loads(text)


def read_sglang(answer: Any) -> tuple[list[int], list[float]]:
    rows = answer["meta_info"]["output_token_logprobs"]
    return [row[1] for row in rows], [row[0] for row in rows]


def read_chat(answer: Any) -> tuple[list[int], list[float]]:
    choice = answer["choices"][0]
    return choice["token_ids"], [row["logprob"] for row in choice["logprobs"]["content"]]


WIRES: dict[str, Any] = {
    "/generate": (lambda ids: {"input_ids": ids, "return_logprob": True}, read_sglang),
    "/v1/chat/completions": (
        lambda ids: {"messages": [], "input_ids": ids, "logprobs": True, "return_token_ids": True},
        read_chat,
    ),
    "/v1/completions": (
        lambda ids: {"prompt": ids, "logprobs": 1, "return_token_ids": True},
        lambda answer: (
            answer["choices"][0]["token_ids"],
            answer["choices"][0]["logprobs"]["token_logprobs"],
        ),
    ),
    "/inference/v1/generate": (
        lambda ids: {"token_ids": ids, "sampling_params": {"logprobs": 1}},
        read_chat,
    ),
}


@pytest.mark.parametrize("path", list(WIRES))
async def test_a_wire_gives_the_tokens_and_logprobs_of_the_cue(
    path: str, engine: CueEngine, url: str
) -> None:
    engine.script(CUE, [PolicyAnswer("Right.")])
    engine.script(OTHER, [PolicyAnswer("Wrong.")])
    write, read = WIRES[path]
    prompt = engine.vocabulary.encode(f"first {OTHER} then {CUE} and more")
    ids, logprobs = read(await ask(url + path, write(prompt)))
    (sampling,) = engine.samplings
    assert (sampling.prompt, sampling.cue, sampling.state) == (tuple(prompt), CUE, "done")
    assert engine.vocabulary.decode(ids) == "Right.<|im_end|>"
    assert (tuple(ids), tuple(logprobs)) == (sampling.output, sampling.logprobs)


async def test_sglang_s_chat_has_the_tokens_in_its_meta_info(engine: CueEngine, url: str) -> None:
    engine.script(CUE, [PolicyAnswer("Look.", (PolicyCall("Bash", {"command": "ls"}),))])
    body = {"messages": [], "input_ids": engine.vocabulary.encode(CUE), "return_meta_info": True}
    (choice,) = (await ask(f"{url}/v1/chat/completions", body))["choices"]
    assert tuple(read_sglang(choice)[0]) == engine.samplings[0].output
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "Bash", "arguments": '{"command": "ls"}'}
    assert choice["finish_reason"] == "tool_calls"


async def test_a_chat_wire_renders_messages_by_the_directory_s_template(
    vocabulary: Vocabulary, tmp_path: Path
) -> None:
    place = copytree(vocabulary.directory, tmp_path / "model")
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
    (place / "chat_template.jinja").write_text(template)
    engine = CueEngine(Vocabulary(place))
    engine.script(CUE, [PolicyAnswer("So.")])
    async with serve_engine(engine) as url:
        message = {"role": "user", "content": f"hi {CUE}"}
        await ask(f"{url}/v1/chat/completions", {"messages": [message]})
    assert vocabulary.decode(engine.samplings[0].prompt) == f"<|im_start|>user\nhi {CUE}"


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_a_stream_ends_with_the_whole_answer(path: str, engine: CueEngine, url: str) -> None:
    engine.script(CUE, [PolicyAnswer("Right, that is so.")])
    body = WIRES[path][0](engine.vocabulary.encode(CUE)) | {"stream": True}
    _, text = await post(url + path, body)
    *chunks, last = [frame.removeprefix("data: ") for frame in text.strip().split("\n\n")]
    assert last == "[DONE]"
    whole = json.loads(chunks[-1])
    if path == "/generate":
        assert tuple(whole["output_ids"]) == engine.samplings[0].output
        assert len(json.loads(chunks[0])["output_ids"]) < len(whole["output_ids"])
    else:
        assert whole["choices"][0]["delta"]["content"] == "Right, that is so."


async def test_answers_of_a_cue_come_one_after_the_other_then_a_counted_one(
    engine: CueEngine,
) -> None:
    engine.script(CUE, [PolicyAnswer("One."), PolicyAnswer("Two.")])
    prompt = engine.vocabulary.encode(CUE)
    made = [await engine.sample(prompt) for _ in range(3)]
    assert [each.answer.text for each in made[:2]] == ["One.", "Two."]
    assert [each.unscripted for each in made] == [False, False, True]
    assert (await engine.sample(engine.vocabulary.encode("no cue"))).unscripted
    logprobs = [value for each in engine.samplings for value in each.logprobs]
    assert len(set(logprobs)) == len(logprobs)


async def test_a_limit_cuts_an_answer(engine: CueEngine, url: str) -> None:
    engine.script(CUE, [PolicyAnswer("A long answer.")])
    params = {"max_new_tokens": 2}
    body = {"input_ids": engine.vocabulary.encode(CUE), "sampling_params": params}
    answer = await ask(f"{url}/generate", body)
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    assert len(engine.samplings[0].output) == 2


async def test_an_answer_is_held_until_it_is_released_and_cut_if_the_asker_leaves(
    engine: CueEngine, url: str
) -> None:
    engine.script(CUE, [PolicyAnswer("Late.", hold=True), PolicyAnswer("Later.", hold=True)])
    body = {"input_ids": engine.vocabulary.encode(CUE)}
    task = asyncio.ensure_future(post(f"{url}/generate", body))
    await engine.wait(CUE)
    assert not task.done()
    task.cancel()
    for _ in range(100):
        await asyncio.sleep(0.02)
        if engine.samplings[0].state == "cut":
            break
    assert engine.samplings[0].state == "cut"
    engine.release(CUE)
    await ask(f"{url}/generate", body)
    assert engine.samplings[1].state == "done"


@pytest.mark.parametrize(
    ("fault", "wanted"), [("500", 500), ("503", 503), ("garbage", 200), ("abort", 200)]
)
async def test_a_fault_is_what_the_scenario_wants(
    fault: str, wanted: int, engine: CueEngine, url: str
) -> None:
    engine.script(CUE, [PolicyAnswer("Half of it.", fault=fault)])
    body = {"input_ids": engine.vocabulary.encode(CUE)}
    status, text = await post(f"{url}/generate", body)
    assert status == wanted
    assert ("<html>" in text) == (fault == "garbage")
    if fault == "abort":
        assert json.loads(text)["meta_info"]["finish_reason"]["type"] == "abort"
    assert engine.samplings[0].state == "fault"


async def test_a_dropped_connection_has_no_answer(engine: CueEngine, url: str) -> None:
    engine.script(CUE, [PolicyAnswer(fault="drop")])
    with pytest.raises(aiohttp.ClientError):
        await post(f"{url}/generate", {"input_ids": engine.vocabulary.encode(CUE)})


@pytest.mark.parametrize("body", [{}, {"input_ids": "x"}, {"input_ids": [1.5]}, {"input_ids": {}}])
async def test_a_body_without_tokens_is_refused(body: dict[str, Any], url: str) -> None:
    status, text = await post(f"{url}/generate", body)
    assert status == 400
    assert "input_ids" in text


@pytest.mark.parametrize("form", list(FORMS))
def test_a_call_is_written_in_the_family_s_form(form: str, vocabulary: Vocabulary) -> None:
    written = Vocabulary(vocabulary.directory, form).write_call(
        PolicyCall("Bash", {"command": "ls\n", "timeout": 5})
    )
    assert written.startswith("<tool_call>")
    assert written.endswith("</tool_call>")
    assert ("ls\\n" in written) == (form == "hermes")


def test_a_vocabulary_that_cannot_be_used_is_refused(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    with pytest.raises(RefereeError, match="--tokenizer"):
        Vocabulary(tmp_path)
    with pytest.raises(RefereeError, match="choose one of hermes"):
        Vocabulary(vocabulary.directory, "xml")


def test_odd_tokens_are_others_of_the_same_text(vocabulary: Vocabulary) -> None:
    answer = PolicyAnswer("I look at it.", (PolicyCall("Bash", {"command": "ls"}),))
    plain = vocabulary.sample(answer)
    odd = vocabulary.sample(PolicyAnswer(answer.text, answer.calls, odd=True))
    assert odd != plain
    assert vocabulary.decode(odd) == vocabulary.decode(plain)
    for tag in ("<tool_call>", "</tool_call>"):
        (token,) = vocabulary.encode(tag)
        assert token in odd
