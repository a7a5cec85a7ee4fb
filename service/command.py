"""`planner serve` and `planner ui`: their options; what they start is imported when they run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.signatures import records_as_options

app = typer.Typer(
    name="serve",
    help="Answer questions over HTTP and gRPC, and work on jobs.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


ui_app = typer.Typer(
    name="ui",
    help="Open the page in a browser.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@contextmanager
def _installed() -> Iterator[None]:
    """Raise one clear error for packages of the extra [service] that are not there."""
    from planner.errors import UsageError

    missing = "" if find_spec("jinja2") else "jinja2"
    try:
        if not missing:
            yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] in ("service", "planner", "searches"):
            raise
    if missing:
        raise UsageError(
            f"the service needs the package {missing}",
            "pip install 'parallelism-planner[service]'",
        )


@ui_app.command(name="ui")
def ui(
    address: Annotated[
        str, typer.Argument(metavar="[ADDRESS]", help="Of a service, such as https://HOST/PATH.")
    ] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where a service on this machine listens.")
    ] = 8642,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of its SQLite file.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or only say where.")
    ] = True,
) -> None:
    """Open the page in a browser.

    Of a service that runs, or of one that is started here.
    """
    with _installed():
        from service.process.ui import ui_main
        from service.settings.serving import Serving
        from service.telemetry import logs
    logs.configure("warning", "text")
    ui_main(address, Serving(port=port, grpc_port=0, probe_port=0, data=data), browser)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `planner serve`, in the order of its help."""

    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP; 0 for any.")] = 8642
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="gRPC; 0 for none.")] = 8643
    probe_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="/livez and /readyz alone; 8644 if free, 0 for none."),
    ] = None
    database: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="PLANNER_DATABASE",
            show_envvar=False,
            help="postgresql://USER@HOST/NAME or sqlite:///FILE; or PLANNER_DATABASE.",
        ),
    ] = ""
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the SQLite file.")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="NAME ROLE TOKEN [until=DAY] a line.")
    ] = None
    tenants: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="Groups, quotas, OIDC: docs/tenants.md."),
    ] = None
    audit_log: Annotated[
        str, typer.Option(metavar="FILE", help="Who asked what, as JSON lines; - for stdout.")
    ] = ""
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate.")] = None
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None
    tls_client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Callers need a certificate of it.")
    ] = None
    workers: Annotated[
        int, typer.Option(min=0, max=1024, help="Processes for questions; 0: one a core.")
    ] = 0
    job_workers: Annotated[
        int, typer.Option(min=-1, max=1024, help="Processes for jobs; -1: half the cores.")
    ] = -1
    page_workers: Annotated[
        int, typer.Option(min=0, max=1024, help="More for pages alone: no sweep delays them.")
    ] = 1
    executor: Annotated[str, typer.Option(help="serial or ray, for the searches of jobs.")] = (
        "serial"
    )
    ray_address: Annotated[str, typer.Option(metavar="ADDRESS", help="Ray cluster.")] = ""
    webhook_host: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="Webhooks may lead to it; *.HOST for all below."),
    ] = None
    webhook_network: Annotated[
        list[str] | None,
        typer.Option(metavar="NETWORK", help="Private addresses that they may lead to."),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No tokens though others can reach it.")
    ] = False
    root_path: Annotated[
        str, typer.Option(metavar="/PATH", help="Prefix of all paths, behind a proxy.")
    ] = ""
    share_port: Annotated[
        bool, typer.Option("--share-port", help="Let other processes listen at the ports too.")
    ] = False
    limits: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="Limits by name: docs/service.md.")
    ] = None
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error.")] = "info"
    log_format: Annotated[str, typer.Option(help="json or text.")] = "json"
    check: Annotated[bool, typer.Option("--check", help="Try what a start needs, and end.")] = (
        False
    )


@app.command(name="serve")
@records_as_options
def serve_command(options: ServeOptions) -> None:
    """Answer questions over HTTP and gRPC, and work on jobs."""
    from planner.errors import UsageError

    with _installed():
        from service.handlers.limits import RequestLimits
        from service.pages.gate import is_root_path
        from service.process.serve import serve_main
        from service.settings.limits_file import read_limits
        from service.settings.options import Options
        from service.settings.serving import Serving
        from service.telemetry import logs
        from service.webhooks.addresses import destinations_of
    if options.log_level not in logs.LEVELS or options.log_format not in ("json", "text"):
        raise UsageError(
            f"--log-level {options.log_level} --log-format {options.log_format}",
            f"one of {', '.join(logs.LEVELS)}; json or text",
        )
    if options.executor not in ("serial", "ray"):
        raise UsageError(f"--executor {options.executor}", "serial or ray")
    if options.executor == "ray" and find_spec("ray") is None:
        raise UsageError(
            "--executor ray needs the package ray, which is not installed",
            "pip install 'parallelism-planner[service,ray]'",
        )
    if not is_root_path(options.root_path):
        raise UsageError(
            f"--root-path {options.root_path}", "such as /planner: no slash at its end"
        )
    logs.configure(options.log_level, options.log_format)
    setup = Options(
        executor=options.executor,  # type: ignore[arg-type]  # looked at above
        ray_address=options.ray_address,
        page_workers=options.page_workers,
        webhook_hosts=tuple(options.webhook_host or ()),
        webhook_networks=tuple(options.webhook_network or ()),
    )
    destinations_of(setup.webhook_hosts, setup.webhook_networks)
    if options.workers:
        setup = replace(setup, workers=options.workers)
    if options.job_workers >= 0:
        setup = replace(setup, job_workers=options.job_workers)
    limits = RequestLimits()
    if options.limits is not None:
        limits, setup = read_limits(options.limits, limits, setup)
    names = {x.name for x in fields(Serving)} - {"limits", "options"}
    values = {name: getattr(options, name) for name in names}
    serve_main(Serving(**values, limits=limits, options=setup), options.check)
