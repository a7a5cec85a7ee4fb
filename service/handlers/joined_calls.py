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

    (`planner.solver.together.opened.OpenedJoined`.)
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
    from planner.analyze.joined.explanation import explain_joined
    from planner.render.answers.joined.explanation import joined_explanation_json

    return with_note(joined_explanation_json(explain_joined(opened, term)), opened)


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
    return replan_joined(opened, execution, lost=lost, gained=request.gained, via=request.via)


def joined_trace(opened: Any, micro_batches: int) -> Data:
    """Return one step of a plan over several pools in time."""
    from planner.analyze.joined.timeline import joined_trace_json

    text = joined_trace_json(opened, micro_batches)
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
