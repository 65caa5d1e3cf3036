"""The HTTP API of a Docker engine without images and containers, for programs that only list."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API_VERSION = "1.45"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix(f"/v{API_VERSION}")
        empty: dict[str, object] = {"/images/json": [], "/containers/json": []}
        if path == "/version":
            self._answer(200, {"ApiVersion": API_VERSION, "MinAPIVersion": "1.24"})
        elif path in empty:
            self._answer(200, empty[path])
        else:
            self._answer(404, {"message": f"there is no {path}"})

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def docker_engine() -> Iterator[str]:
    """Serve on a free port; yield the ``DOCKER_HOST``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
