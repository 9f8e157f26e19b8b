"""What tests know of the servers that `tests/conftest.py` starts."""

from __future__ import annotations

import socket
from contextlib import closing

BUCKET = "books"
KEY = "tester"
SECRET = "a-secret-of-these-tests"


def free_port() -> int:
    """A port whose neighbour 10,000 above, which the server uses too, is a port as well."""
    while True:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            if (port := probe.getsockname()[1]) < 50_000:
                return port
