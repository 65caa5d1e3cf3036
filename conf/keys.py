"""The keys and choices that exist in the YAML files, and the faults of unknown ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from conf.suggestions import abbreviates, closest_match, suggest
from conf.targets import FORM, plugin_names

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF_DIR = Path(__file__).parent
RETIRED: dict[str, Any] = {
    "reward.partial": False,
    "trainer.estimator": "grpo",
    "trainer.importance_cap": 2.0,
}
"""Keys of older versions, each with the value at which it did nothing. A stored configuration may
have it at that value; at another, and on a command line, it is unknown.
"""

_CONSTANTS = (
    *(f"gateway.limits.{name}" for name in (
        *("body_mb", "json_depth", "json_values", "bytes_per_token", "requests", "requests_mb"),
        *("connections", "turns", "threads", "history_pieces", "history_mb"),
        *("client_s", "text_s", "text_mb"),
    )),
    *("gateway.ping_s", "engine.host", "engine.start_s", "engine.max_running_requests"),
    *("harness.command_s", "rollout.capture.patch_files", "rollout.deadlines.drain_s"),
    "trainer.logits_chunk",
)  # fmt: skip
REPLACED = {
    **dict.fromkeys(_CONSTANTS, "it is a constant now; leave it out"),
    "model.cache_dir": "the starting policy comes with agentrl and is not cached; leave it out",
    "model.warmup_steps": "the starting policy comes with agentrl; leave it out, or set "
    "model.path to a policy of your own",
}
"""Other keys of older versions, each with what replaces it. A stored configuration may have them
at any value; on a command line they are refused.
"""

SEAMS = {"reward": "rewards", "harness": "harnesses", "sandbox": "sandboxes"}
"""Groups with a choice ``custom``, and the entry points (``agentrl.NAME``) that are choices too."""

_users_own: list[Path] = []


def config_dir() -> Path | None:
    """Return the user's own folder of choices in this process, None if there is none."""
    return _users_own[0] if _users_own else None


def set_config_dir(directory: Path | None) -> None:
    """Take choices from a folder too, from now on; ``config_dir.py`` checks it before."""
    _users_own[:] = [] if directory is None else [directory]
    for cached in (groups, choice_file, choice_content):
        cached.cache_clear()


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """Return each group's choices: the YAML files in its folder, and those of the user."""
    folders = sorted(path for path in CONF_DIR.iterdir() if path.is_dir())
    choices = {
        folder.name: tuple(sorted({f.stem for f in folder.glob("*.yaml")} | _users(folder.name)))
        for folder in folders
    }
    return {group: names for group, names in choices.items() if names}


def _users(group: str) -> set[str]:
    directory = config_dir()
    return {file.stem for file in (directory / group).glob("*.yaml")} if directory else set()


@cache
def choice_file(group: str, choice: str) -> dict[str, Any]:
    """Return the content of a choice's YAML file."""
    file = CONF_DIR / group / f"{choice}.yaml"
    if not file.exists() and (directory := config_dir()) is not None:
        file = directory / group / f"{choice}.yaml"
    return _load(file)


def choice_of_kind(group: str, kind: object) -> str | None:
    """Return the choice of a group that has a kind, a built-in one first; None if none has it."""
    names = sorted(groups()[group], key=lambda name: (name != kind, name in _users(group), name))
    return next((name for name in names if choice_content(group, name)["kind"] == kind), None)


@cache
def choice_content(group: str, choice: str) -> dict[str, Any]:
    """Return the keys of a choice: the schema's defaults and, over them, those of its file, without
    its defaults for other sections (see ``implied_defaults``).
    """
    from conf.schema_defaults import fill

    content = choice_file(group, choice)
    return fill(group, {key: value for key, value in content.items() if key != "other_sections"})


def default_choices() -> dict[str, str]:
    """Return each group's default choice."""
    chosen: dict[str, str] = {}
    for entry in _root_file()["defaults"]:
        if isinstance(entry, dict):
            chosen |= entry
    return chosen


@cache
def _root_file() -> dict[str, Any]:
    return _load(CONF_DIR / "config.yaml")


@cache
def root_content() -> dict[str, Any]:
    """Return the keys that are in no group, with their defaults."""
    from conf.schema import Config
    from conf.schema_defaults import fill, read_default

    given = _root_file()
    return {
        name: fill(name, given.get(name, {}))
        if field.is_required()
        else given.get(name, read_default(field))
        for name, field in Config.model_fields.items()
        if name not in groups()
    }


def _load(file: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf  # not for a TAB, which knows the keys from a table

    return to_dict(cast("DictConfig", OmegaConf.load(file)))


def to_dict(tree: DictConfig, *, resolve: bool = False) -> dict[str, Any]:
    """Return ``tree`` as a dict; with ``resolve``, interpolations are replaced and missing values
    refused.
    """
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(tree, resolve=resolve, throw_on_missing=resolve)
    return cast("dict[str, Any]", content)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of ``tree`` with its dotted key."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def lookup(tree: Any, key: str) -> tuple[bool, Any]:
    """Return whether the dotted ``key`` is in ``tree``, and its value."""
    node = tree
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False, None
        node = node[name]
    return True, node


def _closest_key(word: str, known: Iterable[str]) -> str | None:
    """Return the dotted key that ``word`` probably means: a key without its section, an
    abbreviation, or a typo.
    """
    known = list(known)
    section, _, leaf = word.rpartition(".")
    # Within a section that is there names are compared without it: all its keys begin alike.
    own = {key: key.removeprefix(f"{section}.") for key in known if key.startswith(f"{section}.")}
    names = own or {key: key for key in known}
    last = {key: key.rpartition(".")[2] for key in known}
    found = (
        [key for key in names if last[key] == leaf]
        or [key for key in names if abbreviates(leaf, last[key])]
        or [key for key in known if last[key] == leaf]
    )
    if len(found) == 1:
        return found[0]
    match = closest_match(leaf if own else word, names.values(), cutoff=0.6 if own else 0.7)
    if match:
        return f"{section}.{match}" if own else match
    # "trainr.lr": compare the last part within the section that the first part means.
    meant = closest_match(section, {key.rpartition(".")[0] for key in known if "." in key})
    return _closest_key(f"{meant}.{leaf}", known) if meant and meant != section else None


def _closest_part(key: str, tree: Mapping[str, Any]) -> str | None:
    """Return the key that a mistyped section in the middle of ``key`` stands for, of
    ``reward.optons.weight`` ``reward.options``; None if all sections are known, or not the first.
    """
    parts = key.split(".")
    for number in range(1, len(parts) - 1):
        known, beside = lookup(tree, ".".join(parts[:number]))
        if not known or not isinstance(beside, Mapping):
            return None
        if parts[number] not in beside:
            match = closest_match(parts[number], beside)
            return f"{'.'.join(parts[:number])}.{match}" if match else None
    return None


def unknown_key(key: str, tree: Mapping[str, Any]) -> str:
    """Return the fault of a key that is not in ``tree``."""
    if key in REPLACED:
        return f"{key} is not a key any more: {REPLACED[key]}"
    group, _, rest = key.partition(".")
    options = "options" if rest.startswith("options.") else rest  # those of a plug-in are its own
    owners = [
        c for c in groups().get(group, ()) if rest and lookup(choice_content(group, c), options)[0]
    ]
    if owners:
        chosen = lookup(tree, f"{group}.kind")[1]
        add = f"add {group}={owners[0]}" if len(owners) == 1 else "choose one of them"
        by_default = chosen == default_choices().get(group)  # then the key says what is meant
        return (
            f"{key} belongs to {group}={' or '.join(owners)}, but {group}={chosen} is chosen: "
            + (add if by_default else f"leave it out, or {add}")
        )
    section = key.rpartition(".")[0]
    known, siblings = lookup(tree, section)
    leaves = [leaf for leaf, _ in flatten(tree)]
    match = _closest_part(key, tree) or _closest_key(key, leaves if section else [*leaves, *tree])
    likely = [match] if match else []
    if isinstance(lookup(tree, f"{section}.target")[1], str):  # a plug-in, which has options
        likely.append(f"{section}.options.{key.rpartition('.')[2]}")
    if likely:
        hint = f"did you mean {' or '.join(likely)}?"
    elif known and isinstance(siblings, Mapping):
        hint = f"{section} has {', '.join(siblings)}"
    else:
        hint = "`agentrl show` lists every key"
    return f"{key} is not a key: {hint}"


def unknown_choice(group: str, choice: object) -> str:
    """Return the fault of a choice that a group does not have."""
    choices = [*groups()[group], *sorted(plugin_names(SEAMS.get(group, group)))]
    hint = suggest(str(choice), choices, f": did you mean {group}={{}}?")
    own = f"; your own: {FORM}" if group in SEAMS else ""
    if own and str(choice).endswith(".py"):
        hint = f": add the name of its class or function, {group}={choice}:Name"
    return f"{group}={choice} is not a choice{hint} (choices: {', '.join(choices)}{own})"
