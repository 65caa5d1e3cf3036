"""A sketch for the session server of Miles at port 9001, Chat Completions alone; not run.
Read at radixark/miles, miles/rollout/session: sessions.py 040ebef0, core.py 0176e886.
"""

import json
import urllib.request

from join_calls import join_calls

SERVER = "http://127.0.0.1:9001"


def _ask(path, method):
    with urllib.request.urlopen(urllib.request.Request(SERVER + path, method=method)) as answer:
        return json.load(answer)


def open():
    """Open a session, whose address has its id."""
    session = _ask("/sessions", "POST")["session_id"]
    return f"{SERVER}/sessions/{session}", {}, session


def finish(session):
    """Return its recorded calls, joined where one goes on from another."""
    calls = []
    for record in _ask(f"/sessions/{session}", "GET")["records"]:
        rows = record["response"]["choices"][0]["meta_info"]["output_token_logprobs"]
        calls.append((record["request"]["input_ids"], [r[1] for r in rows], [r[0] for r in rows]))
    return join_calls(calls)
