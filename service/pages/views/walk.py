"""The view of the decision step by step: `planner recommend layout` as a page."""

import asyncio
from typing import Any

from service.handlers import schemas
from service.handlers.documents import calibration_in, reference_in
from service.handlers.handlers import (
    PAGE_PREFIX,
    RunningCall,
    ServiceCall,
    contents_of,
    sets_of_request,
)
from service.pages.question import query_of, title_of
from service.pages.render import render_page
from service.pages.views.plans import option_words
from service.pages.visit import Data, Visit

WALK_CALL = f"{PAGE_PREFIX}walk"


class WalkRequest(schemas.SolveRequest):
    """A solve, of which the decision is walked; its objective is the step time."""


class WalkAnswer(schemas.Answer):
    """The walk as data."""

    answer: dict[str, Any] | None


def _walk(request: WalkRequest, running: RunningCall) -> Data:
    from planner.analyze.recommend.devices import recommend
    from planner.render.walk_text import conclusion, walk_end

    settings = running.settings
    found = recommend(
        "layout",
        *contents_of(request, settings),
        pins=request.pins,
        only=request.only,
        at_most=request.max,
        framework=request.framework or "default",
        stack=request.stack,
        allow=tuple(request.allow),
        overrides=sets_of_request(request.set),
        calibration=calibration_in(request.calibration, settings),
        reference=reference_in(request.reference, request.files, settings),
    )
    answer = dict(found.answer) if found.answer else None
    return {
        "answer": answer,
        "conclusions": [conclusion(step) for step in answer["steps"]] if answer else [],
        "end": walk_end(answer) if answer else "",
        "scope": found.scope,
        "command": found.command,
    }


PAGE_CALLS = {
    WALK_CALL: ServiceCall(
        WALK_CALL,
        WalkRequest,
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
    found = answer["answer"]
    steps = list(zip(found["steps"], answer["conclusions"], strict=True)) if found else []
    return render_page(
        visit,
        "walk.html.j2",
        found=found,
        steps=steps,
        end=answer["end"],
        scope=answer["scope"],
        name=title_of(request),
        query=query_of(request),
        options=option_words(request),
    )


PAGES = {"/ui/walk": walk_page}
