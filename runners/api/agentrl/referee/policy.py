"""The scripted policy: its tokens, the form in which it writes calls, and the engine that answers.

The newest message of each request holds a word, its *cue*. The engine gives the answers of the cue
that stands last in the prompt, one after the other: so requests may come in any order, or side by
side. All of its logprobs differ, so that a swap is seen.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentrl.referee.conversation import WORD, PolicyAnswer, PolicyCall, RefereeError, Sampling

FORMS = {
    "hermes": ('<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>', ""),
    "qwen3_coder": (
        "<tool_call>\n<function={}>\n{}</function>\n</tool_call>",
        "<parameter={}>\n{}\n</parameter>\n",
    ),
    "glm": ("<tool_call>{}\n{}</tool_call>", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"),
}
"""Forms in which families write a call, and an argument (empty: all of them as JSON), by the names
of vLLM's and SGLang's parsers.
"""
HOLD_S = 10.0
"""The longest time that an answer is held."""
MORE = PolicyAnswer("More than that was not asked for.")
"""The answer to a prompt without a cue, or with one whose answers were all given."""
_TAG = re.compile(r"</?\w+>|.", re.DOTALL)
"""A tag of the family's, which is one token, or a single character."""


class Vocabulary:
    """A tokenizer's files, and a family's form of calls."""

    def __init__(self, directory: Path, form: str = "hermes") -> None:
        """Load ``tokenizer.json``; raises RefereeError."""
        if form not in FORMS:
            raise RefereeError(f"--format {form}: choose one of {', '.join(FORMS)}")
        try:
            self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            settings = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
        except Exception as error:  # tokenizers raises Exception itself
            raise RefereeError(f"--tokenizer {directory}: {error}") from error
        self._settings: dict[str, Any] = settings
        self.form = form
        self.directory = directory
        end = settings.get("eos_token") or "<|im_end|>"
        end = end["content"] if isinstance(end, dict) else end
        end_id = self.tokenizer.token_to_id(end)
        if end_id is None:
            raise RefereeError(f"--tokenizer {directory}: it has no token {end!r}")
        self.end: int = end_id

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text in which control tokens are written out."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, controls: bool = True) -> str:
        """Return the text of tokens; ``controls``: with control tokens written out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=not controls)

    def render(self, messages: Any, tools: Any) -> list[int]:
        """Return a prompt by the directory's chat template, as a server's own chat wire does.

        Raises ValueError if it has none, or refuses the messages.
        """
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        file = self.directory / "chat_template.jinja"
        template = (
            file.read_text("utf-8") if file.is_file() else self._settings.get("chat_template")
        )
        if not isinstance(template, str):
            raise ValueError(f"{self.directory} has no chat_template.jinja: send input_ids")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **_: _dump(value)
        for message in messages:  # templates expect objects
            for call in message.get("tool_calls") or ():
                function = call["function"]
                if isinstance(function["arguments"], str):
                    function["arguments"] = json.loads(function["arguments"])
        try:
            text = environment.from_string(template).render(
                messages=messages, tools=tools, add_generation_prompt=True
            )
        except TemplateError as error:
            raise ValueError(str(error)) from error
        return self.encode(text)

    def sample(self, answer: PolicyAnswer) -> list[int]:
        """Return the tokens of an answer."""
        text = self.write(answer)
        parts = _TAG.findall(text) if answer.odd else [text]
        ids = [token for part in parts for token in self.encode(part)]
        return ids if answer.finish == "length" else [*ids, self.end]

    def write(self, answer: PolicyAnswer) -> str:
        """Return an answer as the policy writes it, without the end of its turn."""
        thought = f"<think>\n{answer.thought}\n</think>\n\n" if answer.thought else ""
        calls = "\n".join(map(self.write_call, answer.calls))
        whole = thought + "\n".join(part for part in (answer.text, calls) if part)
        return whole.partition(answer.until)[0] if answer.until else whole

    def write_call(self, call: PolicyCall) -> str:
        """Return a call in the family's form; a text for arguments stands in it as it is."""
        call_form, argument_form = FORMS[self.form]
        if isinstance(call.arguments, str):
            inner = call.arguments
        elif not argument_form:
            inner = _dump(call.arguments)
        else:
            inner = "".join(
                argument_form.format(key, value if isinstance(value, str) else _dump(value))
                for key, value in call.arguments.items()
            )
        return call_form.format(call.name, inner)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class CueEngine:
    """The engine, without its wires."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.samplings: list[Sampling] = []
        """All calls, by their numbers."""
        self.version = 1
        """Of its weights; scenarios change it."""
        self._answers: dict[str, deque[PolicyAnswer]] = {}
        self._arrived: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._tokens = 0
        """Tokens sampled so far."""

    def script(self, cue: str, answers: Sequence[PolicyAnswer]) -> None:
        """Add answers to the prompts that end with a cue."""
        self._answers.setdefault(cue, deque()).extend(answers)
        self._arrived.pop(cue, None)
        self._released.pop(cue, None)

    async def wait(self, cue: str) -> None:
        """Return when a prompt with this cue is being answered; raises TimeoutError."""
        async with asyncio.timeout(HOLD_S):
            await self._arrived[cue].wait()

    def release(self, cue: str) -> None:
        """Give the answers that are held, and hold none of this cue from now on."""
        self._released[cue].set()

    async def sample(
        self, prompt: Sequence[int], limit: int | None = None, *, tells_version: bool = True
    ) -> Sampling:
        """Return the next answer to a prompt; one that is cancelled is kept as ``cut``."""
        cue = self._find_cue(self.vocabulary.decode(prompt))
        queue = self._answers.get(cue)
        answer = queue.popleft() if queue else MORE
        output = self.vocabulary.sample(answer)
        finish = answer.finish
        if answer.fault:
            output, finish = output[: len(output) // 2 if answer.fault == "abort" else 0], "abort"
        if limit is not None and len(output) > limit:
            output, finish = output[:limit], "length"
        first = self._tokens + 1
        self._tokens += len(output)
        sampling = Sampling(
            index=len(self.samplings),
            prompt=tuple(prompt),
            output=tuple(output),
            # exact in float32, and as JSON
            logprobs=tuple(-(n % 2**22 + 1) / 65536 for n in range(first, first + len(output))),
            version=self.version if tells_version else 0,
            cue=cue,
            answer=answer,
            finish=finish,
            state="fault" if answer.fault else "done",
            unscripted=answer is MORE,
        )
        self.samplings.append(sampling)
        self._arrived[cue].set()
        try:
            if answer.hold:
                with suppress(TimeoutError):  # whoever held it has gone
                    await asyncio.wait_for(self._released[cue].wait(), HOLD_S)
        except asyncio.CancelledError:
            self.mark_cut(sampling)
            raise
        return sampling

    def mark_cut(self, sampling: Sampling) -> None:
        """Note that whoever asked left before the answer was written."""
        self.samplings[sampling.index] = replace(sampling, state="cut")

    def _find_cue(self, prompt: str) -> str:
        known = (word for word in reversed(WORD.findall(prompt)) if word in self._answers)
        return next(known, "")
