"""Turn overrides into a checked ``Config``, or report every fault at once.

Hydra composes the YAML files, pydantic validates the result. Values from any source (the command
line, a stored configuration) become overrides first, so that there is only this one path.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from conf import grammar
from conf.annotated_yaml import annotate
from conf.dependent_keys import find_dependent
from conf.error_messages import explain_errors, format_value, missing_value
from conf.errors import ConfigError
from conf.fault_plan import load_fault_plan
from conf.implied_defaults import OTHER_SECTIONS, imply_choices, layer_values
from conf.keys import (
    CONF_DIR,
    choice_content,
    config_dir,
    default_choices,
    flatten,
    groups,
    lookup,
    root_content,
    to_dict,
    unknown_choice,
    unknown_key,
)
from conf.origins import find_yaml_origins, overridden_keys
from conf.plugin_options import is_option, name_targets, open_option
from conf.program_versions import name_versions, refuse_version
from conf.resolvers import register_resolvers
from conf.schema import Config
from conf.schema_defaults import MISSING, fill
from conf.stored_config import to_overrides


def compose(overrides: list[str], *, base: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration of the YAML files, changed by ``overrides`` (no sweeps).

    ``base`` is a configuration as ``to_json`` writes it: its values replace those of the YAML
    files, and ``overrides`` replace both (see ``layers`` for the whole precedence). Raises
    ConfigError with all faults.

    Example: ``compose(["scenario=mixed", "run.steps=20"])``.
    """
    return compose_with_origins(overrides, base=base)[0]


def compose_with_origins(
    overrides: list[str], *, base: Mapping[str, Any] | None = None
) -> tuple[Config, dict[str, str]]:
    """Return the configuration, and the origin of every value by its key; see ``compose``.

    An origin is ``default``, ``GROUP=CHOICE``, ``--config`` or ``command line``.
    """
    given, faults = grammar.parse(name_targets(name_versions(overrides)))
    stored: list[Override] = []
    if base is not None:
        replaced = {o.key_or_group for o in given}
        stored, stored_faults = grammar.parse(to_overrides(base, replaced, faults))
        faults += stored_faults
    explicit = [
        o for o in stored + given if o.key_or_group in groups() and _check_choice(o, faults)
    ]
    chosen = {o.key_or_group: str(o.value()) for o in explicit}
    implied = imply_choices(default_choices(), chosen)
    choices = {**default_choices(), **{g: c for g, (c, _) in implied.items()}, **chosen}
    defaults = _load_defaults(choices)
    layers = layer_values(choices)
    values = [
        o
        for o in stored + given
        if o.key_or_group not in groups() and _check_key(o, defaults, faults)
    ]
    composed = _compose_with_hydra(choices, [open_option(o, defaults) for o in values], faults)
    set_by_user = set(overridden_keys(values))
    tree, unresolved = _resolve(composed, {key for key, _ in flatten(defaults)})
    faults += filter(None, unresolved.values())
    by_default = dict(flatten(defaults)) | {key: value for key, value, _ in layers}
    tree["faults"] = load_fault_plan(tree["faults"], faults)
    followers = [*flatten(defaults), *((key, value) for key, value, _ in layers)]
    following = {key for key, value in followers if "${" in str(value)} - set_by_user
    config, invalid = _validate(tree, defaults, following, ignore=set(unresolved))
    changed = set(overridden_keys(given))
    invalid += find_dependent(tree, by_default, set_by_user, changed, known=faults + invalid)
    if config is None or faults or invalid:
        raise ConfigError(list(dict.fromkeys(faults + invalid)))
    origins = find_yaml_origins(choices) | {key: origin for key, _, origin in layers}
    origins |= {f"{group}.kind": origin for group, (_, origin) in implied.items()}
    for sources, origin in ((stored, "--config"), (given, "command line")):
        origins |= dict.fromkeys(overridden_keys(sources), origin)
    for key, _ in flatten(config.model_dump()):  # parts of data, which the schema completes
        origins.setdefault(key, origins.get(f"{key.partition('.')[0]}.kind", "default"))
    return config, origins


def to_json(config: Config) -> str:
    """Return the configuration as JSON that ``from_json`` and ``--config`` accept."""
    return config.model_dump_json(indent=2) + "\n"


def to_yaml(config: Config, origins: Mapping[str, str] | None = None) -> str:
    """Return the configuration as YAML, for reading; ``origins`` become comments beside values."""
    text = OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json")))
    return text if origins is None else annotate(text, origins)


def from_json(text: str, *, source: str, overrides: list[str] | None = None) -> Config:
    """Return the configuration in the JSON ``text``, changed by ``overrides``.

    ``source`` names the text in error messages. Raises ConfigError.
    """
    try:
        base = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError([f"{source} is not JSON ({error})"]) from error
    if not isinstance(base, dict):
        raise ConfigError([f"{source} must hold one JSON object, as `agentrl show --json` prints"])
    return compose(overrides or [], base=base)


def changed_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a resolved configuration whose values are not the defaults.

    A key whose default is another key's value is not among them as long as it has that value.
    """
    defaults, values = dict(flatten(compose([]).model_dump(mode="json"))), dict(flatten(content))
    followed = _follow_layers(content)
    return {
        key: value
        for key, value in values.items()
        if defaults.get(key, ...) != value
        and followed.get(key, ...) != value
        and all(values.get(other, ...) != value for other in _followed(key))
    }


def _follow_layers(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keys have that follow from others by the arithmetic of the default layers."""
    register_resolvers()
    layers = {key: value for key, value, _ in layer_values(default_choices()) if "${" in str(value)}
    tree = OmegaConf.create({**content, "layers": list(layers.values())})
    try:
        return dict(zip(layers, tree.layers, strict=True))
    except OmegaConfBaseException:  # the configuration of another version lacks a key
        return {}


def _followed(key: str) -> Iterator[str]:
    """Yield the keys whose value a key has by default, in the choices of its group."""
    group, _, rest = key.partition(".")
    for choice in groups().get(group, ()):
        default = dict(flatten(choice_content(group, choice))).get(rest)
        if found := re.fullmatch(r"\$\{([\w.]+)\}", str(default)):
            yield found[1]


def _load_defaults(choices: Mapping[str, str]) -> dict[str, Any]:
    """Return all keys with their defaults in these choices."""
    chosen = {group: choice_content(group, choice) for group, choice in choices.items()}
    return chosen | root_content()


def _compose_with_hydra(
    choices: Mapping[str, str], values: list[Override], faults: list[str]
) -> DictConfig:
    """Compose with Hydra; if it refuses, add its reason to ``faults`` and compose the defaults.

    The defaults let the later checks run, so that the user sees all faults at once.
    """
    register_resolvers()
    # Reading the files takes most of the time; those of a user may change meanwhile.
    composed = _composed if config_dir() is None else _composed.__wrapped__
    try:
        tree: DictConfig = pickle.loads(composed(tuple(choices.items())))
        ConfigLoaderImpl._apply_overrides_to_config(values, tree)  # as hydra.compose does
    except (HydraException, OmegaConfBaseException) as error:
        faults.append(" ".join(str(error).split()))
        return cast("DictConfig", pickle.loads(_composed(tuple(default_choices().items()))))
    return tree


@lru_cache(maxsize=512)
def _composed(choices: tuple[tuple[str, str], ...]) -> bytes:
    """Return the tree of these choices, with what they bring for other sections.

    In pickle's form, which is copied four times as fast as the tree itself. Raises Hydra's errors.
    """
    chosen = dict(choices)
    plain = deepcopy(_load_defaults(chosen)) if config_dir() is None else _read_with_hydra(chosen)
    for key, value, _ in layer_values(chosen):
        section, _, name = key.rpartition(".")
        if lookup(plain, key)[0]:  # another choice may be there, which has no such key
            lookup(plain, section)[1][name] = value
    tree = OmegaConf.create(plain)
    OmegaConf.set_struct(tree, True)  # as Hydra returns it: an override of an unknown key fails
    return pickle.dumps(tree)


def _read_with_hydra(choices: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of choices of which some are the user's: their files may have lists of
    defaults, which Hydra reads. The built-in ones have none, and Hydra needs 0.3 s to see it.
    """
    users = grammar.as_text(f"file://{config_dir()}")
    lines = [f"hydra.searchpath=[{users}]", *(f"{group}={name}" for group, name in choices.items())]
    with initialize_config_dir(config_dir=str(CONF_DIR), version_base="1.3"):
        files = to_dict(hydra_compose("config", overrides=lines))
    for group in groups():
        files[group].pop(OTHER_SECTIONS, None)
    chosen = {group: fill(group, files[group]) for group in groups()}
    return deepcopy(chosen | root_content())


def _check_choice(override: Override, faults: list[str]) -> bool:
    group, line = override.key_or_group, override.input_line
    if override.is_delete():
        faults.append(f"{line}: a run cannot do without {group}; drop this override")
    elif override.type is not OverrideType.CHANGE or override.package is not None:
        faults.append(f"{line}: {group} is a group with one choice; write {group}=CHOICE")
    elif override.is_sweep_override():
        faults.append(_sweep_fault(override))
    elif isinstance(override.value(), dict):
        faults.append(
            f"{line}: {group} is a group; choose with {group}=CHOICE, set {group}.KEY=VALUE"
        )
    elif override.value() not in groups()[group]:
        faults.append(
            refuse_version(str(line)) or unknown_choice(group, format_value(override.value()))
        )
    else:
        return True
    return False


def _check_key(override: Override, tree: dict[str, Any], faults: list[str]) -> bool:
    """Check what Hydra would stop at; what it accepts (``+new=1``) is left to pydantic."""
    key, line = override.key_or_group, override.input_line
    known, node = lookup(tree, key)
    before = len(faults)
    if override.is_sweep_override():
        faults.append(_sweep_fault(override))
    elif override.package is not None or "/" in key or key.partition(".")[0] == "hydra":
        faults.append(
            f"{line}: agentrl's groups are {', '.join(groups())}; write GROUP=CHOICE or KEY=VALUE"
        )
    elif override.is_add() and known:
        faults.append(f"{line}: {key} exists already; drop the +")
    elif is_option(key, tree):
        return True
    elif not known and not override.is_add() and not override.is_force_add():
        faults.append(unknown_key(key, tree))
    elif override.is_delete():
        faults.append(missing_value(key))
    elif key.partition(".")[0] in groups() and key.endswith(".kind") and key.count(".") == 1:
        group = key.removesuffix(".kind")
        faults.append(f"{line}: the choice of a group is made with {group}={override.value()}")
    elif isinstance(node, Mapping):
        faults += _check_section(override, node, tree)
    return len(faults) == before


def _check_section(
    override: Override, section: Mapping[str, Any], tree: dict[str, Any]
) -> list[str]:
    """Check the keys of ``section={…}``, which Hydra merges into the section."""
    key, value = override.key_or_group, override.value()
    if not isinstance(value, dict):
        return [
            f"{override.input_line}: {key} is a section; set its keys, "
            f"e.g. {key}.{next(iter(section))}=…"
        ]
    names = [f"{key}.{name}" for name, _ in flatten(value)]
    return [unknown_key(name, tree) for name in names if not lookup(tree, name)[0]]


def _sweep_fault(override: Override) -> str:
    return (
        f"{override.input_line} is a sweep, which only `agentrl run` takes: give one value, or "
        f"quote it if it is one, '{override.key_or_group}=\"…\"' in the shell"
    )


def _resolve(tree: DictConfig, known: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the plain tree, and by key the faults of missing values and failed interpolations.

    A key that follows one of the ``known`` keys, which has been taken out, has the fault "": that
    of the other says all.
    """
    plain = to_dict(tree)
    faults: dict[str, str] = {}
    _resolve_section(tree, plain, "", known, faults)
    return plain, faults


def _resolve_section(
    tree: Any, plain: dict[str, Any], section: str, known: set[str], faults: dict[str, str]
) -> None:
    """Replace what is to be resolved in the plain form of a section; a faulty value by None.

    Only that is read from the tree: OmegaConf takes most of the time of a composition.
    """
    for name, value in plain.items():
        key = f"{section}{name}"
        if isinstance(value, dict) and value:
            _resolve_section(tree[name], value, f"{key}.", known, faults)
        elif value == MISSING or "${" in str(value):
            try:
                found = tree[name]
                is_tree = OmegaConf.is_config(found)
                plain[name] = OmegaConf.to_container(found, resolve=True) if is_tree else found
            except MissingMandatoryValue:
                plain[name], faults[key] = None, missing_value(key)
            except OmegaConfBaseException as error:
                followed = known.intersection(re.findall(r"\$\{([\w.]+)\}", str(value)))
                reason = "" if followed else f"{key}: {str(error).splitlines()[0]}"
                plain[name], faults[key] = None, reason


def _validate(
    tree: dict[str, Any], defaults: dict[str, Any], following: set[str], *, ignore: set[str]
) -> tuple[Config | None, list[str]]:
    """Validate with pydantic; report broken rules between keys even if single keys are faulty.

    pydantic runs the rules only if every key is valid, so a second pass sets the faulty keys to
    their defaults. The tree is passed as JSON because pydantic's strict mode then takes text for a
    path and a list for a tuple, which it refuses from Python objects. ``following`` keys take their
    value from another key, whose fault says all.
    """
    try:
        return Config.model_validate_json(json.dumps(tree), strict=True), []
    except ValidationError as error:
        by_key, between = explain_errors(error, tree)
    named = {key: fault for key, fault in by_key.items() if key not in following} or by_key
    faults = [fault for key, fault in named.items() if key not in ignore] + between
    if by_key:
        repaired = OmegaConf.create(tree)
        for key in by_key:
            _reset_key(repaired, key.partition("[")[0], defaults)
        try:
            plain = OmegaConf.to_container(repaired, resolve=True)
            Config.model_validate_json(json.dumps(plain), strict=True)
        except ValidationError as error:
            between = explain_errors(error, tree)[1]
            faults += [fault for fault in between if not any(key in fault for key in by_key)]
    return None, faults


def _reset_key(tree: DictConfig, key: str, defaults: dict[str, Any]) -> None:
    section, _, name = key.rpartition(".")
    known, value = lookup(defaults, key)
    if known and value != "???":
        OmegaConf.update(tree, key, value, merge=False)
    elif isinstance(parent := OmegaConf.select(tree, section) if section else tree, DictConfig):
        parent.pop(name, None)
