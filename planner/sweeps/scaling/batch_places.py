"""Errors of one job or one cluster of a batch, which say whose they are: `jobs.NAME`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from planner.errors import InputProblem, PlannerError, SpecError


@contextmanager
def named(place: str, other: str = "") -> Iterator[None]:
    """Let errors say of which entry of a batch they are; with `other`, of which two together.

    Where a problem stands in no file, or in what the entry itself holds, its path begins with the
    entry: `jobs.a.model.layers`.
    """
    try:
        yield
    except SpecError as error:
        raise SpecError([_of_entry(one, place) for one in error.problems]) from None
    except PlannerError as error:
        # Joined with `+` a message keeps what it knows of options.
        error.message = (f"{place} on {other}: " if other else f"{place}: ") + error.message
        error.args, error.about = (error.message,), place
        raise


def _of_entry(problem: InputProblem, place: str) -> InputProblem:
    if problem.file == place and problem.line:
        return problem  # lines of a text that has no other name
    path = f"{place}.{problem.path}" if problem.path else place
    return replace(problem, path=path, file="" if problem.file == place else problem.file)
