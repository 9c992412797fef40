"""Messages between the hosts of a sweep: JSON objects, one a line, over TCP that notices dead peers."""

import json
import socket
from collections.abc import Mapping
from typing import Any

# A host that vanishes without closing its connections is given up after about so long.
_PATIENCE_S = 25
_PROBE_S = 5
_CHUNK_BYTES = 1 << 16


class Wire:
    """One end of a connection; `lost` once the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        """connection: an open TCP connection; owned from here on."""
        self._connection = connection
        self._pending = b""
        self.lost = False
        connection.settimeout(_PATIENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PATIENCE_S // _PROBE_S - 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _PATIENCE_S * 1000)

    def fileno(self) -> int:
        """What `select` waits for."""
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; where the other end is gone, note that it is."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.lost = True

    def received(self) -> list[dict[str, Any]]:
        """The messages that have come, none or more; call it when `select` says that there is something."""
        try:
            chunk = self._connection.recv(_CHUNK_BYTES)
        except OSError:
            chunk = b""
        self.lost = self.lost or not chunk
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Let the other end know that nothing more comes."""
        self._connection.close()
