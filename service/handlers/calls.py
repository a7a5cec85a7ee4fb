"""Every call of the service as a pure function: request in, plain data out.

An answer is what the command line prints with `--format json` for the same inputs: the same plan
ids, the same numbers, and through `dumps` the same bytes. Nothing is opened that a request names.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from planner.errors import PlannerError
from planner.option_names import REQUEST_FIELDS, SWEEP_FIELDS
from planner.specs.json_text import indented
from service.handlers import answers, schemas
from service.handlers.documents import content_of
from service.handlers.limits import (
    DEFAULTS,
    RequestLimits,
    check_data,
    check_option_limits,
    json_body,
    space_estimate,
    too_much,
)
from service.handlers.plan_calls import (
    check_answer,
    diff_answer,
    emit_answer,
    evaluate_answer,
    explain_answer,
    place_answer,
    replan_answer,
    solve_answer,
    trace_answer,
)
from service.handlers.problems import Fault, Refusal, problem_of, refused
from service.handlers.request_contents import (
    errors_inside,
    limited_batch,
    limited_curve,
    limited_inputs,
    limited_sweep,
    search_of,
)
from service.handlers.requests import place_of, request_id, request_options_of, schema_problem
from service.handlers.running_call import RunningCall, time_left_s
from service.handlers.schemas import Request
from service.handlers.sweep_calls import (
    allocate_answer,
    batch_solve_answer,
    scale_answer,
    sweep_points_answer,
)

log = logging.getLogger("planner.service")


Data = dict[str, Any]


Role = Literal["read", "solve", "admin"]


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
    """Return a request that was read and is within the limits; `Refusal` where it is not.

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


def request_size(call_request: CallRequest, settings: RequestLimits = DEFAULTS) -> RequestSize:
    """Return how much work a request is; `Refusal` where it is more than the limits allow.

    It reads the model and the cluster, which may take seconds for a large text: for a worker.
    """
    translated: RequestSize = _translated(
        call_request.name, lambda: _measured(call_request, settings), call_request.request
    )
    return translated


def _measured(call_request: CallRequest, settings: RequestLimits) -> RequestSize:
    request = call_request.request
    large = call_request.large
    if isinstance(request, schemas.SweepBody):
        limited_sweep(request, settings)
    if isinstance(request, schemas.ScaleBody):
        limited_curve(request, settings)
    if isinstance(request, schemas.BatchSolveBody):
        limited_batch(request, settings)
    inner = ""
    if isinstance(request, schemas.PlanOf):
        inner = "solve" if request.solve else "evaluate"
        request = request.solve or request.evaluate or request
    if not isinstance(request, schemas.Priced):
        return RequestSize(0, 0, large)
    with errors_inside(inner):
        model, cluster = limited_inputs(request, settings)
    n_devices = max(pool.n_devices for pool in cluster.cluster.pools)
    if not isinstance(request, schemas.SolveBody):
        return RequestSize(n_devices, 0, large)
    space = space_estimate(model, cluster, search_of(request).without_goals().options())
    if space > settings.space:
        fix = "pin or bound axes, such as max: {pp: 16}, or plan for another number of nodes"
        raise too_much("candidate plans (estimate)", space, settings.space, "", fix)
    return RequestSize(n_devices, space, large or space > settings.large_space)


def answer(call_request: CallRequest, running: RunningCall = RunningCall()) -> Data:
    """Return the answer of a call; `Refusal` for everything refused, never another exception."""
    call = find_call(call_request.name)
    assert call is not None
    running = replace(running, end_s=time.monotonic() + time_left_s(running))

    def work() -> Data:
        _measured(call_request, running.settings)
        return call.function(call_request.request, running)

    translated: Data = _translated(call_request.name, work, call_request.request)
    return translated


def call(
    name: str, body: bytes | str | Mapping[str, Any], running: RunningCall = RunningCall()
) -> Data:
    """Return the answer to a body; `Refusal` for everything refused, never another exception."""
    return answer(read_request(name, body, running.settings), running)


def _translated(name: str, work: Callable[[], Any], request: Request) -> Any:
    """Return what some work returns, with every exception translated into `Refusal`."""
    try:
        return work()
    except KeyboardInterrupt:
        raise
    except Refusal as problem:
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


def _catalogue(request: schemas.CatalogueBody, running: RunningCall) -> Data:
    from planner.analyze.catalogue import catalogue_json

    return catalogue_json(request.name)


def _rules(request: schemas.RulesBody, running: RunningCall) -> Data:
    from planner.analyze.catalogue import rules_json

    return rules_json(request.code)


def _check_spec(request: schemas.CheckSpecBody, running: RunningCall) -> Data:
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
            schemas.SolveBody,
            answers.SolveAnswer,
            "solve",
            "small",
            solve_answer,
            "Rank the layouts of a training job on a cluster",
        ),
        ServiceCall(
            "evaluate",
            schemas.EvaluateBody,
            answers.SolveAnswer,
            "solve",
            "small",
            evaluate_answer,
            "Price one layout, whether or not it fits",
        ),
        ServiceCall(
            "explain",
            schemas.ExplainBody,
            answers.ExplainAnswer,
            "solve",
            "small",
            explain_answer,
            "Explain one plan in words, or one term down to its formula",
        ),
        ServiceCall(
            "emit",
            schemas.EmitBody,
            answers.EmitAnswer,
            "solve",
            "small",
            emit_answer,
            "Write the framework configuration that runs one plan",
        ),
        ServiceCall(
            "check",
            schemas.CheckBody,
            answers.CheckAnswer,
            "solve",
            "small",
            check_answer,
            "Judge an existing run",
        ),
        ServiceCall(
            "diff",
            schemas.DiffBody,
            answers.DiffAnswer,
            "solve",
            "small",
            diff_answer,
            "Say term by term why one plan beats another",
        ),
        ServiceCall(
            "scale",
            schemas.ScaleBody,
            answers.ScaleAnswer,
            "solve",
            "large",
            scale_answer,
            "Find the best plan at each number of devices",
            rows=True,
        ),
        ServiceCall(
            "batch-solve",
            schemas.BatchSolveBody,
            answers.BatchSolveAnswer,
            "solve",
            "large",
            batch_solve_answer,
            "Solve several jobs on several kinds of devices, at several numbers of them",
            rows=True,
        ),
        ServiceCall(
            "allocate",
            schemas.AllocateBody,
            answers.AllocateAnswer,
            "solve",
            "small",
            allocate_answer,
            "Share free nodes among jobs, by the curve of each",
        ),
        ServiceCall(
            "sweep",
            schemas.SweepBody,
            answers.SweepAnswer,
            "solve",
            "large",
            sweep_points_answer,
            "Search every point of a design over models, jobs and clusters",
            rows=True,
        ),
        ServiceCall(
            "replan",
            schemas.ReplanBody,
            answers.ReplanAnswer,
            "solve",
            "small",
            replan_answer,
            "Say what to do with a running plan after nodes were lost or gained",
        ),
        ServiceCall(
            "place",
            schemas.PlaceBody,
            answers.PlaceAnswer,
            "solve",
            "small",
            place_answer,
            "Map the ranks of a plan to hosts",
            indent=None,
        ),
        ServiceCall(
            "trace",
            schemas.TraceBody,
            answers.TraceAnswer,
            "solve",
            "small",
            trace_answer,
            "Draw one step of a plan in time, as a trace file",
        ),
        ServiceCall(
            "catalogue",
            schemas.CatalogueBody,
            answers.CatalogueAnswer,
            "read",
            "small",
            _catalogue,
            "Figures of accelerators, links and platforms with their sources",
        ),
        ServiceCall(
            "rules",
            schemas.RulesBody,
            answers.RulesAnswer,
            "read",
            "small",
            _rules,
            "Rules that reject layouts or settings",
        ),
        ServiceCall(
            "check-spec",
            schemas.CheckSpecBody,
            answers.CheckSpecAnswer,
            "read",
            "small",
            _check_spec,
            "Check a model or cluster file and say what it describes",
        ),
    )
}
"""By name."""
