"""The socket that a server listens at, bound before anything else begins."""

import socket

from planner.errors import UsageError
from service.settings.serving import Serving


def listening(serving: Serving, port: int | None = None, option: str = "--port") -> socket.socket:
    """Return a socket bound to the address; `UsageError` where it cannot be.

    `port` is another one than that of HTTP, which is given by `option`.
    """
    result = None
    port = serving.port if port is None else port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            serving.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        result = socket.socket(family, kind, protocol)
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if serving.share_port:
            result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        result.bind(address)
    except OSError as error:
        if result is not None:
            result.close()
        raise UsageError(
            f"{serving.host} port {port}: {error.strerror or error}",
            f"another {option}, or the --host of a card of this machine",
        ) from None
    return result
