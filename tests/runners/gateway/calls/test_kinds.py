"""Mark-up that is wrong in a known way: each has one of three ends, the call, a recovered call, or
a malformed attempt.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from runners.gateway.calls.families import PARSERS
from runners.gateway.calls.values import Tools
from runners.records.tokenizer import ParsedResponse

TEXT = {"type": "string"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": dict.fromkeys(keys, TEXT)},
        },
    }
    for name, keys in {
        "Bash": ("command", "description"),
        "Write": ("path", "text"),
        "Edit": ("path", "old_string", "new_string"),
    }.items()
]
TAGGED = (
    "qwen3.5",
    "qwen3.6",
    "minimax-m2",
    "glm-4.5",
    "glm-5",
    "hy3",
    "laguna-xs.2",
    "nemotron-3",
)
"""A family per format whose values are written without quotes."""


def tags_of(family: str) -> tuple[str, ...]:
    """Return how a family opens calls, one call, an argument; and closes them again."""
    if family == "minimax-m2":
        return (
            *("<minimax:tool_call>\n", '<invoke name="{}">\n', '<parameter name="{}">'),
            *("</parameter>\n", "</invoke>\n", "</minimax:tool_call>"),
        )
    if family == "hy3":
        mark = ":opensource"
        return (
            *(f"<tool_calls{mark}>\n", f"<tool_call{mark}>{{}}<tool_sep{mark}>\n"),
            f"<arg_key{mark}>{{}}</arg_key{mark}>\n<arg_value{mark}>",
            *(f"</arg_value{mark}>\n", f"</tool_call{mark}>\n", f"</tool_calls{mark}>"),
        )
    if family.startswith(("glm", "laguna")):
        line = "" if family == "glm-5" else "\n"
        return (
            *("", "<tool_call>{}" + line, "<arg_key>{}</arg_key>" + line + "<arg_value>"),
            *("</arg_value>" + line, "</tool_call>", ""),
        )
    return (
        *("<tool_call>\n", "<function={}>\n", "<parameter={}>\n"),
        *("\n</parameter>\n", "</function>\n", "</tool_call>"),
    )


def write(family: str, *calls: tuple[str, dict[str, str]]) -> str:
    """Return calls in one wrapper, as the family writes them."""
    opens, call, key, ends_value, ends_call, closes = tags_of(family)
    text = opens
    for name, arguments in calls:
        text += call.format(name)
        for argument, value in arguments.items():
            text += key.format(argument) + value + ends_value
        text += ends_call
    return text + closes


def parse(family: str, text: str, tools: list[dict[str, Any]] = TOOLS) -> ParsedResponse:
    return PARSERS[family].parse(text, "", Tools.of(tools))


def calls_of(read: ParsedResponse) -> list[Any]:
    return [(call.name, call.arguments) for call in read.tool_calls if call.status == "ok"]


def ends_of(read: ParsedResponse) -> list[str]:
    """Return how each attempt ended."""
    return [call.recovered if call.status == "ok" else "malformed" for call in read.tool_calls]


def with_schema(schema: dict[str, Any], **definitions: Any) -> list[dict[str, Any]]:
    parameters = {"properties": {"value": schema}, "$defs": definitions}
    return [{"type": "function", "function": {"name": "Set", "parameters": parameters}}]


# --- 1: white space ---


@pytest.mark.parametrize("family", TAGGED)
@pytest.mark.parametrize(
    "value", ["    if x:\n        return 1\n", "\n", "", " ", "\t\n\n", "\n\nx\n\n", "a \r\n", " a"]
)
def test_white_space_of_a_value_is_its_own(family: str, value: str) -> None:
    read = parse(family, write(family, ("Edit", {"path": " a", "old_string": value})))
    assert calls_of(read) == [("Edit", {"path": " a", "old_string": value})]
    assert ends_of(read) == [""]


@pytest.mark.parametrize("family", TAGGED)
def test_white_space_of_text_is_its_own(family: str) -> None:
    assert parse(family, "    x = 1\n    y = 2 ").content == "    x = 1\n    y = 2 "
    read = parse(family, "  I look. \n" + write(family, ("Bash", {"command": "ls"})))
    assert read.content.startswith("  I look. ")
    assert calls_of(read) == [("Bash", {"command": "ls"})]


# --- 2: several calls in one block ---


@pytest.mark.parametrize("family", TAGGED)
def test_calls_in_one_block_are_calls_of_their_own(family: str) -> None:
    wanted = [("Write", {"path": "a.py"}), ("Bash", {"command": "rm -rf build"})]
    read = parse(family, write(family, *wanted))
    assert calls_of(read) == wanted
    assert "malformed" not in ends_of(read)


@pytest.mark.parametrize("between", ["\n", ",\n", ""])
def test_json_calls_in_one_block_are_calls_of_their_own(between: str) -> None:
    first = '{"name": "Write", "arguments": {"path": "a.py"}}'
    second = '{"name": "Bash", "arguments": {"command": "ls"}}'
    wanted = [("Write", {"path": "a.py"}), ("Bash", {"command": "ls"})]
    for body in (first + between + second, f"[{first}, {second}]"):
        read = parse("qwen3", f"<tool_call>\n{body}\n</tool_call>")
        assert calls_of(read) == wanted
        assert ends_of(read) == ["several_calls"] * 2


# --- 3: closing tags that are missing or garbled ---


@pytest.mark.parametrize("family", TAGGED)
@pytest.mark.parametrize("more", [{}, {"description": "List."}])
def test_a_value_without_its_closing_tag_is_recovered(family: str, more: dict[str, str]) -> None:
    *_, ends_value, _, _ = tags_of(family)
    whole = write(family, ("Bash", {"command": "ls", **more}))
    cut = whole.replace(f"ls{ends_value}", "ls" + "\n" * ends_value.startswith("\n"), 1)
    read = parse(family, cut)
    assert calls_of(read) == [("Bash", {"command": "ls", **more})]
    assert ends_of(read) == ["missing_closer"]


@pytest.mark.parametrize("family", TAGGED)
@pytest.mark.parametrize("garbled", ["</{}/>", "</{}1>", "</{}s>", "<\\/{}>", "</{}", "</ {}>"])
def test_a_garbled_closing_tag_closes(family: str, garbled: str) -> None:
    word = "parameter" if family.startswith(("qwen", "mini", "nemo")) else "arg_value"
    *_, ends_value, _, _ = tags_of(family)
    whole = write(family, ("Bash", {"command": "ls", "description": "List."}))
    tag = ends_value.strip("\n")
    read = parse(family, whole.replace(tag, garbled.format(word)))
    assert calls_of(read) == [("Bash", {"command": "ls", "description": "List."})]
    assert ends_of(read) == ["garbled_tag"]


@pytest.mark.parametrize("family", TAGGED)
def test_a_first_call_without_a_closing_tag_does_not_take_the_next_call(family: str) -> None:
    *_, ends_value, _, _ = tags_of(family)
    first = write(family, ("Bash", {"command": "ls"})).replace(ends_value, "\n")
    read = parse(family, first + "\n" + write(family, ("Write", {"path": "b"})))
    assert [name for name, _ in calls_of(read)] == ["Bash", "Write"]
    assert calls_of(read)[0][1]["command"].strip() == "ls"


@pytest.mark.parametrize("family", TAGGED)
def test_a_call_that_is_cut_off_is_malformed_wherever_it_is_cut(family: str) -> None:
    whole = write(family, ("Bash", {"command": "ls -la", "description": "List."}))
    ends = whole.rstrip().removesuffix("</tool_calls:opensource>").rstrip()
    for length in range(len(tags_of(family)[0] + tags_of(family)[1]), len(ends) - 1):
        read = parse(family, whole[:length])
        assert calls_of(read) == [], whole[:length]
        assert ends_of(read) == ["malformed"], whole[:length]


@pytest.mark.parametrize("family", TAGGED)
@pytest.mark.parametrize(
    "junk", ["ls -la", "command: ls", "<command>ls</command>", "ls</parameter>"]
)
def test_a_call_whose_arguments_have_no_tags_is_malformed(family: str, junk: str) -> None:
    opens, call, *_, ends_call, closes = tags_of(family)
    read = parse(family, opens + call.format("Bash") + "\n" + junk + "\n" + ends_call + closes)
    assert (calls_of(read), ends_of(read)) == ([], ["malformed"])


# --- 4: opening tags that are missing ---


@pytest.mark.parametrize(
    "family", ["qwen3.5", "qwen3.6", "nemotron-3", "minimax-m2", "deepseek-v4"]
)
@pytest.mark.parametrize("text", ["", "I look.\n"])
def test_a_call_without_its_wrapper_is_recovered(family: str, text: str) -> None:
    if family == "deepseek-v4":
        call = (
            '<｜DSML｜invoke name="Bash">\n<｜DSML｜parameter name="command" string="true">ls'
            "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
        )
        closes = "</｜DSML｜tool_calls>"
    else:
        opens, *_, closes = tags_of(family)
        call = write(family, ("Bash", {"command": "ls"})).removeprefix(opens).removesuffix(closes)
    for end in ("", closes):
        read = parse(family, text + call + end)
        assert calls_of(read) == [("Bash", {"command": "ls"})]
        assert ends_of(read) == ["missing_opener"]
        assert read.content.strip() == text.strip()


KIMI = 'functions.Bash:0<|tool_call_argument_begin|>{"command": "ls"}<|tool_call_end|>'
DEEPSEEK = 'function<｜tool▁sep｜>Bash\n```json\n{"command": "ls"}\n```<｜tool▁call▁end｜>'
UNOPENED = {
    "glm-4.5": "Bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
    "glm-5": "Bash<arg_key>command</arg_key><arg_value>ls</arg_value></tool_call>",
    "qwen3": '{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>',
    "kimi-k2": f"<|tool_call_begin|>{KIMI}",
    "kimi-k2.5": f"{KIMI}<|tool_calls_section_end|>",
    "deepseek-v3": f"<｜tool▁call▁begin｜>{DEEPSEEK}",
    "gemma4": 'call:Bash{command:<|"|>ls<|"|>}<tool_call|>',
}


@pytest.mark.parametrize(("family", "written"), UNOPENED.items())
def test_a_call_without_its_opening_tag_is_recovered(family: str, written: str) -> None:
    for text in ("", "I look.\n"):
        read = parse(family, text + written)
        assert calls_of(read) == [("Bash", {"command": "ls"})]
        assert ends_of(read) == ["missing_opener"]
        assert read.content.strip() == text.strip()


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "glm-5", "minimax-m2", "gemma4"])
def test_a_closing_tag_alone_is_a_malformed_attempt(family: str) -> None:
    tag = {"minimax-m2": "</minimax:tool_call>", "gemma4": "<tool_call|>"}.get(
        family, "</tool_call>"
    )
    read = parse(family, f"Something\n{tag}")
    assert (calls_of(read), ends_of(read)) == ([], ["malformed"])


@pytest.mark.parametrize("family", TAGGED)
def test_a_second_closing_tag_does_no_harm(family: str) -> None:
    whole = write(family, ("Bash", {"command": "ls"}))
    tag = whole.rstrip().rpartition("\n")[2] if "\n" in whole else "</tool_call>"
    read = parse(family, whole + "\n" + "</tool_call>" * (tag.startswith("</tool_call>")))
    assert calls_of(read) == [("Bash", {"command": "ls"})]


def test_a_format_that_is_only_spoken_of_is_text() -> None:
    text = "Calls stand in `<tool_call>` tags, and `<function=Bash>` opens one."
    read = parse("qwen3.5", text)
    assert (read.content, read.tool_calls) == (text, [])


# --- 5 and 6: values by their schema ---


def read_value(family: str, schema: dict[str, Any], value: str, **definitions: Any) -> Any:
    tools = with_schema(schema, **definitions)
    read = parse(family, write(family, ("Set", {"value": value})), tools)
    (call,) = read.tool_calls
    assert call.status == "ok", call
    assert isinstance(call.arguments, dict)
    return call.arguments["value"]


@pytest.mark.parametrize("family", ["qwen3.5", "qwen3.6", "glm-5", "minimax-m2"])
@pytest.mark.parametrize(
    ("written", "value"),
    [("True", True), ("False", False), ("None", None), ("true", True), (" TRUE\n", True)],
)
@pytest.mark.parametrize(
    "schema", [{"type": "boolean"}, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}]
)
def test_python_s_words_are_read_as_json_s(
    family: str, written: str, value: Any, schema: dict[str, Any]
) -> None:
    assert read_value(family, schema, written) is value


@pytest.mark.parametrize("family", ["qwen3.5", "glm-5"])
@pytest.mark.parametrize("written", ["1.10", "42", "true", "[1]", '{"a": 1}', '"x"', " 7", "NaN"])
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": ["string"]},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"type": "string"}]},
        {"allOf": [{"$ref": "#/$defs/Text"}], "default": ""},
        {"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]},
        {"type": "string", "nullable": True},
        {"enum": ["1.10", "42"]},
        {"anyOf": [{"const": "42"}, {"type": "null"}]},
    ],
)
def test_what_can_be_a_string_only_is_one(
    family: str, written: str, schema: dict[str, Any]
) -> None:
    assert read_value(family, schema, written, Text={"type": "string"}) == written


def test_a_string_beside_something_else_is_what_is_not_written_so_exactly() -> None:
    number = {"type": ["string", "number"]}
    assert read_value("glm-5", number, "1.10") == "1.10"
    assert read_value("glm-5", number, "1.1") == 1.1
    assert read_value("glm-5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "1.5") == "1.5"
    assert read_value("glm-5", {"type": ["array", "string"]}, "[1,2]") == [1, 2]
    assert read_value("glm-5", {"type": ["null", "string"]}, "null") is None
    loop = {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]}
    assert read_value("glm-5", loop, "1.10", Loop=loop) == "1.10"


# --- 8, 9, 10: keys, numbers, names ---


@pytest.mark.parametrize("key", ["parameters", "args", "input", "params"])
@pytest.mark.parametrize("form", ["{}", "[{}]", '{{"type": "function", "function": {}}}'])
def test_arguments_under_another_key_are_arguments(key: str, form: str) -> None:
    body = form.format(f'{{"name": "Bash", "{key}": {{"command": "ls"}}}}')
    read = parse("qwen3", f"<tool_call>\n{body}\n</tool_call>")
    assert (calls_of(read), ends_of(read)) == ([("Bash", {"command": "ls"})], ["other_key"])


@pytest.mark.parametrize("body", ['"command": "ls"', '"arguments": null', '"arguments": "{}"'])
def test_arguments_that_cannot_be_told_are_never_none_at_all(body: str) -> None:
    read = parse("qwen3", f'<tool_call>\n{{"name": "Bash", {body}}}\n</tool_call>')
    assert (calls_of(read), ends_of(read)) == ([], ["malformed"])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "[1, NaN]"])
def test_a_number_that_is_no_json_is_malformed(number: str) -> None:
    json_call = f'{{"name": "Set", "arguments": {{"value": {number}}}}}'
    written = {
        "qwen3": f"<tool_call>\n{json_call}\n</tool_call>",
        "llama-3": json_call.replace("arguments", "parameters"),
        "kimi-k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.Set:0"
        f'<|tool_call_argument_begin|>{{"value": {number}}}<|tool_call_end|>'
        "<|tool_calls_section_end|>",
        "gpt-oss": "<|channel|>commentary to=functions.Set<|message|>"
        f'{{"value": {number}}}<|call|>',
        "inkling": "Set<|content_invoke_tool_json|>"
        f'{{"name":"Set","args":{{"value":{number}}}}}<|end_message|>',
    }
    for family in TAGGED:
        written[family] = write(family, ("Set", {"value": number}))
    tools = with_schema({"type": ["number", "array"]})
    for family, text in written.items():
        assert ends_of(parse(family, text, tools)) == ["malformed"], family


@pytest.mark.parametrize(
    "own_id", ["call00003", "3", "functions.Bash", "Bash", "x y:0", "3:0", ":0"]
)
@pytest.mark.parametrize("family", ["kimi-k2", "kimi-k2.5"])
def test_an_id_of_kimi_that_names_no_tool_is_malformed(family: str, own_id: str) -> None:
    read = parse(
        family,
        f"<|tool_calls_section_begin|><|tool_call_begin|>{own_id}<|tool_call_argument_begin|>"
        '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>',
    )
    assert (calls_of(read), ends_of(read)) == ([], ["malformed"])


@pytest.mark.parametrize("family", ["glm-4.5", "glm-5", "laguna-xs.2"])
@pytest.mark.parametrize(
    "body",
    [
        "Bash\n<arg_value>ls</arg_value>",
        "Bash\ncommand</arg_key><arg_value>ls</arg_value>",
        "Bash\n<arg_key>command<arg_value>ls</arg_value>",
        "Bash command ls",
        "Bash\nls",
        "",
    ],
)
def test_a_call_of_glm_without_its_keys_is_malformed(family: str, body: str) -> None:
    read = parse(family, f"<tool_call>{body}</tool_call>")
    assert (calls_of(read), ends_of(read)) == ([], ["malformed"])


# --- what holds ---


@pytest.mark.parametrize("family", TAGGED)
def test_a_call_that_is_drafted_in_a_thought_is_no_call(family: str) -> None:
    mark = ":opensource" if family == "hy3" else ""
    draft, real = (write(family, ("Bash", {"command": word})) for word in ("rm -rf /", "ls"))
    closed = f"<think{mark}>I could\n{draft}\n</think{mark}>"
    read = parse(family, f"{closed}\n\n{real}")
    assert calls_of(read) == [("Bash", {"command": "ls"})]
    cut = parse(family, f"<think{mark}>I could\n{draft}\nbut it is")
    assert (cut.content, cut.tool_calls) == ("", [])


def test_glm_s_later_thoughts_are_thoughts_and_stray_tags_are_nobody_s() -> None:
    draft, real = (write("glm-5", ("Bash", {"command": word})) for word in ("rm -rf /", "ls"))
    read = parse("glm-5", f"Hm.</think>I look.</think><think>Or {draft}?</think>Yes.{real}")
    assert calls_of(read) == [("Bash", {"command": "ls"})]
    assert (read.reasoning_content, read.content) == ("Hm.Or " + draft + "?", "I look.Yes.")


@pytest.mark.parametrize("family", TAGGED)
def test_a_file_about_calls_is_one_value(family: str) -> None:
    page = "Say:\n" + write(family, ("Bash", {"command": "ls"})) + "\nand wait.\n"
    read = parse(family, write(family, ("Write", {"path": "a.md", "text": page})))
    assert calls_of(read) == [("Write", {"path": "a.md", "text": page})]
    assert ends_of(read) == [""]


@pytest.mark.parametrize(
    ("family", "written"),
    [
        ("qwen3.5", "<tool_call>\n<function=Bash>"),
        ("qwen3.5", "<tool_call>\n<function=Bash>\n<parameter=command>\nx</function>\n"),
        ("qwen3.5", "<tool_call>\n<function=Other>\n<parameter=x>\nv</parameter>\n"),
        ("qwen3.6", "<function="),
        ("qwen3", "<tool_call>["),
        ("qwen3", '<tool_call>{"name": "'),
        ("glm-5", "<tool_call>                "),
        ("glm-5", "<arg_key>command</arg_key><arg_value>"),
        ("gpt-oss", '<|start|>assistant to=functions.Bash<|message|>{"a":'),
        ("deepseek-v3", "<｜tool▁sep｜>"),
        ("gemma4", "<|tool_call>call:Bash{a:["),
    ],
)
def test_what_a_policy_repeats_for_ever_is_read_in_time(family: str, written: str) -> None:
    before = time.process_time()
    parse(family, written * (200_000 // len(written)))
    assert time.process_time() - before < 5  # a quadratic parser takes minutes


def test_of_very_many_malformed_attempts_the_rest_is_one() -> None:
    read = parse("qwen3", "<tool_call>\nno\n</tool_call>\n" * 500)
    assert len(read.tool_calls) == 101
    assert read.tool_calls[-1].status == "too_many"


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "glm-5"])
def test_a_closing_tag_after_other_text_takes_none_of_it(family: str) -> None:
    call = '<tool_call>\n{"name": "Bash", "arguments": {"command": "ls"}}\n</tool_call>'
    if family != "qwen3":
        call = write(family, ("Bash", {"command": "ls"}))
    read = parse(family, call + "\nThen this.\n</tool_call>")
    assert "Then this." in read.content
    assert ends_of(read) == ["", "malformed"]
