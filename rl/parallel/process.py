"""The process of one rank: builds an object, and calls the methods that rank 0 names.

`rl.parallel.processes` starts it. After an exception the process ends, so that other ranks do not wait for it in a
collective call.

Tested in tests/rl/parallel/test_processes.py.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from multiprocessing.connection import Connection


def main(descriptor: int) -> int:
    connection = Connection(descriptor)
    try:
        build, rank, size = connection.recv()
        target = build(rank, size)
        while True:
            method, arguments = connection.recv()
            connection.send((True, getattr(target, method)(*arguments)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # rank 0 has closed the connection or has died
    except BaseException as error:
        traceback.print_exc()
        connection.send((False, _sendable(error)))
        return 1


def _sendable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of a collective call that failed may never end
