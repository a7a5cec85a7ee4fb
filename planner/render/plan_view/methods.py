"""Derivations that cards refer to: the documentation of the functions that compute each term."""

from collections.abc import Collection
from dataclasses import dataclass

from costmodels.documentation.terms import RUN_TERMS, TERMS


@dataclass(frozen=True, slots=True)
class Method:
    """How one term is computed."""

    key: str
    title: str
    parts: tuple[tuple[str, str], ...]
    """Functions and what they say: equation, source, what is left out."""


def methods(used: Collection[str]) -> tuple[Method, ...]:
    """Return the derivations that some cards name, in the order of the terms."""
    return tuple(
        Method(name, term.title, tuple((part.home, part.text) for part in term.texts))
        for name, term in {**TERMS, **RUN_TERMS}.items()
        if name in used
    )
