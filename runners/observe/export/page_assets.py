"""The pages of a run as text: its rollouts, served by ``agentrl view`` or one file of their own;
and its report, or runs side by side, drawn from a document.

All are drawn by the same scripts (``page/``); only what gets the data differs. The policy of a page
lets no other script run: a file names the hash of its own.
"""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from runners.records.text import dumps

FOLDER = Path(__file__).with_name("page")
STYLE = "page.css"
_REPORT = ("chart", "lanes", "report", "routing")
_ROLLOUTS = ("list", "overview", "conversation", "tokens", "patch", "tests", "timeline", "rollout")
_BROWSING = ("dom", "address", "{}", *_REPORT, *_ROLLOUTS, "compare", "main")
_DOCUMENT = ("dom", *_REPORT, "runs", "document")


def script_names(source: str) -> list[str]:
    """Return the files of the scripts that show rollouts, in order; ``source``: the one that gets
    the data.
    """
    return [f"{name.format(source)}.js" for name in _BROWSING]


def read_asset(name: str) -> str:
    """Return a file of the page."""
    return (FOLDER / name).read_text("utf-8")


def build_served_page(run: str) -> str:
    """Return the page that loads its style, its scripts and its data from a server."""
    scripts = [f'<script src="{name}"></script>' for name in script_names("source_server")]
    return _fill(
        f"{run} · agentrl",
        policy="",
        style=f'<link rel="stylesheet" href="{STYLE}">',
        body=_fill_name(run),
        blocks="",
        scripts="\n".join(scripts),
        rollouts="",
    )


def split_single_page(run: str) -> tuple[str, str, str]:
    """Return a file's text before its rows, between rows and rollouts, and after the rollouts."""
    parts = _inline(script_names("source_file"))
    page = _fill(f"{run} · agentrl", **parts, body=_fill_name(run))
    head, _, rest = page.partition("{{blocks}}")
    middle, _, tail = rest.partition("{{rollouts}}")
    return head, middle, tail


def build_document_page(title: str, document: Mapping[str, Any]) -> str:
    """Return the file that draws one document."""
    return _fill(
        title,
        **_inline([f"{name}.js" for name in _DOCUMENT]),
        body=read_asset("document.html"),
        rollouts="",
        blocks=make_block("document", dumps(document), 'id="document"'),
    )


def make_block(kind: str, text: str, more: str = "") -> str:
    """Return a block of JSON without any ``<``, so that no ``</script>`` in it ends the block."""
    text = text.replace("<", "\\u003c")
    opening = " ".join(filter(None, (f'class="{kind}"', more)))
    return f'<script type="application/json" {opening}>{text}</script>\n'


def _inline(scripts: Sequence[str]) -> dict[str, str]:
    """Return the parts of a file that loads nothing: its style, its scripts, and their policy."""
    script, style = "\n" + "\n".join(map(read_asset, scripts)), "\n" + read_asset(STYLE)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return {
        "policy": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "style": f"<style>{style}</style>",
        "scripts": f"<script>{script}</script>",
    }


def _fill_name(run: str) -> str:
    return read_asset("list.html").replace("{{run}}", _escape(run))


def _fill(title: str, **parts: str) -> str:
    """Return the template with its parts; the texts of others last, so that none has a part."""
    page = read_asset("page.html")
    order = ("policy", "style", "scripts", "rollouts", "body")
    for name in [name for name in order if name in parts]:
        page = page.replace(f"{{{{{name}}}}}", parts[name])
    page = page.replace("{{title}}", _escape(title))
    return page.replace("{{blocks}}", parts["blocks"]) if "blocks" in parts else page


def _escape(text: str) -> str:
    return html.escape(text).replace("{{", "{&#123;")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
