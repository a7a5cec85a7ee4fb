"""What commands on one plan do where it uses several pools."""

from typing import TYPE_CHECKING, Any

from planner.solver.answer.result_store import joined_plan_of, plan_named, read_plan_reference

if TYPE_CHECKING:
    from planner.solver.together.opened import OpenedSeveral


def joined_opened(reference: str) -> "OpenedSeveral | None":
    """Return the plan over several pools that a PLAN argument names, priced again, if it does.

    Where the saved figures differ a note goes to stderr.
    """
    data, which = read_plan_reference(reference)
    plan = joined_plan_of(data, which)
    if plan is None:
        return None
    from planner.solver.together.opened import opened_joined  # 100 ms: tables of several pools

    return opened_joined(data, plan, plan_named(reference)[0])


def joined_explanation(opened: "OpenedSeveral", term: str, width: int) -> dict[str, Any]:
    """Return what `planner explain` says of it."""
    from planner.analyze.several_pools import explain_several
    from planner.render.answers.joined.explanation import joined_explanation_json

    return joined_explanation_json(explain_several(opened, term), width)
