"""Arithmetic for interpolations in the YAML files: a default that follows from another key.

``${fraction:${model.max_context_tokens},5,6}`` is five sixths of the window, rounded down;
``share`` does not round.
"""

from __future__ import annotations

from typing import TypeGuard

from omegaconf import OmegaConf


def register_resolvers() -> None:
    """Make the functions of this module available in YAML files; may be called again."""
    OmegaConf.register_new_resolver("fraction", fraction, replace=True)
    OmegaConf.register_new_resolver("share", share, replace=True)
    OmegaConf.register_new_resolver("least", least, replace=True)
    OmegaConf.register_new_resolver("greatest", greatest, replace=True)


def fraction(value: object, numerator: int, denominator: int) -> object:
    """Return ``value · numerator / denominator``, rounded down; what is no whole number, as it is.

    A faulty value is passed on so that the fault of its own key is the only one.
    """
    return value * numerator // denominator if _is_whole(value) else value


def share(value: object, numerator: int, denominator: int) -> float:
    """Return ``value · numerator / denominator`` to 12 digits, as one would write it; 0 of what is
    no number, which is a fault of its own key.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(f"{value * numerator / denominator:.12g}")


def least(*values: object) -> object:
    """Return the least of the values; one that is no whole number, as it is."""
    return min(_whole_numbers(values), default=values[0])


def greatest(*values: object) -> object:
    """Return the greatest of the values; one that is no number, as it is."""
    return max(_whole_numbers(values), default=values[0])


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_numbers(values: tuple[object, ...]) -> list[int]:
    return [value for value in values if _is_whole(value)]
