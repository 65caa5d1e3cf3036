"""Show one key, one group or one section for ``agentrl show KEY``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli.invocation import print_json, stdout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conf.key_reference import KeyEntry


def is_key(word: str) -> bool:
    """Return whether an argument of ``show`` is a key, not KEY=VALUE, ``run`` or ``eval``."""
    return "=" not in word and word not in ("run", "eval") and word[:1].isalpha()


def show_key(key: str, overrides: list[str], *, as_json: bool) -> None:
    """Print the entries of a key, or of each key of a section or group; raises ConfigError."""
    from conf.errors import ConfigError
    from conf.key_reference import list_keys
    from conf.keys import groups, unknown_key

    key = key.rstrip(".")
    if key.removesuffix(".kind") in groups():
        key = key.removesuffix(".kind")  # what chooses it is GROUP=CHOICE, not a key
    exact = [entry for entry in list_keys() if entry.key == key]
    inside = [entry for entry in list_keys() if entry.key.startswith(f"{key}.")]
    if not exact and not inside:
        tree: dict[str, Any] = {}
        for entry in list_keys():
            _put(tree, entry.key.split("."))
        raise ConfigError(unknown_key(key, tree))
    values, origins = _compose(overrides)
    found = [_describe(entry, values, origins) for entry in exact or inside]
    if as_json:
        print_json({"keys": found})
        return
    if exact:
        for each in found:
            _print_entry(each)
        return
    if key in groups():
        chosen = values.get(f"{key}.kind")
        more = f"; {chosen} is chosen" if chosen in groups()[key] else ""
        stdout().print(f"{key}= {', '.join(groups()[key])}{more}", soft_wrap=True)
    for each in found:
        where = (
            f"  [{key.partition('.')[0]}={', '.join(each['choices'])}]" if each["choices"] else ""
        )
        stdout().print(f"{each['key']}  {each['type']}  {each['default']}{where}", soft_wrap=True)


def _put(tree: dict[str, Any], parts: list[str]) -> None:
    for part in parts[:-1]:
        inner = tree.setdefault(part, {})
        tree = inner if isinstance(inner, dict) else {}
    tree.setdefault(parts[-1], None)


def _compose(overrides: list[str]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the values and origins of a configuration's keys; nothing if the defaults alone make
    none.
    """
    from conf.compose import compose_with_origins
    from conf.errors import ConfigError
    from conf.keys import flatten

    try:
        config, origins = compose_with_origins(overrides)
    except ConfigError:
        if overrides:
            raise
        return {}, {}
    return dict(flatten(config.model_dump(mode="json"))), origins


def _describe(
    entry: KeyEntry, values: Mapping[str, Any], origins: Mapping[str, str]
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "key": entry.key,
        "choices": list(entry.choices),
        "type": entry.type,
        "values": list(entry.values),
        "default": entry.default,
        "comment": entry.comment,
        "page": f"docs/{entry.page}",
    }
    if entry.key in values:
        document |= {"value": values[entry.key], "origin": origins.get(entry.key, "")}
    return document


def _print_entry(entry: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from conf.type_words import write_value

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bright_black", no_wrap=True)
    table.add_column(overflow="fold")
    group = entry["key"].partition(".")[0]
    none = "none: it must be given" if entry["default"] == "???" else entry["default"]
    rows = [("type", entry["type"]), ("default", none)]
    if "value" in entry:
        rows.append(("value", f"{write_value(entry['value'])}  ({entry['origin']})"))
    if entry["choices"]:
        rows.append(("with", ", ".join(f"{group}={choice}" for choice in entry["choices"])))
    for name, text in (*rows, ("page", entry["page"])):
        table.add_row(name, Text(text))
    stdout().print(Text(entry["key"], style="bold"))
    if entry["comment"]:
        stdout().print(Text(entry["comment"]))
    stdout().print(table)
