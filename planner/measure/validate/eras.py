"""Errors by era of the software and by what a run has: experts, fp8, AMD. What the headline says.

An era is a list of families, of which each weighs the same; what a run has is told from the run,
and every row weighs the same. Each line stands beside what one measured step makes of it, how many
steps lie inside their intervals, and the years of the documents.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.measure.validate.metrics import errors, mean
from planner.measure.validate.prediction import PricedCase
from planner.measure.validate.rows import Row, Used
from planner.solver.calibration.anchors import believed
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.intervals import interval_of, regime_of

Floats = NDArray[np.float64]
Plan = Row | Used

YEARS: dict[str, tuple[int, int]] = {
    "aa": (2023, 2023),
    "automodel": (2025, 2026),
    "bs11": (2021, 2022),
    "bs3": (2021, 2021),
    "bsg": (2021, 2022),
    "dgxc": (2024, 2025),
    "dlp": (2021, 2022),
    "fms": (2024, 2024),
    "hfam": (2025, 2026),
    "ie": (2024, 2024),
    "korthikanti22": (2022, 2022),
    "lf": (2023, 2023),
    "mbcard": (2026, 2026),
    "mbridge": (2025, 2026),
    "mlpamd": (2025, 2025),
    "mlperf": (2023, 2025),
    "mlpoem": (2024, 2025),
    "mtnlg": (2021, 2021),
    "nemo": (2024, 2025),
    "nemo25": (2025, 2025),
    "primusmoe": (2025, 2025),
    "sc21": (2021, 2021),
    "smx": (2025, 2025),
    "torchao": (2025, 2025),
    "tt": (2024, 2025),
    "us": (2024, 2025),
    "vtm": (2023, 2023),
    "vts": (2023, 2023),
}
"""First and last year of the documents of a family, as far as they say."""
FAMILIES_OF_ERA = {
    "2019-24": (
        "dense, stacks of 2019-24",
        "aa lf us bs3 bsg bs11 ie dlp tt sc21 korthikanti22 vts vtm",
    ),
    "2025-26": (
        "stacks of 2025-26",
        "mbridge dgxc mlperf mlpoem mbcard nemo nemo25 torchao automodel primusmoe fms mlpamd",
    ),
}
"""Title and families of each era; some of the second began in 2024 and go on."""
HEADLINE = tuple(name for _, names in FAMILIES_OF_ERA.values() for name in names.split())
"""Families whose errors are the headline; the others stand beside them."""


def is_tuned(plan: Plan) -> bool:
    """Tell whether a run tunes a trained model: with adapters, or on packs of samples."""
    return _case(plan).problem.job.tuning is not None or plan.point.packed


TRAITS: dict[str, tuple[str, Callable[[Plan], bool]]] = {
    "experts": (
        "with experts",
        lambda plan: bool(_case(plan).problem.shape.n_experts) and not is_tuned(plan),
    ),
    "fp8": (
        "in fp8 or fp4",
        lambda plan: bool(_case(plan).problem.job.recipe.linear_precision) and not is_tuned(plan),
    ),
    "amd": (
        "on AMD",
        lambda plan: _case(plan).problem.pool.accelerator.vendor == "AMD" and not is_tuned(plan),
    ),
    "adapters": (
        "with adapters (LoRA)",
        lambda plan: _case(plan).problem.job.tuning is not None,
    ),
    "packed": ("of packed samples", lambda plan: plan.point.packed),
}
"""Title and test of what a run may have; all but the last two are of runs that train whole
models, as the eras are."""


class _Step(NamedTuple):
    """A step that was measured and predicted. Seconds."""

    plan: Plan
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, slots=True)
class EraErrors:
    """Errors of one era, or of the runs that have something; None where there is nothing."""

    key: str
    title: str
    by: str
    """`families`: means over families of what their layouts show; `rows`: of all rows at once."""
    families: tuple[str, ...]
    n: int
    median_ape: float | None
    p90_ape: float | None
    bias: float | None
    n_referenced: int
    """Of those, how many have another run of their model, stack and hardware."""
    referenced_ape: float | None
    """Median error after one such run as a reference."""
    inside: float | None
    """Share inside their 80 % intervals."""
    years: tuple[int, int] | None
    """Of the documents."""


def _case(plan: Plan) -> PricedCase:
    """Return the case of a plan that is priced."""
    assert plan.case is not None
    return plan.case


def era_errors(
    rows: Sequence[Row], used: Sequence[Used], calibration: Calibration
) -> tuple[EraErrors, ...]:
    """Return the lines for which there are runs: the eras, then what runs have."""
    results = []
    layouts = [
        _Step(plan, plan.step_s, plan.prediction.step_s)
        for plan in used
        if plan.step_s is not None and not is_tuned(plan)
    ]
    for key, (title, names) in FAMILIES_OF_ERA.items():
        parts = [
            own
            for name in names.split()
            if (own := [step for step in layouts if step.plan.point.source == name])
        ]
        if parts:
            results.append(_line((key, title, "families"), parts, calibration))
    each = [
        _Step(row, row.point.step_s, row.prediction.step_s)
        for row in rows
        if row.prediction is not None and row.point.step_s is not None
    ]
    for key, (title, has) in TRAITS.items():
        own = [step for step in each if has(step.plan)]
        if own:
            results.append(_line((key, title, "rows"), [own], calibration))
    return tuple(results)


def _line(
    name: tuple[str, str, str], parts: Sequence[Sequence[_Step]], calibration: Calibration
) -> EraErrors:
    """Return one line: means over `parts` of what each shows."""
    key, title, by = name
    each = [errors([x.predicted_s for x in p], [x.measured_s for x in p]) for p in parts]
    referenced = [pair for p in parts if (pair := _after_reference(p))[0]]
    steps = [step for part in parts for step in part]
    families = sorted({step.plan.point.source for step in steps})
    years = [YEARS[name] for name in families if name in YEARS]
    return EraErrors(
        key=key,
        title=title,
        by=by,
        families=tuple(families),
        n=len(steps),
        median_ape=mean([x.median_ape for x in each]),
        p90_ape=mean([x.p90_ape for x in each]),
        bias=mean([x.bias for x in each]),
        n_referenced=sum(n for n, _ in referenced),
        referenced_ape=mean([error for _, error in referenced]),
        inside=float(np.mean([_is_inside(step, calibration) for step in steps])),
        years=(min(y for y, _ in years), max(y for _, y in years)) if years else None,
    )


def _is_inside(step: _Step, calibration: Calibration) -> bool:
    case, result = step.plan.case, step.plan.prediction
    assert case is not None
    assert result is not None
    regime = regime_of(case.problem, case.layout, result.time_s, result.step_s, calibration)
    low, high = interval_of(regime, calibration)
    return low <= step.measured_s / step.predicted_s <= high


def _after_reference(steps: Sequence[_Step]) -> tuple[int, float | None]:
    settings = [
        (x.plan.point.source, x.plan.point.stack, x.plan.point.hardware, x.plan.point.model)
        for x in steps
    ]
    log_errors = np.log([x.predicted_s / x.measured_s for x in steps])
    return after_one_reference(settings, log_errors)


def after_one_reference(
    settings: Sequence[Hashable], log_errors: Floats
) -> tuple[int, float | None]:
    """Return how many runs share their setting with another, and their median error after it.

    `log_errors` are ln(predicted / measured), e. A reference j corrects another run i of its
    setting by what is believed of its deviation (`planner.solver.calibration.anchors.believed`):
    e_i - believed(e_j). Every run counts once, spread evenly over its possible references; the
    median is over all of them.

    >>> n, error = after_one_reference(["a", "a", "b"], np.log([2.0, 2.0, 3.0]))
    >>> n, round(error, 3)
    (2, 0.014)
    """
    sizes, shares = [], []
    members: dict[Hashable, list[int]] = {}
    for i, setting in enumerate(settings):
        members.setdefault(setting, []).append(i)
    n_judged = 0
    for own in members.values():
        n = len(own)
        if n < 2:
            continue
        n_judged += n
        errors_there = log_errors[own]
        common = np.array([believed(float(e), 1) for e in errors_there])
        after = np.abs(np.expm1(errors_there[:, None] - common[None, :]))
        other = ~np.eye(n, dtype=bool)
        sizes.append(after[other])
        shares.append(np.full(n * (n - 1), 1.0 / (n - 1)))
    if not n_judged:
        return 0, None
    size, share = np.concatenate(sizes), np.concatenate(shares)
    order = np.argsort(size, kind="stable")
    reached = np.searchsorted(np.cumsum(share[order]), 0.5 * share.sum())
    return n_judged, float(size[order][min(reached, len(order) - 1)])
