"""The page that shows rollouts, as text: served by ``agentrl view``, or one file of its own.

Both are the same scripts (``page/``); only the one that gets the data differs. The page's policy
lets no other script run: a file names the hash of its own.
"""

from __future__ import annotations

import html
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).with_name("page")
STYLE = "page.css"
_DRAWING = (
    "list",
    "overview",
    "conversation",
    "tokens",
    "patch",
    "tests",
    "timeline",
    "rollout",
    "compare",
)
_SCRIPTS = ("dom", "address", "{}", *_DRAWING, "main")


def script_names(source: str) -> list[str]:
    """Return the files of the page's scripts in order; ``source``: the one that gets the data."""
    return [f"{name.format(source)}.js" for name in _SCRIPTS]


def read_asset(name: str) -> str:
    """Return a file of the page."""
    return (FOLDER / name).read_text("utf-8")


def build_served_page(run: str) -> str:
    """Return the page that loads its style, its scripts and its data from a server."""
    scripts = [f'<script src="{name}"></script>' for name in script_names("source_server")]
    style = f'<link rel="stylesheet" href="{STYLE}">'
    return _fill(run, policy="", style=style, scripts="\n".join(scripts), rows="", rollouts="")


def split_single_page(run: str) -> tuple[str, str, str]:
    """Return a file's text before its rows, between rows and rollouts, and after the rollouts."""
    script = "\n" + "\n".join(map(read_asset, script_names("source_file")))
    style = "\n" + read_asset(STYLE)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _fill(
        run,
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        style=f"<style>{style}</style>",
        scripts=f"<script>{script}</script>",
    )
    head, _, rest = page.partition("{{rows}}")
    middle, _, tail = rest.partition("{{rollouts}}")
    return head, middle, tail


def _fill(run: str, **parts: str) -> str:
    """Return the template with its parts; the run's name last, so that nothing in it is a part."""
    page = read_asset("page.html")
    for name, text in parts.items():
        page = page.replace(f"{{{{{name}}}}}", text)
    page = page.replace("{{title}}", "{{run}} · agentrl")
    shown = html.escape(run).replace("{{", "{&#123;")
    return page.replace("{{run}}", shown)


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
