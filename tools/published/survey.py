"""One published setting: how `check` judges it, what it costs, where it stands."""

from collections.abc import Mapping
from typing import Any

from costmodels.schedule.stages import SPLITS
from planner.analyze.check.check import check, run_options
from planner.analyze.check.report import Report
from planner.analyze.check.standing import search_beside
from planner.errors import PlannerError
from planner.specs.inputs import Content
from planner.specs.search.axis_values import layout_to_json
from searches.frameworks.table import refusals
from searches.rules import RULES, rules_that_break
from tools.published.examples import USUAL_DEVICES, Example

GB = 1e9
PRICED, NO_FIT, REFUSED, NOT_MODELLED = (
    "fits",
    "does not fit",
    "refused by rule",
    "not modelled",
)
UNJUDGED = "memory not judged"
"""Outcomes, one a row."""


def judged(example: Example, n_devices: int, *, searched: bool = True) -> Report:
    """Return the report of `check` on so many devices, without the best plan unless `searched`."""
    file = example.read
    what = Content(file) if isinstance(file, str) else str(file)
    stop = None if searched else (lambda: True)
    return check(what, example.cluster(n_devices), stop=stop)


def row_of(example: Example) -> dict[str, Any]:
    """Return the row of an example."""
    head = {"source": example.source, "file": example.file, "part": example.part}
    if example.why_not:
        return {**head, "outcome": NOT_MODELLED, "reason": example.why_not}
    try:
        n, named = _devices(example)
        report = judged(example, n)
    except PlannerError as error:
        text = " ".join(error.message.split())
        at = str(example.read)
        return {
            **head,
            "n_devices": example.named_devices,
            "outcome": NOT_MODELLED,
            "reason": text.removeprefix(at).lstrip(": "),
        }
    return {**head, "n_devices": n, "devices_from": named, **_judgement(report)}


def _devices(example: Example) -> tuple[int, str]:
    """Return on how many devices an example is judged, and where the number is from.

    Named by the example; else the fewest on which its rules hold and it fits, or the fewest on
    which its rules hold where it fits on none.
    """
    if example.named_devices:
        return example.named_devices, "the example"
    first = 0
    for n in USUAL_DEVICES:
        report = judged(example, n, searched=False)
        if report.refusals or report.plan is None or report.plan.layout.n_devices != n:
            continue
        first = first or n
        if report.fits is not False:
            return n, "the fewest on which its batch divides and it fits"
    return first or USUAL_DEVICES[0], "the fewest on which its batch divides"


def _judgement(report: Report) -> dict[str, Any]:
    """Return what a report says, as the fields of a row."""
    run, plan = report.run, report.plan
    model = report.model
    rules = [
        {"code": one.rule.code, "reason": one.reason, "kind": kind}
        for kind, many in (("refused", report.refusals), ("ignored", report.ignored))
        for one in many
    ]
    row: dict[str, Any] = {
        "framework": run.framework,
        "model": model.shape.name if model else "",
        "outcome": _outcome(report),
        "reason": report.not_priced or report.memory_not_judged,
        "rules": rules,
        "not_understood": [doubt.text for doubt in run.doubts],
        "priced_as": list(report.repairs),
        "notes": list(report.notes),
    }
    if plan is None or model is None:
        return row
    row |= {
        "seq_len": model.job.seq_len,
        "precision": model.job.precision,
        "layout": layout_to_json(plan.layout),
        "peak_gb": _rounded(plan.breakdown.peak_bytes / GB),
        "usable_gb": _rounded(plan.usable_bytes / GB),
        "step_s": _rounded(plan.step_time_s),
        "step_p10_s": _rounded(plan.step_time_p10_s),
        "step_p90_s": _rounded(plan.step_time_p90_s),
        "changes": [
            {"text": change.text, "gain_frac": _rounded(change.gain_frac)}
            for change in report.changes
        ],
    }
    standing = report.standing
    if standing is None or standing.best is None:
        closed = [f"{one.rule.code} {one.rule.title}" for one in report.unwritten]
        return {**row, "no_search": "; ".join(closed) or "no plan fits"}
    best = standing.best
    return {
        **row,
        "best": {
            "layout": layout_to_json(best.layout),
            "step_s": _rounded(best.step_time_s),
            "peak_gb": _rounded(best.breakdown.peak_bytes / GB),
        },
        "ratio": _rounded(plan.step_time_s / best.step_time_s),
        "rank": standing.rank,
        "n_fit": standing.n_fit,
        "outside": _outside(report),
    }


def _outcome(report: Report) -> str:
    if report.refusals:
        return REFUSED
    if report.plan is None:
        return NOT_MODELLED
    if report.fits is None:
        return UNJUDGED
    return PRICED if report.fits else NO_FIT


def _outside(report: Report) -> list[dict[str, str]]:
    """Return what keeps the layout out of the search beside it; [] where it is inside.

    Rules of the space, layers of stages by hand, and what we do not write for the framework.
    """
    if report.plan is None or report.model is None:
        return []
    layout = report.plan.layout
    options = run_options(report.run, layout, report.calibration)
    context = search_beside(report.model, report.cluster, options)
    broken = [
        {"code": code, "title": RULES[code].title}
        for code in dict.fromkeys(rules_that_break(context, layout))
        if code in RULES
    ]
    if layout.split not in SPLITS:
        broken.append({"code": "", "title": "layers of stages by hand"})
    vendor = report.cluster.cluster.pools[0].accelerator.vendor
    model = report.model
    told = refusals(report.run.framework, layout, model.shape, model.job, vendor)
    return broken + [{"code": "", "title": text} for text in told]


def _rounded(value: float) -> float:
    """Return a number with five digits: rows do not change in the last bits."""
    return float(f"{value:.5g}")


def stable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without empty fields."""
    return {key: value for key, value in row.items() if value not in (None, "", [], ())}
