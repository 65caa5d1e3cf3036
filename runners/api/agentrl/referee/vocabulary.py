"""The policy's tokens and the form in which it writes calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from agentrl.referee.conversation import PolicyAnswer, PolicyCall, RefereeError

FORMATS = ("hermes", "qwen3_coder", "glm")
"""The ways in which families write calls, by the names of vLLM's and SGLang's parsers."""
_TAG = re.compile(r"</?\w+>|.", re.DOTALL)
"""A tag of the family's, which is one token, or a single character."""


class Vocabulary:
    """A tokenizer's files, and a family's form of calls."""

    def __init__(self, directory: Path, form: str = "hermes") -> None:
        """Load ``tokenizer.json``; raises RefereeError."""
        if form not in FORMATS:
            raise RefereeError(f"--format {form}: choose one of {', '.join(FORMATS)}")
        try:
            self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            settings = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
        except Exception as error:  # tokenizers raises Exception itself
            raise RefereeError(f"--tokenizer {directory}: {error}") from error
        self._settings: dict[str, Any] = settings
        self.form = form
        self.directory = directory
        end = settings.get("eos_token") or "<|im_end|>"
        self.end_text = end["content"] if isinstance(end, dict) else end
        end_id = self.tokenizer.token_to_id(self.end_text)
        if end_id is None:
            raise RefereeError(f"--tokenizer {directory}: it has no token {self.end_text!r}")
        self.end: int = end_id
        self.controls = {
            token
            for token, added in self.tokenizer.get_added_tokens_decoder().items()
            if added.special
        }
        """Tokens that a template alone may write."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text in which control tokens are written out."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the tokens of a text none of whose characters make a control token."""
        parts = self._added.split(text) if self._added else [text]
        ids: list[int] = []
        for part in parts:
            if self._added and self._added.fullmatch(part):
                ids += self.encode(part[:2]) + self.encode(part[2:])
            elif part:
                ids += self.encode(part)
        return ids

    @cached_property
    def _added(self) -> re.Pattern[str] | None:
        added = self.tokenizer.get_added_tokens_decoder()
        texts = [re.escape(added[token].content) for token in sorted(self.controls)]
        return re.compile(f"({'|'.join(texts)})") if texts else None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens written out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

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
        if answer.raw is not None:
            return answer.raw
        thought = f"<think>\n{answer.thought}\n</think>\n\n" if answer.thought else ""
        calls = "\n".join(map(self.write_call, answer.calls))
        return thought + "\n".join(part for part in (answer.text, calls) if part)

    def write_call(self, call: PolicyCall) -> str:
        """Return a call in the family's form."""
        if self.form == "hermes":
            name, arguments = _dump(call.name), _dump(call.arguments)
            return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
        values = call.arguments.items() if isinstance(call.arguments, Mapping) else ()
        pairs = [(key, value if isinstance(value, str) else _dump(value)) for key, value in values]
        if self.form == "glm":
            inner = "".join(
                f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
                for key, value in pairs
            )
            return f"<tool_call>{call.name}\n{inner}</tool_call>"
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs)
        return f"<tool_call>\n<function={call.name}>\n{inner}</function>\n</tool_call>"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
