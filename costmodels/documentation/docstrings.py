"""What a function of the cost model says of itself: equation, source, what it leaves out.

A docstring tells a formula once; explanations, cards and the documentation read it from there.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FunctionText:
    """A docstring by its parts, each on one line; empty where it has none."""

    home: str
    """Module and name."""
    text: str
    """All of it, up to its doctest."""
    equation: str
    """Its first paragraph that starts with `t = ` or another symbol and an equals sign."""
    source: str
    left_out: str


def function_text(function: Callable[..., object]) -> FunctionText:
    """Return what the docstring of a function says.

    >>> from costmodels.comm.collectives import direct_gather_s
    >>> function_text(direct_gather_s).equation
    't = base + (P - 1)/P n / B_link'
    """
    text = (inspect.getdoc(function) or "").split("\n>>> ")[0].rstrip()
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    equation = next((x for x in paragraphs if re.match(r"\w+ = ", x)), "")
    body = " ".join(paragraphs)
    return FunctionText(
        f"{function.__module__}.{function.__qualname__}",
        text,
        equation,
        _behind(body, "Source"),
        _behind(body, "Left out"),
    )


def _behind(body: str, label: str) -> str:
    """Return what follows a label, up to the next one."""
    pattern = rf"(?:^|\s){label}: (.*?)(?= (?:Source|Left out)(?: of [^:]*)?: |$)"
    match = re.search(pattern, body)
    return match[1].rstrip(".") if match else ""
