"""reach.py HOST PORT URL: does URL lead to PORT of this machine? Exit code 0 if it does."""

import secrets
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

TOKEN = secrets.token_hex(16).encode()
TIMEOUT_S = 15


class Answer(BaseHTTPRequestHandler):
    """Answers every request with the token."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(TOKEN)))
        self.end_headers()
        self.wfile.write(TOKEN)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> int:
    """Listen, fetch, compare."""
    host, port, url = sys.argv[1:]
    try:
        with HTTPServer((host, int(port)), Answer) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=TIMEOUT_S) as reply:
                found = reply.read(len(TOKEN) + 1)
            server.shutdown()
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1
    return 0 if found == TOKEN else 1


if __name__ == "__main__":
    sys.exit(main())
