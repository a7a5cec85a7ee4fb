"""Measured runs with their predictions, repeats of one layout, unhealthy runs, sweeps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from planner.measure.validate.described import Entry, Skip
from planner.measure.validate.metrics import beyond_their_bubble, slow_runs, slower_than_more_work
from planner.measure.validate.points import DEGREES, MeasuredPoint
from planner.measure.validate.prediction import Prediction, PricedCase, case_of, price, price_run
from planner.solver.calibration.file import Calibration
from planner.specs.progress import Progress

SLOW = "slow"
"""Reason for leaving out an unhealthy run."""
CONTRADICTED = "vpp contradicted"
"""Reason for leaving out a run that is too fast for the interleaving it prints."""
MIN_ROWS, MIN_LAYOUTS = 4, 3
"""Least rows, and least distinct layouts, of a sweep."""
MODES = ("any", "layout-only")

_KERNELS = (
    "sp",
    "recompute",
    "precision",
    "attention",
    "norm_kernel",
    "fp8_recipe",
    "compile",
    "packed",
    "lora",
    "overlap",
    "moe_routing",
    "stack",
)
_SWITCHES = (
    "tp_overlap",
    "dispatcher",
    "ep_overlap",
    "delay_wgrad",
    "cuda_graph",
    "offload",
    "optimizer",
    "power_w",
    "fp8_attention",
    "fp8_param_gather",
    "peft",
    "seq_packing",
)
"""Cells about switches. They tell layouts apart, but unhealthy runs are looked for without them: a
release that states them ran no slower for that."""
_JOB = ("source", "model", "hardware", "n_gpus", "seq_len", "gbs")
_DEGREES = ("mbs", *DEGREES, "schedule", "stage_layers", "segment", "zero", "hsdp")
_FIXED = ("attention", "norm_kernel", "sp", "recompute", "precision", "stack")
_SLOT = ("source", "model", "hardware", "seq_len", "tp", "pp", "cp", "ep", "vpp", "mbs")
_CHUNKED = tuple(name for name in _SLOT if name != "vpp")
_WORK = ("source", "model", "hardware", "seq_len", "tp", "cp", "ep", "vpp")

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A measured run: priced, or skipped for a reason."""

    point: MeasuredPoint
    skipped: str = ""
    case: PricedCase | None = None
    prediction: Prediction | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """One layout of one source: its prediction and the median of its measurements."""

    point: MeasuredPoint
    """The first of the repeats."""
    case: PricedCase
    prediction: Prediction
    n_rows: int
    step_s: float | None
    peak_bytes: float | None
    oom: bool | None
    """What most of the labelled repeats did."""


@dataclass(frozen=True, slots=True)
class MeasuredSweep:
    """Layouts of one job on one cluster, all measured."""

    source: str
    key: str
    mode: str
    plans: tuple[Used, ...]


def _key(point: MeasuredPoint, names: Iterable[str]) -> Key:
    return tuple(getattr(point, name) for name in names)


def run_layout_key(point: MeasuredPoint) -> Key:
    """Return all that tells one layout of a source from another."""
    return _key(point, (*_JOB, *_DEGREES, *_KERNELS, *_SWITCHES))


def price_points(
    points: Sequence[MeasuredPoint],
    models: Mapping[str, Entry],
    hardware: Mapping[str, Entry],
    calibration: Calibration | None = None,
    progress: Progress = None,
) -> tuple[Row, ...]:
    """Return every run with its prediction; repeats of a layout are priced once.

    `progress` is told how many runs are done, and of how many.
    """
    unfit = _unfit_lines(points)
    priced: dict[tuple[Key, Key], tuple[PricedCase, Prediction]] = {}
    rows = []
    for i, point in enumerate(points):
        if progress is not None:
            progress(i, len(points))
        try:
            if point.mbs is None:
                rows.append(Row(point, "", *price_run(point, models, hardware, calibration)))
                continue
            case = case_of(point, models, hardware, calibration)
        except Skip as reason:
            rows.append(Row(point, str(reason)))
            continue
        if point.line in unfit:
            rows.append(Row(point, unfit[point.line]))
            continue
        same = (run_layout_key(point), (case.memory, case.memory_rank, case.assumptions))
        if same not in priced:
            priced[same] = case, price(case)[0]
        rows.append(Row(point, "", *priced[same]))
    if progress is not None:
        progress(len(points), len(points))
    return tuple(rows)


def measured_layouts(
    points: Sequence[MeasuredPoint], models: Mapping[str, Entry], hardware: Mapping[str, Entry]
) -> tuple[tuple[MeasuredPoint, PricedCase, float], ...]:
    """Return each layout with a step time once, with its case and the median of its times.

    The same layouts as those of `use(price_points(...))`, without pricing them, but for runs that
    state no micro-batch.
    """
    unfit, times = _unfit_lines(points), dict[Key, list[float]]()
    first: dict[Key, tuple[MeasuredPoint, PricedCase]] = {}
    for point in points:
        try:
            case = case_of(point, models, hardware)
        except Skip:
            continue
        if point.line not in unfit:
            key = run_layout_key(point)
            first.setdefault(key, (point, case))
            if point.step_s is not None:
                times.setdefault(key, []).append(point.step_s)
    return tuple((*first[key], median(steps)) for key, steps in times.items())


def _unfit_lines(points: Sequence[MeasuredPoint]) -> dict[int, str]:
    """Return the lines of the runs that other runs of their source rule out, with the reason."""
    timed = []
    for p in points:
        if p.step_s and p.gbs and p.mbs and p.dp and p.pp:
            timed.append((p, p.step_s, max(1, p.gbs // (p.mbs * p.dp))))
    slow = _slow_lines([(p, step_s / (m + (p.pp or 1) - 1)) for p, step_s, m in timed])
    pipes = [
        (p, p.vpp, step_s / (m + (p.pp - 1) / p.vpp))
        for p, step_s, m in timed
        if p.pp and p.pp > 1 and p.vpp and p.line not in slow
    ]
    result = beyond_their_bubble(
        [_key(p, (*_CHUNKED, *_KERNELS)) for p, _, _ in pipes],
        [vpp for _, vpp, _ in pipes],
        [slot_s for _, _, slot_s in pipes],
    )
    beyond = (
        p.line for (p, _, _), contradicted in zip(pipes, result, strict=True) if contradicted
    )
    return dict.fromkeys(slow, SLOW) | dict.fromkeys(beyond, CONTRADICTED)


def _slow_lines(timed: Sequence[tuple[MeasuredPoint, float]]) -> frozenset[int]:
    """Return the lines of the unhealthy runs, given time per slot (m + p - 1 of them)."""
    groups = [_key(p, (*_SLOT, *_KERNELS)) for p, _ in timed]
    result = slow_runs(groups, [p.n_gpus for p, _ in timed], [t for _, t in timed])
    pipes = [(p, t) for p, t in timed if p.pp and p.pp > 1]
    more = slower_than_more_work(
        [_key(p, (*_WORK, *_KERNELS)) for p, _ in pipes],
        [(p.pp or 1, p.mbs or 1, p.n_gpus) for p, _ in pipes],
        [t for _, t in pipes],
    )
    unhealthy = {p.line for (p, _), slow in zip(timed, result, strict=True) if slow}
    return frozenset(
        unhealthy | {p.line for (p, _), slow in zip(pipes, more, strict=True) if slow}
    )


def use(rows: Iterable[Row]) -> tuple[Used, ...]:
    """Return each priced layout once, with the median of its measurements."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        if row.prediction is not None:
            groups.setdefault(run_layout_key(row.point), []).append(row)
    return tuple(_merged(group) for group in groups.values())


def _merged(group: Sequence[Row]) -> Used:
    first = group[0]
    assert first.case is not None  # `use` takes priced rows
    assert first.prediction is not None
    steps = [row.point.step_s for row in group if row.point.step_s is not None]
    # Memory follows from the micro-batch, and so says nothing where that is not stated.
    weighed = [] if first.prediction.range_s else group
    peaks = [row.point.peak_bytes for row in weighed if row.point.peak_bytes is not None]
    labels = [row.point.oom for row in group if row.point.oom is not None]
    return Used(
        point=first.point,
        case=first.case,
        prediction=first.prediction,
        n_rows=len(group),
        step_s=median(steps) if steps else None,
        peak_bytes=median(peaks) if peaks else None,
        oom=2 * sum(labels) > len(labels) if labels else None,
    )


def measured_sweeps(used: Iterable[Used], mode: str) -> tuple[MeasuredSweep, ...]:
    """Return the sweeps: same source, model, cluster, devices, sequence length and batch.

    `layout-only` also fixes attention, norm kernel, sequence parallelism, recompute, precision and
    stack. At least 4 measured rows and 3 layouts, or it is no sweep.
    """
    names = _JOB + (_FIXED if mode == "layout-only" else ())
    groups: dict[Key, list[Used]] = {}
    for plan in used:
        if plan.step_s is not None:
            groups.setdefault(_key(plan.point, names), []).append(plan)
    results = []
    for key, plans in groups.items():
        layouts = {_key(plan.point, _DEGREES) for plan in plans}
        if sum(plan.n_rows for plan in plans) >= MIN_ROWS and len(layouts) >= MIN_LAYOUTS:
            results.append(MeasuredSweep(str(key[0]), _shown(key), mode, tuple(plans)))
    return tuple(sorted(results, key=lambda sweep: sweep.key))


def _shown(key: Key) -> str:
    """Return a key as text, `-` for what is not stated."""
    labels = {None: "-", True: "1", False: "0", "": "-"}
    return "/".join(
        labels[part] if part is None or isinstance(part, bool) or part == "" else str(part)
        for part in key
    )
