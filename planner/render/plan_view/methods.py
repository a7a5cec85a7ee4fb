"""Derivations that cards refer to: the documentation of the functions that compute each term."""

from collections.abc import Collection
from dataclasses import dataclass

from planner.analyze.run_terms import RUN_TERMS
from planner.analyze.terms import TERMS, documentation, function_home


@dataclass(frozen=True, slots=True)
class Method:
    """How one term is computed."""

    key: str
    title: str
    parts: tuple[tuple[str, str], ...]
    """Functions and what they say: equation, source, what is left out."""


def methods(used: Collection[str]) -> tuple[Method, ...]:
    """Return the derivations that some cards name, in the order of the terms."""
    known = {**TERMS, **RUN_TERMS}
    return tuple(
        Method(
            name, term.title, tuple((function_home(f), documentation(f)) for f in term.functions)
        )
        for name, term in known.items()
        if name in used
    )
