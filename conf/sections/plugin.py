"""Plug-ins: code of the user's own behind a seam, by its target."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    model_validator,
)

from conf.sections.section import Section
from conf.targets import FORM, complete_target, find_target, find_version

BY_NAME, BY_TARGET = "by_name", "by_target"


class PluginConfig(Section):
    """Code of the user's own: a class whose fields are its options, or a function whose
    keyword-only parameters are.
    """

    target: Annotated[str, AfterValidator(complete_target)]
    """``package.module:Name`` or ``FILE.py:Name``; the stored path of a file is absolute."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of its options; the plug-in itself says which there are."""
    version: str | None = None
    """Version of its package and a digest of its file, found when the configuration is made. A run
    is resumed with this version only.
    """

    def __hash__(self) -> int:
        """Hash of all values; options are a mapping, which has none of its own."""
        return hash(self.model_dump_json())

    @model_validator(mode="before")
    @classmethod
    def _find_version(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("version") is not None:
            return given
        return {**given, "version": find_version(str(given.get("target")))}


SELECT = Discriminator(lambda given: BY_NAME if isinstance(given, str) else BY_TARGET)
"""Chooses between a name and ``ByTarget``."""


def by_name(seam: str, *names: str) -> BeforeValidator:
    """Return the validator of a key that takes one of ``names``, the name of an installed plug-in,
    a target, or ``{target: …, options: {…}}``.

    ``seam``: see ``targets.plugin_names``. Its type is
    ``Annotated[Annotated[Name, Tag(BY_NAME)] | ByTarget, SELECT, by_name(…)]``.
    """

    def read(given: object) -> object:
        if not isinstance(given, str | dict | Section):
            words = "".join(f"{name}, " for name in names)
            raise ValueError(f"must be {words}{FORM}, or {{target: …, options: {{…}}}}")
        if isinstance(given, str) and given not in names:
            return {"target": find_target(given, seam, names)}
        target = given.get("target") if isinstance(given, dict) else None
        if isinstance(target, str) and ":" not in target:
            return {**given, "target": find_target(target, seam)}  # type: ignore[dict-item]
        return given

    return BeforeValidator(read)


ByTarget = Annotated[PluginConfig, Tag(BY_TARGET)]
"""The plug-in of a key that also takes names."""
