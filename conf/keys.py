"""Which keys and choices exist, and what somebody who mistyped one probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).parent


@cache
def groups() -> dict[str, tuple[str, ...]]:
    """Return each group's choices: the YAML files in its folder."""
    folders = sorted(path for path in CONF.iterdir() if path.is_dir())
    choices = {
        folder.name: tuple(sorted(f.stem for f in folder.glob("*.yaml"))) for folder in folders
    }
    return {group: names for group, names in choices.items() if names}


@cache
def choice_content(group: str, choice: str) -> dict[str, Any]:
    """Return what a choice's YAML file holds."""
    return plain(cast("DictConfig", OmegaConf.load(CONF / group / f"{choice}.yaml")))


def root_content() -> dict[str, Any]:
    """Return what ``config.yaml`` holds, its list of default choices included."""
    return plain(cast("DictConfig", OmegaConf.load(CONF / "config.yaml")))


def plain(tree: DictConfig, *, resolve: bool = False) -> dict[str, Any]:
    """Return ``tree`` as a dict; with ``resolve``, interpolations are replaced and missing values
    refused.
    """
    content = OmegaConf.to_container(tree, resolve=resolve, throw_on_missing=resolve)
    return cast("dict[str, Any]", content)


def dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of ``tree`` with its dotted key."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def lookup(tree: Any, key: str) -> tuple[bool, Any]:
    """Return whether ``key`` (dotted) is in ``tree``, and what it holds."""
    node = tree
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return False, None
        node = node[name]
    return True, node


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` probably means: a typo, or a key without its section."""
    known = list(known)
    same_leaf = [key for key in known if "." in key and key.rpartition(".")[2] == word]
    if len(same_leaf) == 1:
        return same_leaf[0]
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    if near:
        return near[0]
    # "trainr.lr": judge the last part within the section that the first part means.
    section, _, leaf = word.rpartition(".")
    sections = {key.rpartition(".")[0] for key in known if "." in key}
    for candidate in difflib.get_close_matches(section, sections, n=1, cutoff=0.6):
        names = [k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == candidate]
        for name in difflib.get_close_matches(leaf, names, n=1, cutoff=0.6):
            return f"{candidate}.{name}"
    return None


def unknown_key(key: str, tree: Mapping[str, Any]) -> str:
    """Return the fault for a key that is not in ``tree``."""
    group, _, rest = key.partition(".")
    owners = [
        c for c in groups().get(group, ()) if rest and lookup(choice_content(group, c), rest)[0]
    ]
    if owners:
        chosen = lookup(tree, f"{group}.kind")[1]
        return (
            f"{key} belongs to {group}={owners[0]}, but {group}={chosen} is chosen: "
            f"add {group}={owners[0]}"
        )
    section = key.rpartition(".")[0]
    known, siblings = lookup(tree, section)
    leaves = [leaf for leaf, _ in dotted(tree)]
    meant = closest(key, leaves if section else [*leaves, *tree])
    if meant:
        mend = f"did you mean {meant}?"
    elif known and isinstance(siblings, Mapping):
        mend = f"{section} has {', '.join(siblings)}"
    else:
        mend = "`agentrl show` lists every key"
    return f"{key} is no key: {mend}"


def unknown_choice(group: str, choice: object) -> str:
    """Return the fault for a choice that a group does not have."""
    choices = groups()[group]
    if len(choices) == 1:
        return f"{group}={choice} is no choice: the only one is {choices[0]}"
    meant = closest(str(choice), choices)
    mend = f"did you mean {group}={meant}? " if meant else ""
    return f"{group}={choice} is no choice: {mend}(choices: {', '.join(choices)})"
