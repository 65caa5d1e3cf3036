"""The gateway with a vLLM server: turns are exact, and each continues the tokens of the last."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.running_gateway import echo, results, running_gateway, user
from tests.fakes.vllm_server import VllmAnswer, VllmServer

CALL = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'


async def test_a_conversation_is_recorded_token_by_token(
    tokenizer_dir: Path, tmp_path: Path
) -> None:
    async with VllmServer() as server:
        engine = {"kind": "vllm", "url": server.url, "model": None}
        gateway_at = running_gateway(
            server.url, tokenizer_dir, tmp_path / "run", fixed_engine=engine
        )
        async with gateway_at as gateway:
            server.say(CALL, "Done.<|im_end|>")
            agent = await gateway.session("s1", seed=5)
            first = await agent.ask([user("fix it")])
            second = await agent.ask([user("fix it"), echo(first), results(first, "a.py")])
            turns = gateway.turns("s1")
    assert second["content"] == [{"type": "text", "text": "Done."}]
    assert [block["type"] for block in first["content"]] == ["tool_use"]
    sent = [request["prompt"] for request in server.requests]
    ids = server.tokenizer.encode(CALL, add_special_tokens=False).ids
    assert turns[0].output_ids.tolist() == ids
    assert sent[1][: len(sent[0]) + len(ids)] == sent[0] + ids
    assert [turn.weight_version for turn in turns] == [-1, -1]
    assert server.requests[0]["temperature"] == 0.7
    assert server.requests[0]["request_id"].startswith("s1:main:")
    assert server.requests[0]["seed"] != server.requests[1]["seed"]


async def test_an_answer_that_is_not_exact_is_no_turn(tokenizer_dir: Path, tmp_path: Path) -> None:
    async with VllmServer() as server:
        engine = {"kind": "vllm", "url": server.url, "model": None}
        gateway_at = running_gateway(
            server.url, tokenizer_dir, tmp_path / "run", fixed_engine=engine
        )
        async with gateway_at as gateway:
            server.say(VllmAnswer(changes={"prompt_token_ids": [1]}))
            agent = await gateway.session("s1")
            status, answer = await agent.post("/v1/messages", agent.body([user("hi")]))
            assert gateway.turns("s1") == []
    assert status == 500
    assert "something in between changes prompts" in answer["error"]["message"]
