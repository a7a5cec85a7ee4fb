"""The view of the decision step by step: `planner recommend layout` as a page."""

import asyncio
from typing import Any

from service.handlers import answers, schemas
from service.handlers.calls import PAGE_PREFIX, ServiceCall
from service.handlers.request_contents import contents_of, search_of
from service.handlers.running_call import RunningCall
from service.pages.question import question_query, title_of
from service.pages.render import render_page
from service.pages.views.plans import option_words
from service.pages.visit import Data, Visit

WALK_CALL = f"{PAGE_PREFIX}walk"


class WalkBody(schemas.SolveBody):
    """A solve, of which the decision is walked; its objective is the step time."""


class WalkAnswer(answers.AnswerBody):
    """The walk as data."""

    answer: dict[str, Any] | None


def _walk(request: WalkBody, running: RunningCall) -> Data:
    from planner.analyze.recommend.questions import recommend
    from planner.render.answers.recommendation import conclusion, walk_end

    settings = running.settings
    result = recommend(
        "layout",
        *contents_of(request, settings),
        search_of(request, settings).without_goals(),
    )
    answer = dict(result.answer) if result.answer else None
    return {
        "answer": answer,
        "conclusions": [conclusion(step) for step in answer["steps"]] if answer else [],
        "end": walk_end(answer) if answer else "",
        "scope": result.scope,
        "command": result.command,
    }


PAGE_CALLS = {
    WALK_CALL: ServiceCall(
        WALK_CALL,
        WalkBody,
        WalkAnswer,
        "solve",
        "small",
        _walk,
        "The decision about a layout step by step",
        indent=None,
    ),
}


async def walk_page(visit: Visit) -> str:
    """Walk the decision of a question; without one, say how to ask."""
    request = visit.question()
    if request is None:
        return render_page(
            visit,
            "unasked.html.j2",
            title="Step by step",
            what="the decision about a layout, walked as an expert would",
        )
    request.pop("top", None)
    answer = await visit.ask_patiently(WALK_CALL, request)
    return await asyncio.to_thread(_page, visit, request, answer)


def _page(visit: Visit, request: Data, answer: Data) -> str:
    result = answer["answer"]
    steps = list(zip(result["steps"], answer["conclusions"], strict=True)) if result else []
    return render_page(
        visit,
        "walk.html.j2",
        found=result,
        steps=steps,
        end=answer["end"],
        scope=answer["scope"],
        name=title_of(request),
        query=question_query(request),
        options=option_words(request),
    )


PAGES = {"/ui/walk": walk_page}
