"""The parser of each family of ``model.renderer``.

Each reads what the family's own chat template writes. Where SGLang and vLLM read more than that, it
is a recovery.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from conf.sections.model import CHAT_TEMPLATE
from runners.gateway.calls.gemma import GemmaCalls
from runners.gateway.calls.json_calls import BareJson, FramedJson, TaggedJson
from runners.gateway.calls.markup import TagFormat
from runners.gateway.calls.output_parser import OutputParser, PlainText, TaggedOutput
from runners.gateway.calls.segments import Harmony, Inkling

_NAME = "{0,256}"
"""Length of a name: a tag without an end must not be searched for in all of the text."""

QWEN_TAGS = re.compile(
    rf"""(?P<open><tool_call>)|(?P<close></tool_call>)
    |(?P<call><function=(?P<name>[^>\n]{_NAME})>)|(?P<end></function>)
    |(?P<key><parameter=(?P<argument>[^>\n]{_NAME})>)|(?P<value_end></parameter>)
    |(?P<garbled><\s?[/\\]{{1,2}}\s?param[^<>\n]{{0,16}}>?)""",
    re.VERBOSE,
)
MINIMAX_TAGS = re.compile(
    rf"""(?P<open><minimax:tool_call>)|(?P<close></minimax:tool_call>)
    |(?P<call><invoke\ name="(?P<name>[^"\n]{_NAME})">)|(?P<end></invoke>)
    |(?P<key><parameter\ name="(?P<argument>[^"\n]{_NAME})">)|(?P<value_end></parameter>)
    |(?P<garbled><\s?[/\\]{{1,2}}\s?param[^<>\n]{{0,16}}>?)""",
    re.VERBOSE,
)
DSML_TAGS = re.compile(
    rf"""(?P<open><｜DSML｜tool(?:_?calls)?>)|(?P<close></｜DSML｜tool(?:_?calls)?>)
    |(?P<call><｜DSML｜invoke\ name="(?P<name>[^"\n]{_NAME})">)|(?P<end></｜DSML｜invoke>)
    |(?P<key><｜DSML｜parameter\ name="(?P<argument>[^"\n]{_NAME})"
        (?:\ string="(?P<form>true|false)")?>)
    |(?P<value_end></｜DSML｜parameter>)
    |(?P<garbled><\s?[/\\]{{1,2}}\s?(?:｜DSML｜)?\s?param[^<>\n]{{0,16}}>?)""",
    re.VERBOSE,
)


def _glm_tags(mark: str = "") -> re.Pattern[str]:
    """Return the tags of GLM, of which Hunyuan marks each; it also has one after a call's name."""
    return re.compile(
        rf"""(?P<call><tool_call{mark}>(?P<name>[^<]{_NAME})(?:<tool_sep{mark}>|(?=<)))
        |(?P<open><tool_call{mark}>)|(?P<end></tool_call{mark}>)
        |(?P<key><arg_key{mark}>(?P<argument>[^<]{_NAME})</arg_key{mark}>\s*<arg_value{mark}>)
        |(?P<value_end></arg_value{mark}>)
        |(?P<garbled><\s?[/\\]{{1,2}}\s?arg_?v[^<>\n]{{0,20}}>?)""",
        re.VERBOSE,
    )


_QWEN_XML = TagFormat("<tool_call>", QWEN_TAGS, newlines=True)
_QWEN_PYTHON = TagFormat("<tool_call>", QWEN_TAGS, newlines=True, python=True)
_GLM = TagFormat("<tool_call>", _glm_tags(), bare_name=True)
_HY3 = ":opensource"

_HERMES = TaggedOutput(TaggedJson(), think_newline=True, after_think=2, before_calls=1)
_QWEN35 = TaggedOutput(_QWEN_PYTHON, think_newline=True, after_think=2, before_calls=2)
_QWEN36 = TaggedOutput(_QWEN_XML, think_newline=True, after_think=2, before_calls=2)
_NEMOTRON = TaggedOutput(_QWEN_PYTHON, think_newline=True, after_think=1, before_calls=1)
_GLM5 = TaggedOutput(_GLM, thinks_again=True)
_LAGUNA = TaggedOutput(
    _GLM, think_newline=True, after_think=1, before_calls=1, at_end=1, call_ends_thought=False
)
_LAGUNA21 = TaggedOutput(_GLM, call_ends_thought=False)
_KIMI = TaggedOutput(
    FramedJson(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        re.compile(r"\s*(?P<id>(?:functions\.)?(?P<name>[\w./-][\w./:-]{0,127}):\d{1,6})\s*"),
    ),
    section=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_section_end|>",
    ),
)
_DEEPSEEK = TaggedOutput(
    FramedJson(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        re.compile(r"\s*(?P<name>[\w./:-]{1,128})\s*"),
        fenced=True,
    ),
    think_newline=True,
    after_think=2,
    call_ends_thought=False,
    section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)

PARSERS: Mapping[str, OutputParser] = {
    "qwen3": _HERMES,
    "qwen3-vl": _HERMES,
    "qwen3.5": _QWEN35,
    "prime-qwen3": _QWEN35,
    "qwen3.6": _QWEN36,
    "qwen3.8": _QWEN36,
    "nemotron-3": _NEMOTRON,
    "nemotron-3-ultra": _NEMOTRON,
    "nemotron-3.5": _NEMOTRON,
    "glm-4.5": TaggedOutput(_GLM, after_think=1, before_calls=1, thinks_again=True),
    "glm-5": _GLM5,
    "glm-5.1": _GLM5,
    "glm-5.3": _GLM5,
    "hy3": TaggedOutput(
        TagFormat("<tool_calls:opensource>", _glm_tags(_HY3), bare_name=True),
        think=(f"<think{_HY3}>", f"</think{_HY3}>"),
        call_ends_thought=False,
        section=(f"<tool_calls{_HY3}>", f"</tool_calls{_HY3}>"),
    ),
    "laguna-xs.2": _LAGUNA,
    "laguna-m.1": _LAGUNA,
    "laguna-xs-2.1": _LAGUNA21,
    "laguna-s-2.1": _LAGUNA21,
    "minimax-m2": TaggedOutput(
        TagFormat("<minimax:tool_call>", MINIMAX_TAGS, wraps_several=True),
        think_newline=True,
        after_think=2,
        before_calls=1,
    ),
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": _DEEPSEEK,
    "deepseek-v4": TaggedOutput(
        TagFormat("<｜DSML｜tool_calls>", DSML_TAGS, wraps_several=True),
        before_calls=2,
        thinks_again=True,
        call_ends_thought=False,
    ),
    "kimi-k2": _KIMI,
    "kimi-k2.5": _KIMI,
    "gemma4": TaggedOutput(
        GemmaCalls(), think=("<|channel>thought\n", "<channel|>"), think_newline=True
    ),
    "llama-3": TaggedOutput(BareJson()),
    "gpt-oss": Harmony(),
    "inkling": Inkling(),
    CHAT_TEMPLATE: PlainText(),
}
"""By family."""

OWN_IDS = frozenset({"kimi-k2", "kimi-k2.5"})
"""Families whose template repeats the policy's own ids of calls."""

ORDERED_RESULTS = frozenset({"deepseek-v4", "glm-5.3"})
"""Families whose template writes results without ids, in the order of their calls."""
