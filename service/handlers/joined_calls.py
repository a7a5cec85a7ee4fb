"""Plans over several pools through the calls about one plan."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from planner.errors import PlannerError
from service.handlers.limits import too_much
from service.handlers.problems import Fault, refused
from service.handlers.schemas import PlaceBody, ReplanBody

Data = dict[str, Any]


@contextmanager
def broken_result(source: str) -> Iterator[None]:
    """Refuse a result that is not as the planner wrote it, whatever error that ends in."""
    try:
        yield
    except PlannerError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        detail = f"{source} is not as planner wrote it: {type(error).__name__}: {error}"[:200]
        fault = Fault(detail, "send the whole answer of solve", "result")
        raise refused("bad-specification", detail, 422, [fault]) from None


def open_joined_of(data: Mapping[str, Any], which: str, source: str) -> Any:
    """Return the plan over several pools that a request names, priced again; None for another.

    (`planner.solver.together.opened.OpenedSeveral`.)
    """
    from planner.solver.answer.result_store import checked_result, joined_plan_of
    from planner.solver.together.opened import open_joined

    if not data.get("together"):
        return None
    with broken_result(source):
        read = checked_result(dict(data), source)
        plan = joined_plan_of(read, which)
        return open_joined(read, plan, source) if plan else None


def with_note(answer: Data, *opened: Any) -> Data:
    """Return an answer with how far plans are from what their results say, if they are."""
    notes = [x.note for x in opened if x.note]
    return {**answer, **({"note": "; ".join(notes)} if notes else {})}


def joined_explanation(opened: Any, term: str) -> Data:
    """Return a plan over several pools in words."""
    from planner.analyze.several_pools import explain_several
    from planner.render.answers.joined.explanation import joined_explanation_json

    return with_note(joined_explanation_json(explain_several(opened, term)), opened)


def joined_replan(opened: Any, request: ReplanBody, execution: Any, most_hosts: int) -> Any:
    """Return what to do with a plan over several pools after nodes of some were lost."""
    from planner.analyze.joined.nodes import lost_texts
    from planner.analyze.joined.replan import replan_joined

    lost: int | tuple[str, ...] = ()
    if isinstance(request.lost, int):
        lost = request.lost or ()
    else:
        texts = [request.lost] if isinstance(request.lost, str) else request.lost
        lost = tuple(x for text in texts for x in lost_texts(text))
        if len(lost) > most_hosts:
            raise too_much("hosts", len(lost), most_hosts, "lost", "name fewer nodes")
    gained = gained_in(request)
    return replan_joined(opened, execution, lost=lost, gained=gained, via=request.via)


def gained_in(request: ReplanBody) -> int | dict[str, int]:
    """Return the nodes that a request says to have joined; `Refusal` for both forms at once."""
    if request.gained and request.gained_by_pool:
        detail = "gained and gained_by_pool are two forms of one number"
        fault = Fault(detail, "send one of them", "gained_by_pool")
        raise refused("bad-specification", detail, 422, [fault])
    return request.gained_by_pool or request.gained


def check_gained(opened: Any, request: ReplanBody, most_devices: int) -> None:
    """Refuse nodes that joined a pool of a plan over several where they are too many."""
    by_pool = {pool.name: pool for pool in opened.cluster.cluster.pools}
    for name, n in request.gained_by_pool.items():
        if name in by_pool:
            pool = by_pool[name]
            n_devices = (pool.n_nodes + n) * pool.devices_per_node
            if n_devices > most_devices:
                what = "name fewer nodes"
                raise too_much("devices", n_devices, most_devices, "gained_by_pool", what)


def joined_trace(opened: Any, micro_batches: int) -> Data:
    """Return one step of a plan over several pools in time."""
    from planner.analyze.several_pools import trace_several_json

    text = trace_several_json(opened, micro_batches)
    return with_note({"plan_id": opened.plan.plan_id, "trace": text}, opened)


def joined_place(data: Mapping[str, Any], which: str, source: str, request: PlaceBody) -> Data:
    """Return the ranks of a plan over several pools; empty where the request names another."""
    from planner.analyze.joined_files import check_own_hosts, joined_heading, joined_placement
    from planner.render.answers.joined.placement import joined_placement_document
    from planner.render.terminal import terminal_text

    plan = _joined_plan(data, which, source)
    if plan is None:
        return {}
    check_own_hosts(request.hosts)
    with broken_result(source):
        placed = joined_placement(data, plan)
    answer = placed.to_json()
    if request.with_text:
        heading = joined_heading(data, plan)
        answer["text"] = terminal_text(joined_placement_document(placed, heading))
    return answer


def _joined_plan(data: Mapping[str, Any], which: str, source: str) -> Any:
    """Return the plan over several pools that a request names, as saved; None for another."""
    from planner.solver.answer.result_store import checked_result, joined_plan_of

    if not data.get("together"):
        return None
    with broken_result(source):
        return joined_plan_of(checked_result(dict(data), source), which)


def joined_files_of(
    data: Mapping[str, Any],
    which: str,
    source: str,
    targets: Sequence[str],
    launchers: Sequence[str],
) -> Data:
    """Return the files of a plan over several pools; empty where the request names another."""
    from planner.analyze.joined_files import joined_files
    from planner.frameworks.emit import refusal_file

    plan = _joined_plan(data, which, source)
    if plan is None:
        return {}
    with broken_result(source):
        files = joined_files(data, plan, targets, launchers)
    refusals = {target: refusal_file(target) for target in targets}
    reasons = {target: files[name] for target, name in refusals.items() if name in files}
    return {"plan_id": plan.plan_id, "files": files, "refused": reasons}
