"""Which port can an engine be told to listen on? A free one of this machine, outside the range that connections take theirs from."""

import contextlib
import errno
import os
import secrets
import socket

# Below Linux' ephemeral ports (32768 on), where any connection of anybody may take the number meanwhile.
FIRST, LAST = 20_000, 32_000
TRIES_MAX = 200


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now. Somebody may a moment later: then the engine fails to start.

    Raises OSError.
    """
    for _ in range(TRIES_MAX):
        port = FIRST + secrets.randbelow(LAST - FIRST)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"127.0.0.1:{FIRST}-{LAST}")
