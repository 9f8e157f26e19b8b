"""What tests know of the servers that `tests/conftest.py` starts, and a proxy that makes an S3 server misbehave."""

from __future__ import annotations

import http.client
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

BUCKET = "books"
KEY = "tester"
SECRET = "a-secret-of-these-tests"

Fault = Literal["503", "truncated", "dropped"]


def free_port() -> int:
    """A port that is free, and so is its neighbour 10,000 above, which SeaweedFS uses too.

    Below those that the system hands out by itself: such a one may be somebody's between the look and the use. Each of
    several workers of pytest looks in a range of its own.
    """
    first = 11_000 + 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 10)
    while True:
        port = random.SystemRandom().randrange(first, first + 1_000)
        with closing(socket.socket()) as one, closing(socket.socket()) as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port


class FaultyS3:
    """Stands between a client and a real server. `fault` says of each request what goes wrong; None: nothing.

    `503` is what AWS says when it is asked too much; `truncated` ends the body of an answer in the middle; `dropped`
    closes the connection without an answer. While it is `closed`, connections are refused.
    """

    def __init__(self, behind: str) -> None:
        self._behind = urlsplit(behind).netloc
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.fault: Callable[[str, str], Fault | None] = lambda method, path: None
        self.before: Callable[[str, str], object] = lambda method, path: None
        """Called with each request, before it goes on."""
        self.seen: Counter[str] = Counter()
        """Requests by method, and faults by name."""
        self._server: ThreadingHTTPServer | None = None
        self.open()

    def open(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def _forward(self) -> None:
                proxy.seen[self.command] += 1
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.before(self.command, self.path)
                fault = proxy.fault(self.command, self.path)
                if fault:
                    proxy.seen[fault] += 1
                if fault == "dropped":
                    self.close_connection = True
                    return
                if fault == "503":
                    answer = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
                    self.send_response(503)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                    return
                upstream = http.client.HTTPConnection(proxy._behind, timeout=60)
                with closing(upstream):
                    headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "expect")}
                    upstream.request(self.command, self.path, body or None, headers)
                    response = upstream.getresponse()
                    answer = response.read()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                        self.send_header(name, value)
                length = response.getheader("Content-Length") or str(len(answer))
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer[: len(answer) // 2] if fault == "truncated" else answer)
                if fault == "truncated":
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
