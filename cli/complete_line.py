"""Complete a command line: which of its words is asked for, and which values that word may have.

A TAB is answered from tables in the cache: it imports no command and no library, since a shell
waits for it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cli.complete_words import COMPLETERS, Words
from conf.cached_table import read_table

_PLAIN = re.compile(r"[\w./:=@%+,~-]+")
"""Words that every shell takes as they are. Others are not offered: bash would put a task's id
``$(…)`` into the line, to be run by the next Enter.
"""
_CHOICES = re.compile(r"\[(\S+)\](,…)?")
"""Metavariable that lists its values, several of them behind commas if ``,…`` follows."""


def print_completions(line: str) -> None:
    """Print what may stand at the end of a line: a word and its help, with a tab between them."""
    text = "".join(
        f"{word}\t{words}\n" for word, words in complete_line(line) if _PLAIN.fullmatch(word)
    )
    sys.stdout.buffer.write(os.fsencode(text))
    sys.stdout.buffer.flush()


@cache
def read_commands() -> dict[str, Any]:
    """Return the commands, their options and arguments, as ``write_commands`` describes them."""
    top = Path(__file__).parents[1]
    return read_table("commands", [top / "cli", top / "runners"], _render)


def _render() -> str:
    from cli.write_commands import render_table

    return render_table()


def complete_line(line: str) -> Words:
    """Return the words that may stand at the end of a line, each with its help."""
    command: Mapping[str, Any] = read_commands()
    _, *before, begun = ["", *_split(line)]
    given: list[str] = []
    value_of: str | None = None
    """Option whose value comes next."""
    words_only = False
    """Options have ended, at ``--``."""
    for word in before[1:]:
        if value_of is not None:
            value_of = None
        elif word == "--" and not words_only:
            if command["takes_program"]:
                return []  # the rest is the program's
            words_only = True
        elif word.startswith("-") and not words_only:
            name, equals, _ = word.partition("=")
            if not equals and command["options"].get(name, [None])[0] is not None:
                value_of = name
        elif not given and word in command["commands"]:
            command = command["commands"][word]
        else:
            given.append(word)
    if value_of is not None:
        return _complete_value(command["options"][value_of][0], given, begun)
    if begun.startswith("-") and not words_only:
        return _complete_option(command["options"], given, begun)
    if command["commands"]:
        commands = command["commands"].items()
        return [(name, row["help"]) for name, row in commands if name.startswith(begun)]
    arguments = command["arguments"]
    if len(given) < len(arguments):
        return _complete_value(arguments[len(given)], given, begun)
    return _complete_value(arguments[-1], given, begun) if command["repeats"] else []


def _complete_option(
    options: Mapping[str, tuple[str | None, str]], given: list[str], begun: str
) -> Words:
    """Complete an option, or behind its ``=`` its value."""
    name, equals, value = begun.partition("=")
    if not equals:
        return [(each, words) for each, (_, words) in options.items() if each.startswith(begun)]
    metavar = options.get(name, (None, ""))[0]
    if metavar is None:
        return []
    return [(f"{name}={each}", words) for each, words in _complete_value(metavar, given, value)]


def _complete_value(metavar: str, given: list[str], begun: str) -> Words:
    """Complete a value; nothing for a path or a number, which shells and people know better."""
    if (listed := _CHOICES.fullmatch(metavar)) is None:
        complete = COMPLETERS.get(metavar)
        return [] if complete is None else complete(given, begun)
    before, comma, last = begun.rpartition(",") if listed[2] else ("", "", begun)
    taken = before.split(",")
    return [
        (f"{before}{comma}{each}", "")
        for each in listed[1].split("|")
        if each.startswith(last) and each not in taken
    ]


def _split(line: str) -> list[str]:
    """Return the words of a line, the last one as far as it has been typed."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # a quotation that is still open
        return [*words, lexer.token]
    return [*words, ""] if not line or line[-1].isspace() else words
