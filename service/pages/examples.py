"""The packaged examples and parts as lists to choose from: name and what it is, in a sentence."""

import re
from functools import cache
from typing import Literal

from planner.specs.examples import example_content, example_names, example_sweeps

MOST_CHARS = 120


@cache
def examples(kind: Literal["model", "cluster"]) -> tuple[tuple[str, str], ...]:
    """Return names and descriptions of the examples of a kind."""
    return tuple((name, said_first(example_text(kind, name))) for name in example_names(kind))


@cache
def gpus() -> tuple[tuple[str, str], ...]:
    """Return accelerators by the name that people say, and what they are in full."""
    from hardware.catalogue import load_catalogue

    parts = load_catalogue().accelerators.values()
    return tuple(((*x.aliases, x.name)[0], f"{x.vendor} {x.name}") for x in parts)


def example_text(kind: Literal["model", "cluster"], name: str) -> str:
    """Return what an example's file holds."""
    return str(example_content(kind, name).content)


@cache
def sweeps() -> tuple[tuple[str, str], ...]:
    """Return names and descriptions of the packaged sweeps."""
    return tuple((name, said_first(sweep_text(name))) for name in example_sweeps())


@cache
def sweep_text(name: str) -> str:
    """Return what the file of a packaged sweep holds; empty where there is none."""
    path = example_sweeps().get(name)
    return path.read_text(encoding="utf-8") if path else ""


def said_first(text: str) -> str:
    r"""Return the first sentence of the comment that a file begins with.

    >>> said_first("# One node. Eight devices\nname: x")
    'One node.'
    """
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    message = re.split(r"(?<=[a-z0-9)?B])[.:?](?= |$)", " ".join(lines), maxsplit=1)[0].strip()
    return message if len(message) <= MOST_CHARS else message[: MOST_CHARS - 1].rstrip() + "…"
