"""`planner.sweep`: a sweep from Python, run and read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from planner.solver.keywords import check_keywords
from planner.sweeps.reader import SweepRows, read_sweep
from planner.sweeps.run import Progress, SweepExecution, run_sweep
from planner.sweeps.spec.spec import load_sweep, sweep_from_dict


class SweepKeywords(TypedDict, total=False):
    """Keywords of `planner.sweep`: fields of `SweepExecution`."""

    executor: str
    ray_address: str
    point_limit_s: float
    progress: Progress | None


def sweep(
    source: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    form: str = "",
    **keywords: Unpack[SweepKeywords],
) -> SweepRows:
    """Search the points of a sweep that have no row in `out` yet; return the rows.

    `source` is a sweep file or a dict of its structure; `form` is that of `run_sweep`, the other
    keywords are fields of its `SweepExecution`. Where Ctrl-C ended the run the rows so far are
    returned, with `finished` False, and the same call goes on; before any row it comes through.
    Raises `SpecError` for a bad sweep, `UsageError` for a bad option and `SweepFileError` where
    rows cannot be kept.
    """
    check_keywords(SweepKeywords, keywords)
    requested = sweep_from_dict(source) if isinstance(source, Mapping) else load_sweep(source)
    run = run_sweep(requested, out, SweepExecution(**keywords), form=form)
    if run.interrupted and not run.n_done:
        raise KeyboardInterrupt
    return read_sweep(Path(out))
