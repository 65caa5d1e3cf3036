"""Load plug-ins: import the target, check its options and its signature, make it.

A class makes a plug-in of its options: a pydantic model of its fields, any other class (a dataclass
too) of the parameters of its constructor. A function is a plug-in itself; its keyword-only
parameters are its options.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from conf.errors import ConfigError, error_text
from conf.sections.plugin import PluginConfig
from conf.suggestions import suggest
from conf.targets import find_version, is_file, split_target
from runners.system.plugins.calls import find_place
from runners.system.plugins.contract_check import find_contract_faults

_KINDS = inspect.Parameter
_shared: dict[tuple[str, str], Any] = {}
"""Plug-ins of this process, by configuration and key."""
_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
_OPEN = ConfigDict(extra="allow", arbitrary_types_allowed=True)
"""Of a plug-in that takes ``**options``."""


class PluginError(ConfigError):
    """A plug-in cannot be used as it is configured."""


def load_plugin(plugin: PluginConfig, contract: type[Any], key: str) -> Any:
    """Return the plug-in of a key (``reward``, ``trainer.advantage``), ready to be called.

    ``contract``: the Protocol that it has to keep. Runs the plug-in's own module. Raises
    PluginError, which names the key, the fault and the fix.
    """
    _check_version(plugin, key)
    target = _import_target(plugin.target, key)
    made = _make(target, plugin, key)
    if faults := find_contract_faults(made, contract):
        raise PluginError(
            [f"{key}.target={plugin.target} is no {contract.__name__}: {fault}" for fault in faults]
        )
    return made


def load_shared(plugin: PluginConfig, contract: type[Any], key: str) -> Any:
    """Return the plug-in as ``load_plugin`` does, the same one for every call in this process."""
    name = (plugin.model_dump_json(), key)
    if name not in _shared:
        _shared[name] = load_plugin(plugin, contract, key)
    return _shared[name]


def _check_version(plugin: PluginConfig, key: str) -> None:
    """Refuse code that is not the one that the configuration was made with."""
    found = find_version(plugin.target)
    if plugin.version is not None and found is not None and plugin.version != found:
        raise PluginError(
            f"{key}.target={plugin.target} has changed: {key}.version is {plugin.version}, and the "
            f"code here is {found}. Put the former one back, start a new run, or go on with other "
            f"code than before by '{key}.version=\"{found}\"'"
        )


def _import_target(target: str, key: str) -> Any:
    if importlib.util.find_spec("agentrl") is None:  # agentrl runs from its source
        sys.path.append(str(Path(__file__).parents[2] / "api"))
    place, name = split_target(target)
    with contextlib.redirect_stdout(sys.stderr):  # a command's own output may be read by a program
        module = _import_file(Path(place), key) if is_file(place) else _import_module(place, key)
    try:
        return getattr(module, name)
    except AttributeError:
        own = [
            each
            for each, value in vars(module).items()
            if not each.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        hint = suggest(name, own, "did you mean {}? ")
        has = f"it has {', '.join(own[:20])}" if own else "it defines nothing"
        raise PluginError(f"{key}.target={target}: {place} has no {name}: {hint}({has})") from None


def _import_module(module: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise _failed_import(module, key, error) from error
        raise PluginError(
            f"{key}.target={module}: there is no module {error.name} here: install its package "
            "into agentrl's environment (pip install …), or name a file, FILE.py:Name"
        ) from error
    except (Exception, SystemExit) as error:
        raise _failed_import(module, key, error) from error


def _import_file(file: Path, key: str) -> ModuleType:
    """Import a file once; another with the same name, or other content, is another module."""
    try:
        content = file.read_bytes()
    except OSError as error:
        reason = error.strerror or error_text(error)
        raise PluginError(f"{key}.target={file} cannot be read: {reason}") from error
    digest = hashlib.sha256(str(file).encode() + b"\0" + content).hexdigest()[:16]
    name = f"agentrl_plugin_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look for it there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed_import(str(file), key, error) from error
    return module


def _failed_import(place: str, key: str, error: BaseException) -> PluginError:
    return PluginError(
        f"{key}.target={place} cannot be imported: {type(error).__name__}: {error_text(error)}"
        f"{find_place(error)}"
    )


def _make(target: Any, plugin: PluginConfig, key: str) -> Any:
    if not callable(target):
        raise PluginError(
            f"{key}.target={plugin.target} is neither a class nor a function, but of type "
            f"{type(target).__name__}"
        )
    text = json.dumps(plugin.options)
    try:
        if isinstance(target, type) and issubclass(target, BaseModel):
            _refuse_unknown(target, target.model_fields, plugin, key)
            return target.model_validate_json(text, strict=True)
        model = _options_of(target)
        names = {str(field.alias): name for name, field in model.model_fields.items()}
        if model.model_config["extra"] == "forbid":
            _refuse_unknown(target, names, plugin, key)
        found = model.model_validate_json(text, strict=True)
        options = {alias: getattr(found, name) for alias, name in names.items()}
        options |= found.model_extra or {}
        return (
            target(**options) if isinstance(target, type) else functools.partial(target, **options)
        )
    except ValidationError as error:
        raise PluginError(_explain(error, key)) from error
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed_import(plugin.target, key, error) from error


def _options_of(target: Callable[..., Any]) -> type[BaseModel]:
    """Return a model of the options of a class or function, by its signature."""
    function = vars(target).get("__init__", target) if isinstance(target, type) else target
    try:
        hints = get_type_hints(function)
    except Exception:  # a name that is imported for type checkers only
        hints = {}
    fields: dict[str, Any] = {}
    config = _STRICT
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is _KINDS.VAR_KEYWORD:
            config = _OPEN
        if parameter.kind not in (_KINDS.KEYWORD_ONLY, _KINDS.POSITIONAL_OR_KEYWORD):
            continue
        if not isinstance(target, type) and parameter.kind is not _KINDS.KEYWORD_ONLY:
            continue  # an argument of each call
        default = ... if parameter.default is _KINDS.empty else parameter.default
        # By alias: a model's own fields cannot be named json, copy or _x, and an option can.
        field = Field(default, alias=name)
        fields[f"option_{len(fields)}"] = (hints.get(name, _type_of(default)), field)
    return create_model(getattr(target, "__name__", "Options"), __config__=config, **fields)


def _type_of(default: object) -> Any:
    """Return the type of an option that names none, by its default."""
    return type(default) if isinstance(default, bool | str | float) else Any


def _refuse_unknown(target: Any, known: Iterable[str], plugin: PluginConfig, key: str) -> None:
    """Raise PluginError for options that the plug-in does not have."""
    has = f"it has {', '.join(known)}" if known else "it has none"
    if not isinstance(target, type) and not known:
        has += "; options of a function stand after a `*`: def f(result, *, weight=1.0)"
    faults = [
        f"{key}.options.{name} is no option of {plugin.target}"
        + suggest(name, known, ": did you mean {}?")
        + f" ({has})"
        for name in plugin.options
        if name not in known
    ]
    if faults:
        raise PluginError(faults)


def _explain(error: ValidationError, key: str) -> list[str]:
    """Return one fault per option."""
    faults = []
    for each in error.errors(include_url=False):
        place = ".".join([f"{key}.options", *map(str, each["loc"])])
        if each["type"] == "missing":
            faults.append(f"{place} has no value: add {place}=…")
        else:
            message = each["msg"][:1].lower() + each["msg"][1:]
            faults.append(f"{place}={each['input']}: {message}")
    return faults
