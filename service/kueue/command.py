"""`planner kueue-controller`: answers admission checks of Kueue; imported when it runs."""

import os
import signal
import threading
from dataclasses import dataclass
from typing import Annotated

import typer

from planner.cli.signatures import records_as_options

app = typer.Typer(
    name="kueue-controller",
    help="Answer admission checks of Kueue with plans.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
TOKEN, AUTHORITY = "PLANNER_TOKEN", "PLANNER_SERVER_CA"


@dataclass(frozen=True, slots=True)
class KueueOptions:
    """Options of `planner kueue-controller`, in the order of its help."""

    planner: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="PLANNER_SERVER",
            show_envvar=False,
            help="Service to ask, with PLANNER_TOKEN, or PLANNER_SERVER; without, plan in here.",
        ),
    ] = ""
    controller_name: Annotated[
        str, typer.Option(metavar="NAME", help="spec.controllerName of its checks.")
    ] = "planner/kueue"
    kubeconfig: Annotated[
        str, typer.Option(metavar="FILE", help="Or KUBECONFIG, the pod's, ~/.kube/config.")
    ] = ""
    context: Annotated[str, typer.Option(metavar="NAME", help="Of the kubeconfig.")] = ""
    api_server: Annotated[
        str, typer.Option(metavar="URL", help="Without credentials: that of kubectl proxy.")
    ] = ""
    time_limit: Annotated[
        float, typer.Option(metavar="S", help="Longest search; it has the best so far.")
    ] = 60.0
    requeue_after: Annotated[
        int, typer.Option(metavar="S", min=1, help="First pause of what is to be tried again.")
    ] = 60
    workers: Annotated[int, typer.Option(min=1, max=64, help="Workloads at the same time.")] = 2
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error.")] = "info"
    log_format: Annotated[str, typer.Option(help="json or text.")] = "json"
    check: Annotated[bool, typer.Option("--check", help="Try what a start needs, and end.")] = (
        False
    )


@app.command(name="kueue-controller")
@records_as_options
def kueue_command(options: KueueOptions) -> None:
    """Answer admission checks of Kueue with plans.

    Workloads whose pods have annotations planner/model and planner/cluster become Ready with the
    layout of the best plan, Rejected where nothing fits, Retry where nobody answered.
    """
    from planner.errors import PlannerError, UsageError
    from service.kueue.api import ApiClient, ApiError
    from service.kueue.connection import find_connection
    from service.kueue.controller import Controller
    from service.kueue.decision import Answers
    from service.kueue.planners import LocalPlanner, Planner, RemotePlanner
    from service.kueue.reconciler import Reconciler, Settings
    from service.telemetry import logs

    if options.log_level not in logs.LEVELS or options.log_format not in ("json", "text"):
        raise UsageError(
            f"--log-level {options.log_level} --log-format {options.log_format}",
            f"one of {', '.join(logs.LEVELS)}; json or text",
        )
    if not 0 < options.time_limit < 1e6:
        raise UsageError(f"--time-limit must be above 0, not {options.time_limit:g}", "60")
    logs.configure(options.log_level, options.log_format)
    stop = threading.Event()
    planner: Planner = LocalPlanner(options.time_limit, stop.is_set)
    if options.planner:
        token, authority = (os.environ.get(x, "").strip() for x in (TOKEN, AUTHORITY))
        planner = RemotePlanner(options.planner, token, authority, options.time_limit)
    connection = find_connection(options.api_server, options.kubeconfig, options.context)
    api = ApiClient(connection, options.controller_name.replace("/", "-"))
    try:
        kinds = api.kueue()
        api.list_all(kinds.checks)
    except ApiError as error:
        raise PlannerError(
            f"{connection.url}: {error.message}",
            "install Kueue, and let this user list admissionchecks: deploy/kueue.yaml",
        ) from None
    typer.echo(
        f"planner answers checks of {options.controller_name} at {connection.url}"
        f" ({kinds.workloads.api_version})",
        err=True,
    )
    if options.check:
        return
    settings = Settings(name=options.controller_name, requeue_after_s=options.requeue_after)
    controller = Controller(
        Reconciler(api, kinds, Answers(planner), settings), n_workers=options.workers
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    controller.start()
    stop.wait()
    controller.stop()
