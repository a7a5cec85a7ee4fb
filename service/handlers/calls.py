"""Every call of the service as a pure function: request in, plain data out.

An answer is what the command line prints with `--format json` for the same inputs: the same plan
ids, the same numbers, and through `dumps` the same bytes. Nothing is opened that a request names.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ValidationError

from planner.errors import PlannerError
from planner.option_names import REQUEST_FIELDS, SWEEP_FIELDS
from planner.specs.json_text import indented
from searches.pricing.shared_work import SharedWork
from service.handlers import schemas
from service.handlers.documents import (
    calibration_in,
    content_of,
    files_of,
    hosts_in,
    reference_in,
    run_document,
)
from service.handlers.limits import (
    DEFAULTS,
    RequestLimits,
    check_data,
    check_input_limits,
    check_model,
    check_option_limits,
    json_body,
    space_estimate,
    too_much,
)
from service.handlers.partial_results import KeptRow, Rows
from service.handlers.problems import Fault, Problem, problem_of, refused
from service.handlers.requests import place_of, request_id, request_options_of, schema_problem
from service.handlers.schemas import Request

if TYPE_CHECKING:
    from planner.solver.request import SolveRequest

log = logging.getLogger("planner.service")

Data = dict[str, Any]
Role = Literal["read", "solve", "admin"]
Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class RunningCall:
    """What a call may use besides its request; the answer depends on it where it is stopped."""

    settings: RequestLimits = DEFAULTS
    time_limit_s: float = 0.0
    """Seconds after which a search answers with the best so far, and says so; 0: the setting's."""
    end_s: float = math.inf
    """By the monotonic clock, when that is for all searches of one call."""
    stop: Stop | None = None
    """Asked now and then; true ends a search with the best so far."""
    progress: Callable[[Mapping[str, Any]], None] | None = None
    """Told `{"phase", "done", "total", "best_step_time_s"}`, the last None where it is not known.
    """
    executor: str = "serial"
    """Where searches run, one of `searches.executors.executor.NAMES`; the answer does not depend
    on it."""
    ray_address: str = ""
    shared: SharedWork | None = None
    """Tables that questions of one process share; the answer does not depend on it."""
    rows: Mapping[int, KeptRow] = field(default_factory=dict)
    """Rows of the answer that are there from before, by place: not computed again."""
    keep: Callable[[Rows], None] | None = None
    """Given rows of the answer as they come, for a later attempt to go on with."""
    spent_s: float = 0.0
    """Time in which those before were computed: it counts as time of this call."""


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """One call."""

    name: str
    request: type[Request]
    answer: type[BaseModel]
    role: Role
    """What a caller must be allowed at least."""
    size: Literal["small", "large"]
    """Whether it is answered at once, or is usually a job."""
    function: Callable[[Any, RunningCall], Data]
    title: str
    indent: int | None = 1
    """Of the command line's JSON."""
    rows: bool = False
    """Whether its rows are kept as they come (`RunningCall.keep`), to be read early."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A request that is read, its documents aside, and within the limits of its size."""

    name: str
    request: Request
    request_id: str
    """Content hash: identity, cache key, ETag."""
    large: bool
    """A job rather than an answer at once, as far as is known before the documents are read."""


@dataclass(frozen=True, slots=True)
class RequestSize:
    """How much work a request is, before any of it is done."""

    n_devices: int
    """Of the largest pool; 0 where no cluster is named."""
    space: int
    """Estimate of the candidate plans (`limits.space_estimate`); 0 where nothing is searched."""
    large: bool
    """A job rather than an answer at once."""


def read_request(
    name: str, body: bytes | str | Mapping[str, Any], settings: RequestLimits = DEFAULTS
) -> CallRequest:
    """Return a request that was read and is within the limits; `Problem` where it is not.

    No document in it is read yet: its time is that of reading JSON.
    """
    call = find_call(name)
    if call is None:
        detail = f"no call {name[:80]!r}; calls: {', '.join(CALLS)}"
        raise refused("unknown-call", detail, 404)
    if name.startswith(PAGE_PREFIX):
        settings = _of_pages(settings)
    data = json_body(body, settings) if isinstance(body, bytes | str) else body
    if not isinstance(data, Mapping):
        raise refused("malformed", "the body is no JSON object", 400)
    check_data(data, settings)
    try:
        request = call.request.model_validate(dict(data))
    except ValidationError as error:
        raise schema_problem(call.name, call.request, error, data) from None
    check_option_limits(request_options_of(request), settings)
    return CallRequest(name, request, request_id(name, request), call.size == "large")


MOST_PAGE_TOP = 5_000
"""Plans that a page may ask for: it shows some figures of each."""
PAGE_PREFIX = "page-"
"""Names of calls that pages alone make begin so: they are no part of the interface."""


def _of_pages(settings: RequestLimits) -> RequestLimits:
    """Return the limits of what pages send: lists of plans, and results that they draw."""
    return replace(settings, top=MOST_PAGE_TOP, body_bytes=64_000_000, nodes=5_000_000)


PAGE_CALLS: dict[str, "ServiceCall"] = {}
"""Calls that pages alone make, by name: `service.pages.calls`, which workers load, adds them."""


def find_call(name: str) -> ServiceCall | None:
    """Return a call by its name, those of pages among them; None where there is none."""
    return (PAGE_CALLS if name.startswith(PAGE_PREFIX) else CALLS).get(name)


def measure(asked: CallRequest, settings: RequestLimits = DEFAULTS) -> RequestSize:
    """Return how much work a request is; `Problem` where it is more than the limits allow.

    It reads the model and the cluster, which may take seconds for a large text: for a worker.
    """
    translated: RequestSize = _translated(
        asked.name, lambda: _measured(asked, settings), asked.request
    )
    return translated


def _measured(asked: CallRequest, settings: RequestLimits) -> RequestSize:
    request = asked.request
    large = asked.large
    if isinstance(request, schemas.SweepRequest):
        _sweep_of(request, settings)
    if isinstance(request, schemas.ScaleRequest):
        _scale_task(request, settings)
    inner = ""
    if isinstance(request, schemas.PlanOf):
        inner = "solve" if request.solve else "evaluate"
        request = request.solve or request.evaluate or request
    if not isinstance(request, schemas.Priced):
        return RequestSize(0, 0, large)
    with _inside(inner):
        model, cluster = _read_inputs(request, settings)
    n_devices = max(pool.n_devices for pool in cluster.cluster.pools)
    if not isinstance(request, schemas.SolveRequest):
        return RequestSize(n_devices, 0, large)
    space = space_estimate(model, cluster, search_of(request).without_goals().options())
    if space > settings.space:
        fix = "pin or bound axes, such as max: {pp: 16}, or plan for another number of nodes"
        raise too_much("candidate plans (estimate)", space, settings.space, "", fix)
    return RequestSize(n_devices, space, large or space > settings.large_space)


def answer(asked: CallRequest, running: RunningCall = RunningCall()) -> Data:
    """Return the answer of a call; `Problem` for everything refused, never another exception."""
    call = find_call(asked.name)
    assert call is not None
    running = replace(running, end_s=time.monotonic() + _limit_s(running))

    def work() -> Data:
        _measured(asked, running.settings)
        return call.function(asked.request, running)

    translated: Data = _translated(asked.name, work, asked.request)
    return translated


def call(
    name: str, body: bytes | str | Mapping[str, Any], running: RunningCall = RunningCall()
) -> Data:
    """Return the answer to a body; `Problem` for everything refused, never another exception."""
    return answer(read_request(name, body, running.settings), running)


def _translated(name: str, work: Callable[[], Any], request: Request) -> Any:
    """Return what some work returns, with every exception translated into `Problem`."""
    try:
        return work()
    except KeyboardInterrupt:
        raise
    except Problem as problem:
        raise problem.at(lambda source: place_of(source, request)) from None
    except PlannerError as error:
        fields = SWEEP_FIELDS if name == "sweep" else REQUEST_FIELDS
        raise problem_of(error, fields).at(lambda source: place_of(source, request)) from None
    except RecursionError:
        detail = "a text in the request is nested too deeply"
        raise refused("bad-specification", detail, 422) from None
    except MemoryError:
        detail = "the question needs more memory than a worker has"
        raise refused("too-much-work", detail, 422) from None
    except Exception as error:
        log.exception("a defect in a call")
        fault = Fault(type(error).__name__, "please report it with the request")
        raise refused("defect", "planner could not answer this", 500, [fault]) from error


def is_complete(answer: Mapping[str, Any]) -> bool:
    """Tell whether an answer is the whole one: one that was stopped is not to be cached."""
    return bool(answer.get("complete", True))


def dumps(answer: Mapping[str, Any], name: str = "") -> str:
    """Return the text of an answer: the same bytes as the command line's, for the same inputs.

    `name` is the call's: `place` prints its long lists on one line.
    """
    call = find_call(name) if name else None
    if call is None or call.indent == 1:
        return indented(answer) + "\n"
    return json.dumps(answer, indent=call.indent, allow_nan=False) + "\n"


# ---- calls ------------------------------------------------------------------------------------


def changes_of(fields: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """Return the fields to change of a request as the library takes them."""
    from planner.solver.request import SolveRequest

    return SolveRequest.of_json({"set": fields}).overrides


def contents_of(request: schemas.Priced, settings: RequestLimits) -> tuple[Any, Any]:
    """Return model and cluster as the library takes them, within the limits of documents."""
    model = content_of(request.model, "model", "model", settings)
    return model, content_of(request.cluster, "cluster", "cluster", settings)


def _read_inputs(request: schemas.Priced, settings: RequestLimits) -> tuple[Any, Any]:
    """Return both inputs, within the limits."""
    from planner.solver.sources import read_inputs

    contents = contents_of(request, settings)
    overrides = changes_of(request.set)
    inputs = read_inputs(*contents, overrides, request.pool)
    check_input_limits(*inputs, settings)
    return inputs


@contextmanager
def _inside(field: str) -> Iterator[None]:
    """Place what is wrong in a field of a request there; nothing where it is empty."""
    try:
        yield
    except PlannerError as error:
        raise problem_of(error).inside(field) if field else error from None
    except Problem as problem:
        raise problem.inside(field) if field else problem from None


def search_of(request: schemas.Priced, settings: RequestLimits | None = None) -> "SolveRequest":
    """Return what a request searches for; without its documents where there are no settings."""
    from planner.solver.request import SolveRequest

    fields: Data = {name: getattr(request, name) for name in type(request).model_fields}
    del fields["calibration"], fields["reference"]
    if settings is not None:
        fields["calibration"] = calibration_in(request.calibration, settings)
        fields["reference"] = reference_in(request.reference, request.files, settings)
    return SolveRequest.of_json(fields)


SHORT_LIMIT_S = 10.0
"""Limits from which on a search is seldom asked to stop: small steps between two looks cost time.
"""


def _stop(running: RunningCall, asked_s: float = 0.0) -> Stop:
    """Return what ends a search: the caller, or the time limit."""
    from searches.search import Seldom

    end = min(running.end_s, time.monotonic() + _limit_s(running, asked_s))
    left_s = end - time.monotonic()

    def stop() -> bool:
        return time.monotonic() > end or (running.stop is not None and running.stop())

    return stop if left_s < SHORT_LIMIT_S else Seldom(stop)


def _limit_s(running: RunningCall, asked_s: float = 0.0) -> float:
    """Return the time that a call has left, seconds."""
    limits = (running.time_limit_s or running.settings.solve_s, asked_s)
    return max(0.0, min(x for x in limits if x > 0.0) - running.spent_s)


class _Progress:
    """Tells how far a search is, with the best step time that it has found so far."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None], phase: str) -> None:
        self._tell, self._phase = tell, phase
        self._best_s: float | None = None

    def __call__(self, done: int, total: int) -> None:
        self._tell(
            {"phase": self._phase, "done": done, "total": total, "best_step_time_s": self._best_s}
        )

    def found(self, step_s: float) -> None:
        """Note the step time of the best plan of a part of the search."""
        self._best_s = step_s if self._best_s is None else min(step_s, self._best_s)


def _progress(running: RunningCall, phase: str) -> _Progress | None:
    return _Progress(running.progress, phase) if running.progress else None


def solved_result(request: schemas.SolveRequest, running: RunningCall) -> Any:
    """Return the library's result of a request to solve."""
    from planner.solver.solve import solve

    settings = running.settings
    model, cluster = contents_of(request, settings)
    return solve(
        model,
        cluster,
        search_of(request, settings),
        executor=running.executor,
        ray_address=running.ray_address,
        stop=_stop(running),
        progress=_progress(running, "search"),
        shared=running.shared,
    )


def _evaluated(request: schemas.EvaluateRequest, running: RunningCall) -> Any:
    from planner.solver.solve import evaluate

    settings = running.settings
    model, cluster = contents_of(request, settings)
    return evaluate(model, cluster, search_of(request, settings))


def _solve(request: schemas.SolveRequest, running: RunningCall) -> Data:
    result: Data = solved_result(request, running).to_json()
    return result


def _evaluate(request: schemas.EvaluateRequest, running: RunningCall) -> Data:
    result: Data = _evaluated(request, running).to_json()
    return result


@dataclass(frozen=True, slots=True)
class OpenedPlan:
    """One plan of a request, priced again from the inputs of its result."""

    opened: Any
    """Model, cluster, problem and plan (`planner.solver.answer.result_store.open_plan`)."""
    options: Any
    note: str
    """How far it is from what the result says."""
    stopped: str
    """Where its search was stopped."""

    def with_state(self, data: Data) -> Data:
        """Return an answer with what is to be said of the plan's result, if anything."""
        more: Data = {"note": self.note} if self.note else {}
        if self.stopped:
            more |= {"complete": False, "stopped": self.stopped}
        return {**data, **more}


def open_request_plan(given: schemas.PlanOf, running: RunningCall) -> OpenedPlan:
    """Return the plan that a request names; `Problem` where its result has none such."""
    from planner.solver.answer.result_store import (
        checked_result,
        plan_of_result,
        read_options,
        repriced_note_of,
    )

    which = str(given.plan)
    if given.result is None:
        with _inside("solve" if given.solve else "evaluate"):
            result = (
                solved_result(given.solve, running)
                if given.solve
                else _evaluated(given.evaluate, running)  # type: ignore[arg-type]  # one is given
            )
        data, source, stopped = result.to_json(), "the result", result.stopped
    else:
        data, source, stopped = dict(given.result), "the result given", ""
        _check_result(data, running.settings)
    try:
        data = checked_result(data, source)
        opened = plan_of_result(data, which, source)
        options = read_options(data["inputs"]["options"])
        note = repriced_note_of(data, which, source, opened[3])
    except PlannerError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        if given.result is None:
            raise
        detail = f"{source} is not as planner wrote it: {type(error).__name__}: {error}"[:200]
        fault = Fault(detail, "send the whole answer of solve or evaluate", "result")
        raise refused("bad-specification", detail, 422, [fault]) from None
    return OpenedPlan(opened, options, note, stopped)


def _check_result(data: Data, settings: RequestLimits) -> None:
    """Refuse the inputs of a result that is given where they are beyond the limits."""
    from planner.specs.loader import cluster_from_dict, model_from_dict

    inputs = data.get("inputs")
    model, cluster = (
        inputs.get(key) if isinstance(inputs, dict) else None for key in ("model", "cluster")
    )
    if not isinstance(model, dict) or not isinstance(cluster, dict):
        return  # said by `checked_result`
    check_input_limits(model_from_dict(model), cluster_from_dict(cluster), settings)


def _explain(request: schemas.ExplainRequest, running: RunningCall) -> Data:
    from planner.analyze.explain import explain
    from planner.render.answers.explanation import explanation_json

    request_plan = open_request_plan(request, running)
    _, _, problem, plan = request_plan.opened
    explanation = explain(problem, plan, request_plan.options, request.term)
    return request_plan.with_state(explanation_json(explanation))


def _emit(request: schemas.EmitRequest, running: RunningCall) -> Data:
    from planner.analyze.plan_files import FileTargets, chosen_targets, plan_files
    from planner.frameworks.launchers.files import parse_launchers

    targets = chosen_targets(",".join(request.for_))
    launchers = parse_launchers(",".join(request.launcher))
    hosts = hosts_in(request.hosts)
    request_plan = open_request_plan(request, running)
    file_targets = FileTargets(targets, launchers, hosts)
    files = plan_files(request_plan.opened, request_plan.options.calibration, file_targets)
    reasons = {name: files[f"{name}.txt"] for name in targets if f"{name}.txt" in files}
    plan_id = request_plan.opened[3].plan_id
    return request_plan.with_state({"plan_id": plan_id, "files": files, "refused": reasons})


def _place(request: schemas.PlaceRequest, running: RunningCall) -> Data:
    from planner.frameworks.launchers.hosts import chosen_hosts
    from planner.frameworks.launchers.placement import place_plan
    from planner.frameworks.launchers.rank_files import placement_json
    from planner.render.answers.placement import placement_document
    from planner.render.terminal import terminal_text

    value = hosts_in(request.hosts)
    maximum = running.settings.hosts
    if value and len(value) > maximum:
        raise too_much("hosts", len(value), maximum, "hosts", "name those of the plan alone")
    request_plan = open_request_plan(request, running)
    model, cluster, problem, plan = request_plan.opened
    names = chosen_hosts(None, cluster) if value is None else value
    fabric = cluster.cluster.fabric
    placement = place_plan(plan.layout, model.shape, problem.pool, fabric, names)
    heading = f"plan {plan.plan_id}, model {model.shape.name}, cluster {cluster.cluster.name}"
    data = placement_json(placement, plan.plan_id)
    return request_plan.with_state(
        _shown(request, data, lambda: terminal_text(placement_document(placement, heading)))
    )


def _shown(request: schemas.Shown, data: Data, text: Callable[[], str]) -> Data:
    """Return an answer with its text, where that is asked for."""
    return {**data, "text": text()} if request.with_text else data


def _replan(request: schemas.ReplanRequest, running: RunningCall) -> Data:
    from planner.analyze.replan.replan import replan
    from planner.render.document import text_of
    from planner.solver.execution import Execution
    from searches.executors.executor import SerialExecutor

    request_plan = open_request_plan(request, running)
    settings, maximum = running.settings, running.settings.devices
    per_node = request_plan.opened[1].cluster.pools[0].devices_per_node
    n_devices = (request_plan.opened[1].cluster.pools[0].n_nodes + request.gained) * per_node
    if n_devices > maximum:
        raise too_much("devices", n_devices, maximum, "gained", "name fewer nodes")
    lost: int | tuple[str, ...]
    if isinstance(request.lost, int):
        lost = request.lost
    else:
        texts = [request.lost] if isinstance(request.lost, str) else request.lost
        lost = tuple(name for text in texts for name in hosts_in(text) or ())
        if len(lost) > settings.hosts:
            raise too_much("hosts", len(lost), settings.hosts, "lost", "name fewer nodes")
    execution = Execution(
        SerialExecutor(), _stop(running, request.time_limit_s), _progress(running, "search")
    )
    answer = replan(
        request_plan.opened,
        request_plan.options,
        execution,
        lost=lost,
        gained=request.gained,
        via=request.via,
    )
    return request_plan.with_state(_shown(request, answer.to_json(), lambda: text_of(answer)))


def _diff(request: schemas.DiffRequest, running: RunningCall) -> Data:
    from planner.analyze.comparison import compare
    from planner.render.document import text_of

    with _inside("a"):
        first = open_request_plan(request.a, running)
    with _inside("b"):
        second = open_request_plan(request.b, running)
    result = compare(first.opened, second.opened)
    data = _shown(request, result.to_json(), lambda: text_of(result))
    return second.with_state(first.with_state(data))


def _scale_task(request: schemas.ScaleRequest, settings: RequestLimits) -> Any:
    """Return the curve of a request, within the limits, checked and not computed."""
    from planner.sweeps.scaling.curve import scale_task
    from planner.sweeps.scaling.sizes import SizeRange

    if request.points > settings.sizes:
        what, fix = "sizes", "ask for fewer points"
        raise too_much(what, request.points, settings.sizes, "points", fix)
    if request.over == "devices" and max(request.to, request.from_) > settings.devices:
        maximum = settings.devices
        raise too_much("devices", max(request.to, request.from_), maximum, "to", "name fewer")
    model, cluster = contents_of(request, settings)
    sizes = SizeRange(request.over, request.scaling, request.from_, request.to, request.points)
    return scale_task(model, cluster, sizes, search_of(request, settings))


def _scale(request: schemas.ScaleRequest, running: RunningCall) -> Data:
    from planner.sweeps.scaling.curve import SizeRow, curve
    from planner.sweeps.storage import row_text

    def keep(index: int, found: SizeRow) -> None:
        if running.keep is not None and found.row is not None:
            running.keep([KeptRow(index, row_text(found.row), found.notes)])

    task = _scale_task(request, running.settings)
    result = curve(
        task,
        stop=_stop(running, task.time_limit_s),
        progress=_progress(running, "sizes"),
        there={i: SizeRow(json.loads(row.text), row.notes) for i, row in running.rows.items()},
        came=keep,
    )
    data: Data = result.to_json()
    return data | {"complete": False} if result.stopped else data


def _searched(sweep: Any, chunks: Any, limit_s: float, running: RunningCall) -> Iterator[Any]:
    """Yield the rows of the searches of a sweep, in this process or, as they come, from Ray."""
    from planner.errors import SearchError
    from planner.sweeps.run import LEAST_HARD_LIMIT_S, PointSolver, lost_rows, solver_of_worker
    from searches.executors.executor import ExecutorError
    from searches.executors.streaming import Lost, make_stream

    if running.executor == "serial":
        for chunk in chunks:
            # As the workers of a sweep do: points of a chunk share tables.
            yield from map(PointSolver(sweep, limit_s), chunk)
        return
    make = partial(solver_of_worker, sweep, limit_s, sweep.header().get("calibration"))
    stream = make_stream(running.executor, running.ray_address or None)
    answers = stream.answers(make, chunks, 2.0 * limit_s + LEAST_HARD_LIMIT_S)
    try:
        with closing(answers):  # type: ignore[type-var]  # a generator: its workers end with it
            for twins, found in answers:
                yield lost_rows(sweep, twins, found) if isinstance(found, Lost) else found
    except ExecutorError as error:
        raise SearchError(str(error), error.fix) from error


def _sweep_of(request: schemas.SweepRequest, settings: RequestLimits) -> Any:
    """Return the sweep of a request, within the limits; its points are not looked at."""
    from planner.sweeps.spec.spec import sweep_from_dict

    sweep = sweep_from_dict(
        request.spec,
        open_files=False,
        calibration=calibration_in(request.calibration, settings),
        reference=reference_in(request.reference, request.files, settings),
    )
    if sweep.n_points > settings.points:
        fix = "vary fewer values, or send several sweeps"
        raise too_much("points", sweep.n_points, settings.points, "spec", fix)
    top = sweep.search.top if sweep.search else None
    if top and top > settings.top:
        raise too_much("plans of a point", top, settings.top, "spec.search.top", "leave it out")
    return sweep


def _sweep(request: schemas.SweepRequest, running: RunningCall) -> Data:
    from planner.sweeps.run import POINT_LIMIT_S, chunks_of

    settings, stop = running.settings, _stop(running, request.time_limit_s)
    sweep = _sweep_of(request, settings)
    points = list(sweep.points())
    results = [running.rows[point.index] for point in points if point.index in running.rows]
    left = [point for point in points if point.index not in running.rows]
    ended = False
    for point in left:
        if not point.fault:
            model, cluster = sweep.inputs(point)
            check_input_limits(model, cluster, settings)
        ended = stop()
        if ended:
            break
    limit_s = request.point_limit_s or sweep.time_limit_s or POINT_LIMIT_S
    point_s = min(limit_s, _limit_s(running, request.time_limit_s))
    best_s = None

    def came(rows: Rows) -> None:
        nonlocal best_s
        times = [json.loads(row.text).get("best.step_time_s") for row in rows]
        best_s = min((t for t in (*times, best_s) if t is not None), default=None)
        if running.progress is not None and rows:
            running.progress(
                {
                    "phase": "points",
                    "done": len(results),
                    "total": len(points),
                    "best_step_time_s": best_s,
                }
            )

    came(results)
    for rows in () if ended or not left else _searched(sweep, chunks_of(left), point_s, running):
        new = [KeptRow(index, text) for index, _, text in rows]
        results += new
        if running.keep is not None:
            running.keep(new)
        came(new)
        ended = len(results) < len(points) and stop()
        if ended:
            break
    return {
        "sweep": sweep.header(),
        "n_points": len(points),
        "complete": not ended,
        "stopped": "time limit" if ended else "",
        "rows": [json.loads(row.text) for row in sorted(results)],
    }


def _check(request: schemas.CheckRequest, running: RunningCall) -> Data:
    from planner.analyze.check.check import check
    from planner.frameworks.registry import check_framework
    from planner.render.document import text_of
    from planner.specs.loader import load_cluster, load_model

    settings = running.settings
    if request.framework:
        check_framework(request.framework, "framework")
    cluster = content_of(request.cluster, "cluster", "cluster", settings)
    model = None
    if request.model is not None:
        model = content_of(request.model, "model", "model", settings)
    for pool in load_cluster(cluster).cluster.pools:
        if pool.n_devices > settings.devices:
            what, fix = f"devices of pool {pool.name}", "name fewer nodes"
            raise too_much(what, pool.n_devices, settings.devices, "cluster", fix)
    if model:
        check_model(load_model(model), settings)
    report = check(
        run_document(request.run, settings),
        cluster,
        model=model,
        files=files_of(request.files, settings),
        framework=request.framework,
        version=request.version,
        env=request.env,
        pins=request.pins,
        overrides=changes_of(request.set),
        pool=request.pool,
        calibration=calibration_in(request.calibration, settings),
        stop=_stop(running),
    )
    stopped = report.standing.stopped if report.standing else ""
    data = report.to_json() | ({"complete": False, "stopped": stopped} if stopped else {})
    return _shown(request, data, lambda: text_of(report))


def _catalogue(request: schemas.CatalogueRequest, running: RunningCall) -> Data:
    from planner.analyze.catalogue import catalogue_json

    return catalogue_json(request.name)


def _rules(request: schemas.RulesRequest, running: RunningCall) -> Data:
    from planner.analyze.catalogue import rules_json

    return rules_json(request.code)


def _check_spec(request: schemas.CheckSpecRequest, running: RunningCall) -> Data:
    from planner.specs.inputs import ModelInput
    from planner.specs.loader import load_spec
    from planner.specs.summary import spec_summary

    content = content_of(request.document, "model", "document", running.settings)
    spec = load_spec(replace(content, name=content.shown or content.name))  # as it was asked for
    kind = "model" if isinstance(spec, ModelInput) else "cluster"
    return {
        "kind": kind,
        "summary": spec_summary(spec),
        "notes": list(spec.notes),
        "document": spec.document,
    }


CALLS: dict[str, ServiceCall] = {
    call.name: call
    for call in (
        ServiceCall(
            "solve",
            schemas.SolveRequest,
            schemas.SolveAnswer,
            "solve",
            "small",
            _solve,
            "Rank the layouts of a training job on a cluster",
        ),
        ServiceCall(
            "evaluate",
            schemas.EvaluateRequest,
            schemas.SolveAnswer,
            "solve",
            "small",
            _evaluate,
            "Price one layout, whether or not it fits",
        ),
        ServiceCall(
            "explain",
            schemas.ExplainRequest,
            schemas.ExplainAnswer,
            "solve",
            "small",
            _explain,
            "Explain one plan in words, or one term down to its formula",
        ),
        ServiceCall(
            "emit",
            schemas.EmitRequest,
            schemas.EmitAnswer,
            "solve",
            "small",
            _emit,
            "Write the framework configuration that runs one plan",
        ),
        ServiceCall(
            "check",
            schemas.CheckRequest,
            schemas.CheckAnswer,
            "solve",
            "small",
            _check,
            "Judge an existing run",
        ),
        ServiceCall(
            "diff",
            schemas.DiffRequest,
            schemas.DiffAnswer,
            "solve",
            "small",
            _diff,
            "Say term by term why one plan beats another",
        ),
        ServiceCall(
            "scale",
            schemas.ScaleRequest,
            schemas.ScaleAnswer,
            "solve",
            "large",
            _scale,
            "Find the best plan at each number of devices",
            rows=True,
        ),
        ServiceCall(
            "sweep",
            schemas.SweepRequest,
            schemas.SweepAnswer,
            "solve",
            "large",
            _sweep,
            "Search every point of a design over models, jobs and clusters",
            rows=True,
        ),
        ServiceCall(
            "replan",
            schemas.ReplanRequest,
            schemas.ReplanAnswer,
            "solve",
            "small",
            _replan,
            "Say what to do with a running plan after nodes were lost or gained",
        ),
        ServiceCall(
            "place",
            schemas.PlaceRequest,
            schemas.PlaceAnswer,
            "solve",
            "small",
            _place,
            "Map the ranks of a plan to hosts",
            indent=None,
        ),
        ServiceCall(
            "catalogue",
            schemas.CatalogueRequest,
            schemas.CatalogueAnswer,
            "read",
            "small",
            _catalogue,
            "Figures of accelerators, links and platforms with their sources",
        ),
        ServiceCall(
            "rules",
            schemas.RulesRequest,
            schemas.RulesAnswer,
            "read",
            "small",
            _rules,
            "Rules that reject layouts or settings",
        ),
        ServiceCall(
            "check-spec",
            schemas.CheckSpecRequest,
            schemas.CheckSpecAnswer,
            "read",
            "small",
            _check_spec,
            "Check a model or cluster file and say what it describes",
        ),
    )
}
"""By name."""
