"""Which function answers which address: gathered from the modules of this package.

A module states `PAGES`, and `POSTS` for forms: paths such as `/ui/learn/{name}` and coroutines
that take a `Visit` and return a `Page` or the text of one.
"""

import importlib
import pkgutil
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import service.pages
import service.pages.views
from service.pages.visit import Page, Visit

_PART = re.compile(r"\\\{([a-z_]+)\\\}")
Handler = Callable[[Visit], Awaitable["Page | str"]]


@dataclass(frozen=True, slots=True)
class Route:
    """One address, or all of one pattern."""

    method: str
    path: str
    pattern: re.Pattern[str]
    function: Handler


def modules() -> Iterator[ModuleType]:
    """Yield the modules of this package and of its views, by name."""
    for package in (service.pages, service.pages.views):
        for name in sorted(each.name for each in pkgutil.iter_modules(package.__path__)):
            yield importlib.import_module(f"{package.__name__}.{name}")


@cache
def routes() -> tuple[Route, ...]:
    """Return all routes, those without parameters first."""
    results = []
    for module in modules():
        for method, name in (("GET", "PAGES"), ("POST", "POSTS")):
            for path, function in vars(module).get(name, {}).items():
                pattern = re.compile(_PART.sub(r"(?P<\1>[^/]+)", re.escape(path)))
                results.append(Route(method, path, pattern, function))
    return tuple(sorted(results, key=lambda each: ("{" in each.path, each.path)))


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a request and the parts of the path; None where there is none."""
    for route in routes():
        match = route.pattern.fullmatch(path)
        if match and route.method == method:
            return route, match.groupdict()
    return None


def methods_of(path: str) -> list[str]:
    """Return the methods that a path answers."""
    return sorted({each.method for each in routes() if each.pattern.fullmatch(path)})
