"""A visit without a network: calls are computed in this process, jobs are not kept."""

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from service.access.caller import Caller
from service.engine import CallAnswer, request_body
from service.handlers.calls import call, dumps
from service.handlers.limits import DEFAULTS
from service.pages.gate import reloading  # noqa: F401  the package is whole
from service.pages.routes import find
from service.pages.visit import Page, Visit, fields_of


class Answering:
    """What pages use of an engine, without workers and jobs."""

    _answers: ClassVar[dict[tuple[str, bytes], bytes]] = {}

    def cached(self, name: str, body: bytes, caller: Caller) -> CallAnswer | None:
        return None

    async def call(self, name: str, body: Any, caller: Caller) -> CallAnswer:
        key = (name, request_body(body))
        if key not in self._answers:
            self._answers[key] = dumps(call(name, body), name).encode()
        return CallAnswer(200, self._answers[key], "", False, True)

    async def list_jobs(self, *args: Any, **named: Any) -> tuple[list[Any], str]:
        return [], ""

    class jobs:
        @staticmethod
        def notes(*args: Any) -> dict[str, Any]:
            return {}


def visit(address: str, **more: Any) -> Visit:
    """Return a visit of an address such as `/ui/plans?model=...`."""
    path, _, query = address.partition("?")
    given: Any = {
        "engine": Answering(),
        "settings": DEFAULTS,
        "caller": Caller("ann"),
        "root": "",
        "path": path,
        "query": fields_of(query.encode()),
    }
    return Visit(**{**given, **more})


def page(address: str, method: str = "GET", **more: Any) -> Page:
    """Return what a page answers."""
    asked = visit(address, **more)
    found = find(method, asked.path)
    assert found is not None, address
    route, asked.parts = found
    answer = asyncio.run(route.function(asked))  # type: ignore[arg-type]
    return answer if isinstance(answer, Page) else Page(answer)


def text(found: Page) -> str:
    return found.content.decode() if isinstance(found.content, bytes) else found.content


def form(**fields: str) -> Mapping[str, tuple[str, ...]]:
    return {name: (value,) for name, value in fields.items()}
