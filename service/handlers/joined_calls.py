"""Plans over several pools through the calls about one plan."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from planner.errors import PlannerError
from service.handlers.limits import too_much
from service.handlers.problems import Fault, refused
from service.handlers.schemas import ReplanBody

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
    from planner.solver.answer.result_store import checked_result, joined_plan_of

    if not data.get("together"):
        return {}
    with broken_result(source):
        read = checked_result(dict(data), source)
        plan = joined_plan_of(read, which)
        files = joined_files(read, plan, targets, launchers) if plan else {}
    if plan is None:
        return {}
    refusals = {target: refusal_file(target) for target in targets}
    reasons = {target: files[name] for target, name in refusals.items() if name in files}
    return {"plan_id": plan.plan_id, "files": files, "refused": reasons}
