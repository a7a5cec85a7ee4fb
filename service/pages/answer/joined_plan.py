"""What the page of a plan over several pools shows: its card, what explains it, its trace."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.solver.answer.result import Result
    from planner.solver.together.opened import OpenedSeveral

Data = dict[str, Any]


def joined_plan_page(opened: "OpenedSeveral", data: Mapping[str, Any], trace_link: str) -> Data:
    """Return title and body of the page of a plan; `data` is the answer that it is of."""
    from dataclasses import replace

    from planner.analyze.several_pools import explain_several
    from planner.render.card.html import card_html
    from planner.render.card.joined import joined_card_of
    from planner.render.document import answer_document
    from planner.render.html import html

    plan = opened.plan
    inputs = data["inputs"]
    names = inputs["model"]["model"]["name"], inputs["cluster"]["name"]
    title = f"Plan t{plan.rank} over {' and '.join(plan.devices)}: {names[0]} on {names[1]}"
    card = card_html(replace(joined_card_of(data, plan), commands=()), is_styled=False)
    explained = html(answer_document(explain_several(opened))[1:])  # the card says the first
    link = f'<a href="{escape(trace_link)}">Download the trace of this step</a>'
    trace = f'<p class="data">{link} for Perfetto (ui.perfetto.dev) or chrome://tracing.</p>'
    body = "\n".join(
        [
            f"<h1>{escape(title)}</h1>",
            card,
            f'<section class="together"><h2>What explains it</h2>{explained}</section>',
            f"<section><h2>Timeline of a step</h2>{trace}</section>" if trace_link else "",
        ]
    )
    return {
        "title": title,
        "body": body,
        "figures": {},
        "runner": next(iter(plan.runs_on), ""),
        "plan_id": plan.plan_id,
        "named": f"t{plan.rank}",
        **({"note": opened.note} if opened.note else {}),
    }


def joined_trace_file(opened: "OpenedSeveral") -> Data:
    """Return the trace of one step: whole, or of a long one its first and last micro-batches."""
    from planner.analyze.several_pools import trace_several_json
    from planner.render.plan_view.data import TRACE_BLOCKS, TRACE_MICRO_BATCHES

    plan = opened.plan
    blocks = 2 * sum(len(kind.stages) for kind in plan.kinds)
    is_long = blocks * max(kind.n_micro for kind in plan.kinds) > TRACE_BLOCKS
    cut = max(1, min(TRACE_MICRO_BATCHES, TRACE_BLOCKS // blocks)) if is_long else 0
    return {"name": f"{plan.plan_id}-step.json", "text": trace_several_json(opened, cut)}


def joined_plan_names(result: "Result") -> list[str]:
    """Return what plans over several pools are called in addresses, the first first."""
    together = result.together
    return [f"t{plan.rank}" for plan in together.plans] if together else []
