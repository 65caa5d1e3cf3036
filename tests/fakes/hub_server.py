"""A Hugging Face hub on loopback: datasets, file lists, and files behind a redirect to a second
host, as the hub serves large files.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

SHA = "c0ffee" + "0" * 34
_INFO = re.compile(r"/api/datasets/([^/]+/[^/]+)(?:/revision/(.+))?")
_TREE = re.compile(r"/api/datasets/([^/]+/[^/]+)/tree/(.+)")
_FILE = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Hub:
    """Datasets of the hub, and the requests it received."""

    datasets: Mapping[str, Mapping[str, bytes]]
    """Files of each dataset, at one commit, which is also called ``main`` and ``v1``."""
    gated: frozenset[str] = frozenset()
    """Datasets that everybody may list and nobody may read."""
    requests: list[str] = field(default_factory=list)
    url: str = ""
    storage_url: str = ""


def _oid(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._reply()

    def do_GET(self) -> None:
        self._reply()

    def _reply(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.hub.requests.append(f"{self.command} {path}")
        if path.startswith("/stored/"):
            self._reply_stored(path.removeprefix("/stored/"))
        elif match := _FILE.fullmatch(path):
            self._reply_file(*match.groups())
        elif (match := _TREE.fullmatch(path)) and self._check_known(match[1], match[2]):
            self._reply_json(
                200, [self._entry(*item) for item in self.hub.datasets[match[1]].items()]
            )
        elif (match := _INFO.fullmatch(path)) and self._check_known(match[1], match[2] or "main"):
            gated = "manual" if match[1] in self.hub.gated else False
            files = [{"rfilename": name} for name in self.hub.datasets[match[1]]]
            document = {"id": match[1], "sha": SHA, "siblings": files, "gated": gated}
            self._reply_json(200, {**document, "private": False, "disabled": False, "tags": []})

    def _check_known(self, repo: str, revision: str) -> bool:
        if repo not in self.hub.datasets:
            self._reply_json(
                404, {"error": "Repository not found"}, ("X-Error-Code", "RepoNotFound")
            )
        elif revision not in ("main", "v1", SHA):
            error = {"error": f"Invalid rev id: {revision}"}
            self._reply_json(404, error, ("X-Error-Code", "RevisionNotFound"))
        else:
            return True
        return False

    @staticmethod
    def _entry(path: str, body: bytes) -> dict[str, object]:
        lfs = {"oid": _oid(body), "size": len(body), "pointerSize": 132}
        return {"type": "file", "oid": _oid(body)[:40], "size": len(body), "path": path, "lfs": lfs}

    def _reply_file(self, repo: str, revision: str, path: str) -> None:
        if not self._check_known(repo, revision):
            return
        if repo in self.hub.gated:
            error = {"error": f"Access to dataset {repo} is restricted."}
            self._reply_json(403, error, ("X-Error-Code", "GatedRepo"))
            return
        body = self.hub.datasets[repo][path]
        self._send_head(
            302,
            ("Location", f"{self.hub.storage_url}/{_oid(body)}"),
            ("X-Repo-Commit", SHA),
            ("X-Linked-ETag", f'"{_oid(body)}"'),
            ("X-Linked-Size", str(len(body))),
            ("Content-Length", "0"),
        )

    def _reply_stored(self, oid: str) -> None:
        every = (body for files in self.hub.datasets.values() for body in files.values())
        body = next(body for body in every if _oid(body) == oid)
        self._send_head(200, ("Content-Length", str(len(body))), ("ETag", f'"{oid}"'))
        if self.command == "GET":
            self.wfile.write(body)

    def _reply_json(self, status: int, document: object, *headers: tuple[str, str]) -> None:
        body = json.dumps(document).encode()
        kind = ("Content-Type", "application/json")
        self._send_head(status, kind, ("Content-Length", str(len(body))), *headers)
        if self.command == "GET":
            self.wfile.write(body)

    def _send_head(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def serve_hub(hub: Hub) -> Iterator[Hub]:
    """Serve a hub on a free port; ``storage_url`` is another host to a client."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        hub.storage_url = f"http://localhost:{server.server_address[1]}/stored"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
