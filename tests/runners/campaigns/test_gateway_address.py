"""A run whose public URL reaches another server than its gateway."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from runners.system.processes.ports import free_port
from tests.runners.campaigns.conftest import Miniature

pytestmark = pytest.mark.integration


def test_a_public_url_that_leads_elsewhere_ends_the_run_at_its_start(miniature: Miniature) -> None:
    elsewhere = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{elsewhere.server_port}"
    own = [f"gateway.public_url={url}", f"gateway.port={free_port('127.0.0.1')}"]
    try:
        document = miniature.finish(miniature.begin(*own), code=4)
    finally:
        elsewhere.shutdown()
        elsewhere.server_close()
    assert f"gateway.public_url={url} reaches something else" in document["message"]
    with miniature.store() as store:
        assert store.rollouts() == []
