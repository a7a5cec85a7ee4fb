"""The calls that answer with plans, or are about one: from `solve` to `check`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError
from planner.solver.request import override_pairs
from service.handlers import schemas
from service.handlers.documents import calibration_in, content_of, files_of, hosts_in, run_document
from service.handlers.joined_calls import (
    check_gained,
    gained_in,
    joined_explanation,
    joined_files_of,
    joined_place,
    joined_replan,
    joined_trace,
    open_joined_of,
    with_note,
)
from service.handlers.limits import RequestLimits, check_input_limits, check_model, too_much
from service.handlers.problems import Fault, refused
from service.handlers.request_contents import contents_of, errors_inside, search_of
from service.handlers.running_call import RunningCall, search_progress, stop_of

Data = dict[str, Any]


def solved_result(request: schemas.SolveBody, running: RunningCall) -> Any:
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
        stop=stop_of(running),
        progress=search_progress(running, "search"),
        shared=running.shared,
    )


def _evaluated(request: schemas.EvaluateBody, running: RunningCall) -> Any:
    from planner.solver.solve import evaluate

    settings = running.settings
    model, cluster = contents_of(request, settings)
    return evaluate(model, cluster, search_of(request, settings))


def solve_answer(request: schemas.SolveBody, running: RunningCall) -> Data:
    """Return ranked plans."""
    result: Data = solved_result(request, running).to_json()
    return result


def evaluate_answer(request: schemas.EvaluateBody, running: RunningCall) -> Data:
    """Return one plan, whether or not it fits."""
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


@dataclass(frozen=True, slots=True)
class NamedResult:
    """The answer that a request's plan is of."""

    data: Data
    source: str
    """What messages call it."""
    stopped: str
    """Where its search was stopped."""


def named_result(request: schemas.PlanOf, running: RunningCall) -> NamedResult:
    """Return the answer whose plan a request names: given, or answered again."""
    if request.result is None:
        with errors_inside("solve" if request.solve else "evaluate"):
            result = (
                solved_result(request.solve, running)
                if request.solve
                else _evaluated(request.evaluate, running)  # type: ignore[arg-type]  # one of them is there
            )
        return NamedResult(result.to_json(), "the result", result.stopped)
    data = dict(request.result)
    _check_result(data, running.settings)
    return NamedResult(data, "the result given", "")


def open_request_plan(
    request: schemas.PlanOf, running: RunningCall, named: NamedResult | None = None
) -> OpenedPlan:
    """Return the plan that a request names; `Refusal` where its result has none such.

    `named` is its result, if that is known.
    """
    from planner.solver.answer.result_store import (
        checked_result,
        plan_of_result,
        read_options,
        repriced_note_of,
    )

    which = str(request.plan)
    named = named or named_result(request, running)
    data, source, stopped = named.data, named.source, named.stopped
    try:
        data = checked_result(data, source)
        opened = plan_of_result(data, which, source)
        options = read_options(data["inputs"]["options"])
        note = repriced_note_of(data, which, source, opened[3])
    except PlannerError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        if request.result is None:
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


def explain_answer(request: schemas.ExplainBody, running: RunningCall) -> Data:
    """Return a plan in words."""
    from planner.analyze.explain import explain
    from planner.render.answers.explanation import explanation_json

    named = named_result(request, running)
    if joined := open_joined_of(named.data, str(request.plan), named.source):
        return joined_explanation(joined, request.term)
    request_plan = open_request_plan(request, running, named)
    _, _, problem, plan = request_plan.opened
    explanation = explain(problem, plan, request_plan.options, request.term)
    return request_plan.with_state(explanation_json(explanation))


def emit_answer(request: schemas.EmitBody, running: RunningCall) -> Data:
    """Return the files that run a plan."""
    from planner.analyze.plan_files import FileTargets, chosen_targets, plan_files
    from planner.frameworks.emit import refusal_file
    from planner.frameworks.launchers.files import parse_launchers

    targets = chosen_targets(",".join(request.for_))
    launchers = parse_launchers(",".join(request.launcher))
    hosts = hosts_in(request.hosts)
    named = named_result(request, running)
    which = str(request.plan)
    if joined := joined_files_of(named.data, which, named.source, targets, launchers):
        return joined
    request_plan = open_request_plan(request, running, named)
    options = request_plan.options
    file_targets = FileTargets(targets, launchers, hosts, framework=options.framework)
    files = plan_files(request_plan.opened, options.calibration, file_targets)
    refused = {target: refusal_file(target) for target in targets}
    reasons = {target: files[name] for target, name in refused.items() if name in files}
    plan_id = request_plan.opened[3].plan_id
    return request_plan.with_state({"plan_id": plan_id, "files": files, "refused": reasons})


def place_answer(request: schemas.PlaceBody, running: RunningCall) -> Data:
    """Return the ranks of a plan on hosts."""
    from planner.frameworks.launchers.hosts import chosen_hosts
    from planner.frameworks.launchers.placement import place_plan
    from planner.frameworks.launchers.rank_files import placement_json
    from planner.render.answers.placement import placement_document
    from planner.render.terminal import terminal_text

    value = hosts_in(request.hosts)
    maximum = running.settings.hosts
    if value and len(value) > maximum:
        raise too_much("hosts", len(value), maximum, "hosts", "name those of the plan alone")
    named = named_result(request, running)
    if joined := joined_place(named.data, str(request.plan), named.source, request):
        return joined
    request_plan = open_request_plan(request, running, named)
    model, cluster, problem, plan = request_plan.opened
    names = chosen_hosts(None, cluster) if value is None else value
    fabric = cluster.cluster.fabric
    placement = place_plan(plan.layout, model.shape, problem.pool, fabric, names)
    heading = f"plan {plan.plan_id}, model {model.shape.name}, cluster {cluster.cluster.name}"
    data = placement_json(placement, plan.plan_id)
    return request_plan.with_state(
        _shown(request, data, lambda: terminal_text(placement_document(placement, heading)))
    )


def trace_answer(request: schemas.TraceBody, running: RunningCall) -> Data:
    """Return one step of a plan in time, as the text of a trace file."""
    from planner.analyze.trace.chrome_trace import trace_json

    named = named_result(request, running)
    if joined := open_joined_of(named.data, str(request.plan), named.source):
        return joined_trace(joined, request.micro_batches)
    request_plan = open_request_plan(request, running, named)
    _, _, problem, plan = request_plan.opened
    text = trace_json(problem, plan, request.micro_batches)
    return request_plan.with_state({"plan_id": plan.plan_id, "trace": text})


def _shown(request: schemas.TextBody, data: Data, text: Callable[[], str]) -> Data:
    """Return an answer with its text, where that is asked for."""
    return {**data, "text": text()} if request.with_text else data


def replan_answer(request: schemas.ReplanBody, running: RunningCall) -> Data:
    """Return what to do with a plan after nodes were lost or gained."""
    from planner.analyze.replan.gained import gained_of_pool
    from planner.analyze.replan.replan import replan
    from planner.render.document import text_of
    from planner.solver.execution import Execution
    from searches.executors.executor import SerialExecutor

    named = named_result(request, running)
    execution = Execution(
        SerialExecutor(),
        stop_of(running, request.time_limit_s),
        search_progress(running, "search"),
    )
    if joined := open_joined_of(named.data, str(request.plan), named.source):
        check_gained(joined, request, running.settings.devices)
        moved = joined_replan(joined, request, execution, running.settings.hosts)
        return with_note(_shown(request, moved.to_json(), lambda: text_of(moved)), joined)
    request_plan = open_request_plan(request, running, named)
    settings, maximum = running.settings, running.settings.devices
    per_node = request_plan.opened[1].cluster.pools[0].devices_per_node
    own = request_plan.opened[1].cluster.pools[0]
    gained = gained_of_pool(gained_in(request), own.name)
    n_devices = (own.n_nodes + gained) * per_node
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
    answer = replan(
        request_plan.opened,
        request_plan.options,
        execution,
        lost=lost,
        gained=gained,
        via=request.via,
    )
    return request_plan.with_state(_shown(request, answer.to_json(), lambda: text_of(answer)))


def diff_answer(request: schemas.DiffBody, running: RunningCall) -> Data:
    """Return why one plan beats another."""
    from planner.analyze.comparison import compare
    from planner.render.document import text_of

    with errors_inside("a"):
        named_a = named_result(request.a, running)
        joined_a = open_joined_of(named_a.data, str(request.a.plan), named_a.source)
        first = None if joined_a else open_request_plan(request.a, running, named_a)
    with errors_inside("b"):
        named_b = named_result(request.b, running)
        joined_b = open_joined_of(named_b.data, str(request.b.plan), named_b.source)
        second = None if joined_b else open_request_plan(request.b, running, named_b)
    if first is None or second is None:
        from planner.analyze.joined.comparison import compare_joined

        a: Any = first.opened if first else joined_a
        b: Any = second.opened if second else joined_b
        compared = compare_joined(a, b)
        data = _shown(request, compared.to_json(), lambda: text_of(compared))
        data = with_note(data, *(x for x in (joined_a, joined_b) if x))
        for opened in (first, second):
            data = opened.with_state(data) if opened else data
        return data
    result = compare(first.opened, second.opened)
    data = _shown(request, result.to_json(), lambda: text_of(result))
    return second.with_state(first.with_state(data))


def check_answer(request: schemas.CheckBody, running: RunningCall) -> Data:
    """Return the judgement of an existing run."""
    from planner.analyze.check.check import check
    from planner.frameworks.registry import named_framework
    from planner.render.document import text_of
    from planner.specs.loader import load_cluster, load_model

    settings = running.settings
    if request.framework:
        named_framework(request.framework, "framework")
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
        overrides=override_pairs(request.set),
        pool=request.pool,
        calibration=calibration_in(request.calibration, settings),
        stop=stop_of(running),
    )
    stopped = report.standing.stopped if report.standing else ""
    data = report.to_json() | ({"complete": False, "stopped": stopped} if stopped else {})
    return _shown(request, data, lambda: text_of(report))
