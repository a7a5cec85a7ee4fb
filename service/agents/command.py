"""`planner mcp`: the tools over stdin and stdout, or over HTTP; imported when it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.signatures import records_as_options

app = typer.Typer(
    name="mcp",
    help="Answer agents over the Model Context Protocol.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True, slots=True)
class McpOptions:
    """Options of `planner mcp`, in the order of its help."""

    transport: Annotated[
        str, typer.Option(help="stdio, which a client starts; or http, streamable.")
    ] = "stdio"
    host: Annotated[str, typer.Option(help="http: address to listen at.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="http: port; 0 for any.")] = 8645
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="http: NAME ROLE TOKEN a line, as of planner serve."),
    ] = None
    tenants: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="http: groups, OIDC, as of serve.")
    ] = None
    audit_log: Annotated[
        str, typer.Option(metavar="FILE", help="http: who asked what, as of planner serve.")
    ] = ""
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="http: certificate.")] = (
        None
    )
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="http: its key.")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="http: callers need one of it.")
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="http: no tokens though others can reach it.")
    ] = False
    time_limit: Annotated[
        float, typer.Option(metavar="S", help="Longest search of a call; it has the best so far.")
    ] = 60.0


OF_HTTP = (
    "token_file",
    "tenants",
    "audit_log",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "insecure",
)
"""Options that are fields of `Serving`, of no use over stdio."""


@contextmanager
def _installed() -> Iterator[None]:
    """Raise one clear error for packages of the extra [mcp] that are not there."""
    from planner.errors import UsageError

    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] in ("service", "planner", "searches"):
            raise
        raise UsageError(
            f"planner mcp needs the package {missing}", "pip install 'parallelism-planner[mcp]'"
        ) from None


@app.command(name="mcp")
@records_as_options
def mcp_command(options: McpOptions) -> None:
    """Answer agents over the Model Context Protocol.

    Over stdio a client starts it; over http it listens at /mcp.
    """
    from planner.errors import UsageError

    if options.transport not in ("stdio", "http"):
        raise UsageError(f"--transport {options.transport}", "stdio or http")
    if options.time_limit <= 0:
        raise UsageError(f"--time-limit must be above 0, not {options.time_limit:g}", "60")
    of_http = {name: getattr(options, name) for name in OF_HTTP}
    if options.transport == "stdio" and any(of_http.values()):
        raise UsageError(
            "tokens, groups, TLS and the audit log are for callers over the network",
            "--transport http",
        )
    with _installed():
        from service.agents.transports import serve_http, serve_stdio
        from service.settings.serving import Serving
    if options.transport == "stdio":
        serve_stdio(options.time_limit)
    else:
        serve_http(Serving(host=options.host, port=options.port, **of_http), options.time_limit)
