"""A small real MCP server over stdio, which runs inside a sandbox: one tool, ``lookup``.

It is started as ``python3 mcp_server.py WORD [DELAY_S]``; the tool's answer is the word and, of its
environment, the variables whose names begin with MCP_TEST. It sleeps before its first answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOL = {
    "name": "lookup",
    "description": "Look a word up in the glossary.",
    "inputSchema": {"type": "object", "properties": {"word": {"type": "string"}}},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request."""
    if method == "initialize":
        info = {"name": "glossary", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        own = {key: value for key, value in os.environ.items() if key.startswith("MCP_TEST")}
        text = json.dumps([sys.argv[1], params.get("arguments"), own])
        return {"content": [{"type": "text", "text": text}]}
    return {}


def main() -> None:
    """Answer requests, one per line, until stdin closes."""
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            result = answer(request["method"], request.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
