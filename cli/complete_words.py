"""Values of a word of a command line: KEY=VALUE, a run directory, a rollout or task of a run.

Keys are read from a table in the cache, so that a TAB imports neither Hydra nor the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from conf.key_table import read_key_table

VARIABLE = "_AGENTRL_COMPLETE"
"""Environment variable by which a shell asks: the line up to the cursor."""
Words = list[tuple[str, str]]
"""Completions, each with a few words of help."""
_RUN_FILES = ("store.sqlite", "config.json")
"""Files by which a run directory is known."""
_LISTED = 100
"""Ids that are offered whole; of more, the parts up to the next ``-`` or ``/``."""
_READ = 100_000
"""Ids of a run that are looked at."""


def complete_override(given: Sequence[str], begun: str) -> Words:
    """Complete a group, section, key or value, knowing the choices made so far."""
    chosen = dict(word.split("=", 1) for word in given if "=" in word)
    key, equals, value = begun.partition("=")
    if equals:
        return [(f"{key}={each}", words) for each, words in _values(key, value, chosen)]
    return list(_keys(key, chosen))


def complete_command(given: Sequence[str], begun: str) -> Words:
    """Complete ``run`` or ``eval BENCHMARK``, which may stand before overrides."""
    if list(given) == ["eval"]:
        return [(name, "") for name in ("bugfix", "swebench") if name.startswith(begun)]
    names = ("run", "eval") if not given else ()
    commands = [(name, "the command that is meant") for name in names if name.startswith(begun)]
    return [*commands, *complete_override(given, begun)]


def complete_key(given: Sequence[str], begun: str) -> Words:
    """Complete a key for `show KEY`, or what `show` takes beside it."""
    found = complete_command(given, begun)
    return [*found, *((w.rstrip("="), text) for w, text in found if w[-1] == "=" and "." in w)]


def complete_run(given: Sequence[str], begun: str) -> Words:
    """Complete a run directory: those in ``runs/`` first, newest first, then any folder."""
    folder = Path(begun) if begun.endswith("/") else Path(begun).parent
    found = _list_folders(folder if begun else Path("runs"))
    return [
        (f"{path}" if _is_run(path) else f"{path}/", "a run" if _is_run(path) else "")
        for path in sorted(found, reverse=True)
        if str(path).startswith(begun.removeprefix("./")) and str(path) not in given
    ]


def complete_rollout(given: Sequence[str], begun: str) -> Words:
    """Complete the id of a rollout of the run that is named before."""
    return _list_ids(given, "rollout_id", begun)


def complete_task(given: Sequence[str], begun: str) -> Words:
    """Complete the id of a task of which the run has rollouts."""
    return _list_ids(given, "task_id", begun)


COMPLETERS: Mapping[str, Callable[[Sequence[str], str], Words]] = {
    "RUN": complete_run,
    "KEY=VALUE": complete_override,
    "[run | eval BENCHMARK] [KEY=VALUE]": complete_command,
    "[KEY | run | eval BENCHMARK] [KEY=VALUE]": complete_key,
    "ROLLOUT": complete_rollout,
    "ID": complete_task,
}
"""By the metavariable of an argument or option; each gets the words before, without options."""


def _list_ids(given: Sequence[str], column: str, begun: str) -> Words:
    """Return the values of a column of a run's rollouts, or the next parts of many."""
    import sqlite3

    try:
        # Without the store's own package, which a TAB would wait for.
        file = (Path(given[0]) / "store.sqlite").absolute().as_uri()
        database = sqlite3.connect(f"{file}?mode=ro", uri=True, timeout=1.0)
        try:
            rows = database.execute(
                f"SELECT DISTINCT {column} FROM rollout WHERE {column} >= ? AND {column} < ? "
                f"ORDER BY {column} LIMIT {_READ}",
                (begun, f"{begun}\U0010ffff"),
            ).fetchall()
        finally:
            database.close()
    except (IndexError, sqlite3.Error):  # no run is named, or it has no such table
        return []
    ids = [row[0] for row in rows]
    if len(ids) > _LISTED:
        ids = list(dict.fromkeys(_cut(each, len(begun)) for each in ids))
    return [(each, "") for each in ids]


def _cut(text: str, start: int) -> str:
    """Return a text up to its next ``-`` or ``/`` behind a place."""
    ends = [end for mark in "-/" if (end := text.find(mark, start)) >= 0]
    return text[: min(ends) + 1] if ends else text


def _keys(begun: str, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the next part of each key that begins so: ``engine=``, ``rollout.limits.``."""
    groups, keys = read_key_table()["groups"], read_key_table()["keys"]
    if "." not in begun:
        yield from ((f"{group}=", "a choice") for group in groups if group.startswith(begun))
    mine = {key: row for key, row in keys.items() if _belongs(key, row[0], chosen)}
    for names in (mine, keys):
        found: dict[str, str] = {}
        for key, row in names.items():
            if key.startswith(begun):
                dot = key.find(".", len(begun))
                found.setdefault(key[: dot + 1] if dot >= 0 else f"{key}=", row[2])
        if found:
            yield from ((k, "" if k.endswith(".") else words) for k, words in found.items())
            return


def _belongs(key: str, choices: list[str], chosen: Mapping[str, str]) -> bool:
    group = key.partition(".")[0]
    return not choices or chosen.get(group, read_key_table()["defaults"].get(group)) in choices


def _values(key: str, begun: str, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the values of a key or the choices of a group; behind a comma the next of a sweep."""
    table = read_key_table()
    before, comma, last = begun.rpartition(",")
    known = table["groups"].get(key) or table["keys"].get(key, [[], []])[1]
    taken = before.split(",") if comma else []
    for value in known:
        if value.startswith(last) and value not in taken:
            yield f"{before}{comma}{value}", ""


def _list_folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in _RUN_FILES)
