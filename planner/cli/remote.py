"""`planner --server URL COMMAND ...`: the commands that a service answers, answered by one.

One entry of `SERVED` a command, found by `planner.cli.plugins.Commands` before the command runs:
it makes the request out of the same options, and prints the answer as the command would. Files are
read and written here; the service only computes. An option of no use there is refused by name.
"""

import copy
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import typer

from planner.cli.arguments import check_format, overrides_of, positive, size
from planner.cli.command_arguments import (
    EvaluateArguments,
    ReplanArguments,
    ScaleArguments,
    SearchArguments,
    SolveArguments,
    SweepArguments,
)
from planner.cli.progress import SIZES, TerminalProgress
from planner.client import (
    PRIORITY,
    TOKEN,
    Client,
    Data,
    FileText,
    ServiceError,
    document,
    plan_of,
    run_of,
)
from planner.errors import FileError, UsageError

Made = TypeVar("Made")
Params = Mapping[str, Any]
"""Options and arguments of a command, by the names of its parameters."""


@dataclass(frozen=True, slots=True)
class Served:
    """How a service answers a command."""

    run: Callable[[Client, Params], int]
    """Asks, prints, and returns the exit code."""
    local: Mapping[str, str] = field(default_factory=dict)
    """Parameters that make sense on this machine alone, and what to do in their place."""


def over_server(command: Any, name: str, server: Params, required: bool) -> Any:
    """Return a command as the service of the root options `server` answers it.

    Where none does, it stays as it is, or is refused if `required`. `name` is how it is called:
    `catalog list`.
    """
    served = SERVED.get(name)
    if served is None:
        if not required:
            return command
        names = ", ".join(SERVED)
        raise UsageError(
            f"planner {name} works on this machine and asks no service",
            f"leave out --server; a service answers {names}",
        )

    def invoke(ctx: Any) -> None:
        _check_options(served, ctx)
        with client_of(server) as service:
            try:
                code = served.run(service, ctx.params)
            except ServiceError as error:
                raise error.in_options() from None
            raise typer.Exit(code)

    result = copy.copy(command)
    result.invoke = invoke
    return result


def _check_options(served: Served, ctx: Any) -> None:
    """Raise `UsageError` for an option on the command line that no service has a use for."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name)
        if parameter.name in served.local and getattr(source, "name", "") == "COMMANDLINE":
            option = parameter.opts[0]
            raise UsageError(
                f"{option} works on this machine, not with --server",
                served.local[parameter.name],
            )


def client_of(server: Params) -> Client:
    """Return a client for the root options: the address, a token, certificates."""
    pair = server.get("server_cert") or "", server.get("server_key") or ""
    if bool(pair[0]) != bool(pair[1]):
        raise UsageError("a certificate goes with its key", "--server-cert FILE --server-key FILE")
    return Client(
        str(server["server"]),
        token=_token(server.get("token_file") or ""),
        ca=server.get("server_ca") or "",
        cert=pair if pair[0] else None,
        priority=os.environ.get(PRIORITY, ""),
    )


def _token(path: str) -> str:
    """Return the token of a file, or of the environment; empty without both."""
    if not path:
        return os.environ.get(TOKEN, "").strip()
    try:
        tokens = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise FileError(f"--token-file {path}: {reason}", "a file that holds the token") from None
    if len(tokens) != 1:
        fix = "the token alone; the service's own file has other columns"
        raise FileError(f"--token-file {path} holds {len(tokens)} words", fix)
    return tokens[0]


# ---- requests out of options


def _searched(params: Params, arguments: SearchArguments) -> Data:
    """Return a request of a call that searches: both files, and what its options say."""
    request = arguments.request()
    return (
        _without_empty(
            model=document(params["model"], "model"),
            cluster=document(params["cluster"], "cluster"),
            calibration=_calibration(params),
            **_reference(params),
        )
        | request.to_json()
    )


def _sets(params: Params) -> Data:
    return dict(overrides_of(list(params["set_"] or ())))


def _calibration(params: Params) -> Any:
    from planner.client import calibration_text

    return calibration_text(params["calibration"]) if params["calibration"] else None


def _reference(params: Params) -> Data:
    from planner.client import reference_of

    return reference_of(params["reference"]) if params["reference"] else {}


def _without_empty(**fields: Any) -> Data:
    return {name: x for name, x in fields.items() if x not in (None, "", 0.0, [], {})}


def _plan(reference: str) -> Data:
    """Return the plan of a PLAN argument; its result is read here."""
    from planner.solver.answer.result_store import (
        joined_plan_of,
        pick_plan,
        plan_named,
        read_result,
    )

    source, which = plan_named(reference)
    result = read_result(source)
    if joined := joined_plan_of(result, which):
        return plan_of(result, joined.plan_id)
    return plan_of(result, pick_plan(result["plans"], which, source)["plan_id"])


def _hosts(params: Params) -> Data:
    from planner.frameworks.launchers.hosts import read_hosts

    return {} if params["hosts"] is None else {"hosts": "\n".join(read_hosts(params["hosts"]))}


# ---- answers


def _ask(service: Client, call: str, request: Data) -> Data:
    """Return the data of an answer; a note of the service goes to stderr."""
    shown = _Shown()
    result: Data = service.ask(call, request, progress=shown).json()
    shown.end()
    note = result.pop("note", "")
    if note:
        sys.stderr.write(f"note: {note}\n")
    return result


class _Shown:
    """Shows the progress of a job as the command without a service does."""

    def __init__(self) -> None:
        self._shown: TerminalProgress | None = None
        self._done, self._total = 0, 0

    def __call__(self, event: Mapping[str, Any]) -> None:
        if event.get("total"):
            if self._shown is None:
                what = SIZES if event["phase"] == SIZES else "searching"
                self._shown = TerminalProgress(what)
            if event.get("best_step_time_s") is not None:
                self._shown.found(float(event["best_step_time_s"]))
            self._show(int(event["done"]), int(event["total"]))

    def _show(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._shown is not None:
            self._shown(done, total)

    def end(self) -> None:
        """Show that all is done: the last steps of a job may come with its end alone."""
        if self._done < self._total:
            self._show(self._total, self._total)


def _made(make: Callable[[Data], Made], data: Data, service: Client) -> Made:
    """Return what the library makes of an answer; another version may write other fields."""
    try:
        return make(data)
    except (KeyError, TypeError, ValueError) as error:
        from planner import __version__

        theirs = service.version().get("version", "?")
        detail = f"the answer of version {theirs} cannot be read: {error!r}"
        fix = f"this is version {__version__}: use the same, or ask with curl"
        raise ServiceError("other-version", detail, fix) from None


def _show(data: Data, form: str) -> None:
    """Print an answer that was asked for with its text."""
    text = data.pop("text", "")
    indented = json.dumps(data, indent=1, allow_nan=False) + "\n"
    sys.stdout.write(indented if form == "json" else text)


def _named_here(data: Data, params: Params) -> Data:
    """Return an answer that calls model and cluster what the user did.

    The service knows the names of files, not their paths.
    """
    inputs, here = _check_ids(data)["inputs"], (str(params["model"]), str(params["cluster"]))
    there = inputs["model_source"], inputs["cluster_source"]
    beginning = f"planner solve {' '.join(there)}"
    inputs["model_source"], inputs["cluster_source"] = map(os.path.basename, here)
    for relaxation in data.get("relaxations", ()):
        rest = relaxation["command"].removeprefix(beginning)
        if rest != relaxation["command"]:
            argv = shlex.split(rest)
            for option in ("calibration", "reference"):
                if params[option] and f"--{option}" in argv:
                    argv[argv.index(f"--{option}") + 1] = params[option]
            relaxation["command"] = " ".join(["planner solve", *here, *map(shlex.quote, argv)])
    return data


# ---- commands


def _solve(service: Client, params: Params) -> int:
    from planner.cli.commands.plans import solve_output
    from planner.solver.answer.result import Result

    arguments, show = solve_output(SolveArguments.of_params(params), params["cluster"])
    request = _searched(params, arguments)
    data = _named_here(_ask(service, "solve", request), params)
    return show(_made(Result.from_json, data, service))


def _evaluate(service: Client, params: Params) -> int:
    from planner.cli.commands.plans import show_evaluated
    from planner.solver.answer.result import Result

    arguments = EvaluateArguments.of_params(params)
    request = {"pins": {}, **_searched(params, arguments)}
    data = _named_here(_ask(service, "evaluate", request), params)
    result = _made(Result.from_json, data, service)
    if arguments.form == "table" and arguments.verbose:
        result = _with_rows(result, data)
    return show_evaluated(result, arguments)


def _with_rows(result: Any, data: Data) -> Any:
    """Return a result of one plan that can be opened up: with what its table says of the pool."""
    from dataclasses import replace

    from planner.solver.answer.result_store import plan_of_result

    plan, own = result.plans[0], plan_of_result(data, "1", "the answer")[3]
    opened = replace(plan.breakdown, rows=own.breakdown.rows)
    return replace(
        result, plans=(replace(plan, breakdown=opened, too_large_for=own.too_large_for),)
    )


def _explain(service: Client, params: Params) -> int:
    from planner.cli.commands.plans import show_explained

    check_format(params["form"])
    data = _ask(service, "explain", {**_plan(params["plan"]), "term": params["term"]})
    show_explained(data, params["form"])
    return 0


def _emit(service: Client, params: Params) -> int:
    from planner.analyze.plan_files import chosen_targets
    from planner.cli.commands.plans import show_files
    from planner.frameworks.launchers.files import parse_launchers

    targets = chosen_targets(params["for_"])
    launchers = parse_launchers(params["launcher"])
    plan = _plan(params["plan"])
    request = {**plan, "for": targets, "launcher": list(launchers), **_hosts(params)}
    data = _ask(service, "emit", request)
    folder = None
    if params["out"]:
        saved = plan["result"]["plans"]
        joined = (plan["result"].get("together") or {}).get("plans", ())
        ranks = {x["plan_id"]: f"t{x['rank']}" for x in joined}
        ranks |= {x["plan_id"]: str(x["rank"]) for x in saved}
        folder = Path(params["out"]) / f"{ranks[plan['plan']]}-{plan['plan']}"
    show_files(_plain(data["files"]), targets, folder)
    return 0


def _plain(files: Mapping[str, str]) -> dict[str, str]:
    """Return files to write; `ServiceError` where a name leads out of the folder given.

    Those of one kind of replica have a folder of their own.
    """
    for name in files:
        for part in name.split("/"):
            _check_name(part)
    return dict(files)


def _check_name(name: Any) -> None:
    """Raise `ServiceError` for a name of a file, or an id that becomes one, that leads elsewhere.

    Whoever answers, over plain HTTP anybody on the way, must not choose where it is written.
    """
    wrong = not isinstance(name, str) or name in ("", ".", "..")
    if wrong or any(x in name for x in ("/", "\\", "\0")):
        raise ServiceError(
            "no-service",
            f"the answer names a file {str(name)[:80]!r}, which is no plain name",
            "nothing was written: is this the address of planner serve?",
        )


def _check_ids(result: Data) -> Data:
    """Return a result whose ids may name files; `ServiceError` else."""
    _check_name(result.get("result_id"))
    for plan in result.get("plans", ()):
        _check_name(plan.get("plan_id"))
    return result


def _place(service: Client, params: Params) -> int:
    check_format(params["form"])
    request = {**_plan(params["plan"]), **_hosts(params)}
    if params["form"] == "table":
        sys.stdout.write(_ask(service, "place", {**request, "with_text": True})["text"])
    else:
        sys.stdout.write(json.dumps(_ask(service, "place", request)) + "\n")
    return 0


def _trace(service: Client, params: Params) -> int:
    from planner.cli.commands.inspection import show_trace

    micro_batches = int(positive(params["micro_batches"], "--micro-batches", "4"))
    request = {**_plan(params["plan"]), "micro_batches": micro_batches}
    data = _ask(service, "trace", request)
    show_trace(data["trace"], data["plan_id"], params["out"])
    return 0


def gained_of(gained: Any) -> Data:
    """Return the fields of a request for nodes that joined: a number, or numbers by pool."""
    if isinstance(gained, int):
        return {"gained": gained}
    return {"gained_by_pool": dict(gained)}


def _replan(service: Client, params: Params) -> int:
    from planner.analyze.replan.gained import gained_of_text
    from planner.analyze.replan.replan import lost_of_text
    from planner.cli.commands.plans import check_replan
    from planner.solver.answer.result_store import save_text

    check_replan(ReplanArguments(**{x: y for x, y in params.items() if x != "plan"}))
    text = params["lost"]
    lost = text if "=" in text else lost_of_text(text)
    request = {
        **_plan(params["plan"]),
        "lost": lost if isinstance(lost, int | str) else list(lost),
        **gained_of(gained_of_text(params["gained"])),
        "via": params["via"],
        "with_text": True,
        **_without_empty(
            time_limit_s=positive(params["time_limit"], "--time-limit", "2.5"),
        ),
    }
    data = _ask(service, "replan", request)
    if params["cache"]:
        result = _check_ids(data["result"])
        save_text(result["result_id"], json.dumps(result, indent=1, allow_nan=False) + "\n")
    stopped = bool(data["stopped"])
    _show(data, params["form"])
    return 3 if data["verdict"] == "nothing fits" else 4 if stopped else 0


def _diff(service: Client, params: Params) -> int:
    check_format(params["form"])
    request = {"a": _plan(params["first"]), "b": _plan(params["second"]), "with_text": True}
    _show(_ask(service, "diff", request), params["form"])
    return 0


def _check(service: Client, params: Params) -> int:
    from planner.cli.commands.plans import check_variables, command_line
    from planner.render.answers.check import source_parts
    from planner.render.terminal import lines_of
    from planner.solver.options import axis_pins

    check_format(params["form"])
    cluster = params["file"] if params["command"] else params["cluster"]
    run: Data
    if params["command"]:
        script, files = command_line([params["cluster"], *params["command"]])
        run = {"run": FileText(str(script.content), script.name), "files": files}
    else:
        run = run_of(params["file"])
    request = {
        **run,
        **_without_empty(
            cluster=document(cluster, "cluster"),
            model=document(params["model"], "model") if params["model"] else None,
            framework=params["framework"],
            version=params["version"],
            env=check_variables(list(params["env"] or ())),
            pins=axis_pins(params["pin"] or ()),
            set=_sets(params),
            pool=params["pool"],
            calibration=_calibration(params),
        ),
        "with_text": True,
    }
    data = _ask(service, "check", request)
    # The service knows the name of the file, not its path.
    if params["command"]:
        data["source"] = run["run"].path
    messages = data["format"], data["framework"], data["release"]
    name = run["run"]["name"].partition("#")[0]
    rest = data["text"].splitlines()[len(lines_of(source_parts(name, *messages))) :]
    heading = lines_of(source_parts(run["run"].path, *messages))
    data["text"] = "\n".join([*heading, *rest]) + "\n"
    good = data["accepted"] and data["fits"]
    _show(data, params["form"])
    return 0 if good else 3


def _scale(service: Client, params: Params) -> int:
    from planner.cli.commands.scaling.scale import check_output, show_scaling
    from planner.sweeps.scaling.curve import Scaling

    check_output(params["form"], params["html"])
    bounds = {"from": size(params["from_"], "--from"), "to": size(params["to"], "--to")}
    request = {
        **_searched(params, ScaleArguments.of_params(params)),
        **_without_empty(**bounds),
        "scaling": params["scaling"],
        "over": params["over"],
        "points": params["points"],
    }
    data = _named_here(_ask(service, "scale", request), params)
    return show_scaling(_made(Scaling.from_json, data, service), params["form"], params["html"])


def _allocate(service: Client, params: Params) -> int:
    from planner.cli.commands.scaling.allocate import allocation_request, show_allocation

    check_format(params["form"], ("table", "json"))
    request = allocation_request(params["jobs"], params["objective"])
    return show_allocation(_ask(service, "allocate", request), params["form"])


def _batch_solve(service: Client, params: Params) -> int:
    from planner.cli.commands.scaling.batch_solve import batch_file, in_document, show_batch

    check_format(params["form"], ("table", "json"))
    read, file = batch_file(params["jobs"])
    request = {
        "jobs": {name: document(each, "model") for name, each in read["jobs"].items()},
        "clusters": {name: document(each, "cluster") for name, each in read["clusters"].items()},
        "counts": read["counts"],
        **_without_empty(
            framework=params["framework"],
            time_limit_s=positive(params["time_limit"], "--time-limit", "20"),
        ),
    }
    try:
        return show_batch(_ask(service, "batch-solve", request), params["form"])
    except ServiceError as error:
        error.place_problems(lambda problem: in_document(problem, file))
        raise


def _sweep(service: Client, params: Params) -> int:
    from planner.cli.commands.sweep import run_sweep_command

    def remote_rows(spec: Mapping[str, Any], limit_s: float) -> Any:
        files = {"calibration": "", "reference": "", **spec}
        request = {
            "spec": {x: y for x, y in spec.items() if x not in ("calibration", "reference")},
            **_without_empty(
                point_limit_s=limit_s, calibration=_calibration(files), **_reference(files)
            ),
        }
        return service.rows("sweep", request)

    return run_sweep_command(list(params["files"]), SweepArguments.of_params(params), remote_rows)


def _check_spec(service: Client, params: Params) -> int:
    from planner.cli.spec_check import check_spec
    from planner.specs.loader import file_content, is_sweep_file

    if file_content(params["file"], "model") is not None and is_sweep_file(params["file"]):
        # It names files that lie here, and its call takes what they hold.
        sys.stdout.write(check_spec(params["file"]).rstrip("\n") + "\n")
        return 0
    file = document(params["file"], "model")
    data = _ask(service, "check-spec", {"document": file})
    sys.stdout.write(_about(data["summary"].rstrip("\n") + "\n", file))
    return 0


def _about(text: str, file: Any) -> str:
    """Return a text that begins with the name of a file, which is called as the user did."""
    named = isinstance(file, FileText) and text.startswith(f"{file['name']}:")
    return file.path + text.removeprefix(file["name"]) if named else text


def _rule(service: Client, params: Params) -> int:
    from planner.cli.commands.plans import rule_text, rules_list
    from planner.render.terminal import fitted_text, terminal_width

    rules = service.rules(params["code"])["rules"]
    text = rule_text(rules[0]) if params["code"] else rules_list(rules)
    sys.stdout.write(fitted_text(text, terminal_width()))
    return 0


def _catalog_list(service: Client, params: Params) -> int:
    from planner.analyze.catalogue import catalogue_of_json
    from planner.render.catalog import catalog_document
    from planner.render.terminal import terminal_text, terminal_width

    catalogue = _made(catalogue_of_json, service.catalogue(), service)
    sys.stdout.write(terminal_text(catalog_document(catalogue), terminal_width()))
    return 0


def _catalog_show(service: Client, params: Params) -> int:
    from planner.analyze.catalogue import catalogue_of_json
    from planner.render.catalog import sheet_document, sheet_of
    from planner.render.terminal import terminal_text, terminal_width

    catalogue = _made(catalogue_of_json, service.catalogue(), service)
    parts = sheet_document(sheet_of(params["name"], catalogue))
    sys.stdout.write(terminal_text(parts, terminal_width()))
    return 0


def _of_jobs(name: str) -> Callable[[Client, Params], int]:
    """Return what a command of `planner jobs` does; a service alone answers it."""

    def run(service: Client, params: Params) -> int:
        from planner.cli.commands.service import jobs

        work: Callable[[Client, Params], int] = getattr(jobs, name)
        return work(service, params)

    return run


_EXECUTOR = "leave it out: planner serve --executor says where its searches run"

SERVED: Mapping[str, Served] = {
    "solve": Served(_solve, {"executor": _EXECUTOR, "ray_address": _EXECUTOR}),
    "evaluate": Served(_evaluate),
    "explain": Served(_explain),
    "emit": Served(_emit),
    "check": Served(_check),
    "diff": Served(_diff),
    "scale": Served(_scale),
    "allocate": Served(_allocate),
    "batch-solve": Served(_batch_solve, {"executor": _EXECUTOR}),
    "sweep": Served(
        _sweep,
        {
            "executor": _EXECUTOR,
            "ray_address": _EXECUTOR,
            "dry_run": "leave out --server",
        },
    ),
    "replan": Served(_replan),
    "place": Served(_place, {"out": "--format json has ranks and hosts; or leave out --server"}),
    "trace": Served(_trace),
    "check-spec": Served(_check_spec, {"form": "leave out --server"}),
    "rule": Served(_rule),
    "catalog list": Served(_catalog_list),
    "catalog show": Served(_catalog_show),
    "jobs list": Served(_of_jobs("list_jobs")),
    "jobs show": Served(_of_jobs("show_job")),
    "jobs watch": Served(_of_jobs("watch_jobs")),
    "jobs cancel": Served(_of_jobs("cancel_job")),
}
"""By command."""
