"""A real MLflow server on loopback, in a thread of this process, that can be away for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Server:
    """`uri` answers once `start` was called. Of its requests, those numbered in `away` are answered with 503."""

    def __init__(self, folder: Path) -> None:
        from mlflow.server import app
        from mlflow.server.handlers import initialize_backend_stores
        from werkzeug.serving import make_server

        store = f"sqlite:///{folder / 'server.db'}"
        initialize_backend_stores(store, store, str(folder / "artifacts"))
        self.away = range(0)
        self.requests = 0
        self._app: Callable[..., Iterable[bytes]] = app
        self._server = make_server("127.0.0.1", 0, self._answer)  # bound, and deaf until it is started
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.uri = f"http://127.0.0.1:{self._server.port}"

    def _answer(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        self.requests += 1
        if self.requests in self.away:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"away for a while"]
        return self._app(environ, start_response)


@contextmanager
def a_server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    server._thread.start()
    try:
        yield server
    finally:
        server._server.shutdown()
        server._thread.join()
        server._server.server_close()
