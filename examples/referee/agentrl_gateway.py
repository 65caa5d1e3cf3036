"""The adapter of agentrl's own gateway: `agentrl gateway … >gateway.json` has its address."""

import json
import urllib.request
from pathlib import Path

STARTED = json.loads(Path("gateway.json").read_text().splitlines()[0])


def _post(path, body):
    headers = {"authorization": f"Bearer {STARTED['admin_key']}"}
    asked = urllib.request.Request(STARTED["url"] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


def open():
    """Open a session: the base URL, the headers of its program, and what finish needs."""
    session = _post("/admin/sessions", {})
    return STARTED["url"], {"x-api-key": session["api_key"]}, session["session_id"]


def finish(session):
    """Return the session's chains."""
    return [
        {**chain, "mask": chain["loss_mask"], "versions": chain["weight_versions"]}
        for chain in _post(f"/admin/sessions/{session}/finish", {})["segments"]
    ]
