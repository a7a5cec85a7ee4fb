"""The HTTP servers of one process: that of questions, and a small one for probes alone."""

from starlette.responses import PlainTextResponse

from service.access.connection_bounds import ConnectionLimits
from service.http.exchange import Receive, Scope, Send
from service.http.server import HttpServer, bound_server
from service.rest.application import Rest
from service.settings.certificates import Certificates
from service.settings.serving import Serving

PROBES = ConnectionLimits(total=64, per_address=32)
"""Connections of the listener for probes."""
PROBE_PATHS = ("/livez", "/readyz")


def http_server(
    rest: Rest, serving: Serving, certificates: Certificates | None = None
) -> HttpServer:
    """Return the HTTP server of an application; its certificates are read where none are given."""
    limits = ConnectionLimits(serving.limits.connections, serving.limits.connections_per_address)
    tally, known = rest.metrics.tally("rest"), rest.known if rest.tracer is None else None
    return bound_server(rest, limits, tally, certificates or Certificates(serving), known=known)


def probe_server(rest: Rest, serving: Serving, certificates: Certificates) -> HttpServer:
    """Return the server of probes: with few connections, which those of callers never fill."""
    prefix = serving.root_path
    text = "this listener answers " + " and ".join(PROBE_PATHS) + " alone\n"
    not_found = PlainTextResponse(text, 404)

    async def probes(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].removeprefix(prefix) in PROBE_PATHS:
            return await rest(scope, receive, send)
        await not_found(scope, receive, send)

    return bound_server(probes, PROBES, rest.metrics.tally("probes"), certificates)
