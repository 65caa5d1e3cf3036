"""The form of a rule between keys of the configuration."""

from __future__ import annotations

Rule = tuple[bool, str]
"""True if the rule is broken; the message for that case, which names the keys and the fix."""
