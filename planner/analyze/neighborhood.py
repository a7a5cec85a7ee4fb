"""Plans that differ from a given one in a single axis, or in two where one alone is illegal.

The job (model, sequence, global batch) and the devices stay. What follows from the axes follows:
dp from the degrees, the schedule from pp and vpp, the layers of the stages from the split.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodels.axes import AXES as RECORDS
from costmodels.axes import (
    CP_COMMS,
    MODULE_SETS,
    OFFLOAD_MODULES,
    OFFLOAD_SETS,
    RANK_ORDERS,
    SCHEDULES,
    modules_code,
    modules_of,
    switch_axes,
)
from costmodels.offload.activations import RESIDENT_LAYERS
from costmodels.plans import Layout, PlanTable
from costmodels.problem import Problem
from costmodels.schedule.stages import most_stages, stage_layers
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes, step_times
from planner.solver.unsupported import is_modelled
from searches.frameworks.case import Case
from searches.frameworks.table import broken_rules
from searches.options import MAX_VPP, SearchOptions, usual_most_mbs
from searches.pricing.layout_prices import exact_step_s
from searches.rules import Context, first_broken_rules, module_sets, rules_that_break
from searches.space.shape_space import divisors

AXES = tuple(name for name, axis in RECORDS.items() if axis.is_stepped)
"""Axes that a neighbour may change, in the order in which changes are named."""
HELPS: Mapping[str, tuple[str, ...]] = {
    "BAT001": ("mbs",),
    "DP001": ("tp", "pp", "cp"),
    "BAT002": ("vpp", "mbs"),
    "PP001": ("vpp",),
    "PP002": ("vpp", "split"),
    "VPP001": ("vpp",),
    "EP002": ("ep", "etp"),
    "EP001": ("ep",),
    "CP002": ("cp_comm", "tp"),
    "CP004": ("cp_comm",),
    "CP005": ("tp",),
    "TP005": ("cp",),
    "ORD001": ("rank_order",),
    "ORD002": ("rank_order", "ep"),
    "SP001": ("sp",),
    "ZER001": ("zero",),
    "HPZ002": ("hpz",),
    "DSP001": ("dispatcher",),
    "DSP002": ("dispatcher", "ep"),
    "DSP003": ("dispatcher",),
    "EPO001": ("ep_overlap",),
    "EPO002": ("ep_overlap", "vpp"),
    "EPO003": ("ep_overlap", "recompute"),
    "CGR002": ("cuda_graph", "dispatcher"),
    "CGR003": ("cuda_graph",),
    "OFF004": ("pp",),
    "OFM004": ("cuda_graph",),
    "OFM005": ("recompute", "activation_offload_layers"),
    "ZER002": ("zero",),
}
"""Axes whose change can lift a broken rule: the second change of a pair."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A plan near another one, priced."""

    layout: Layout
    changes: tuple[tuple[str, Any, Any], ...]
    """Axis, old value, new value; one or two of them."""
    step_s: float
    """With the pipeline simulated."""
    peak_bytes: float


def neighbours(
    problem: Problem, layout: Layout, framework: str = "any", *, pairs: bool = True
) -> tuple[Neighbour, ...]:
    """Return the neighbours of a layout that are legal, the fastest first, fitting or not.

    `framework` leaves out what it does not run; `any` keeps everything that the model can price.
    A rule that the layout itself breaks leaves nothing out. Rules that only keep a plan from being
    counted twice, such as recomputation that saves nothing, count as they do in the search.
    """
    context = _context(problem, layout)
    present = _framework_codes(problem, layout, framework)
    present |= frozenset(rules_that_break(context, layout))
    found = list[tuple[Layout, str]]()
    for axis, value in _steps(problem, layout):
        near = derived(problem, layout, {axis: value})
        if near is not None and near != layout:
            found.append((near, axis))
    codes = _broken(context, [near for near, _ in found], framework, present)
    entries: dict[Layout, tuple[str, ...]] = {}
    for near, axis in found:
        if not codes[near]:
            entries.setdefault(near, (axis,))
    if pairs:
        twice = list[tuple[Layout, tuple[str, str]]]()
        for near, axis in found:
            for other, value in _steps(problem, near, HELPS.get(codes[near], ())):
                pair = derived(problem, near, {other: value})
                if pair is not None and pair != layout and pair not in entries and other != axis:
                    twice.append((pair, (axis, other)))
        codes = _broken(context, [pair for pair, _ in twice], framework, present)
        for pair, axes in twice:
            if not codes[pair]:
                entries.setdefault(pair, axes)
    return _priced(problem, layout, entries)


def _context(problem: Problem, layout: Layout) -> Context:
    """Return the rules of one layout."""
    return Context(problem, SearchOptions(framework="any"), layout.n_devices)


def _broken(
    context: Context, layouts: Iterable[Layout], framework: str, present: frozenset[str]
) -> dict[Layout, str]:
    """Return the first rule that each layout breaks, "" for none.

    `present` are rules that do not count.
    """
    codes = first_broken_rules(context, layouts, present)
    for layout, code in codes.items():
        if not code:
            more = _framework_codes(context.problem, layout, framework) - present
            codes[layout] = min(more, default="")
    return codes


def _framework_codes(problem: Problem, layout: Layout, framework: str) -> frozenset[str]:
    """Return the framework's rules that a layout breaks; none for `any`."""
    if framework == "any":
        return frozenset()
    case = Case.of_layout(layout, problem.shape, problem.job, problem.pool.accelerator.vendor)
    return frozenset(b.rule.code for b in broken_rules(framework, case, level="layout"))


def _steps(
    problem: Problem, layout: Layout, axes: tuple[str, ...] = AXES
) -> Iterator[tuple[str, Any]]:
    """Yield the values that each axis may take besides its own."""
    for axis in axes:
        for value in _values(problem, layout, axis):
            if value != layout_value(layout, axis):
                yield axis, value


def _values(problem: Problem, x: Layout, axis: str) -> list[Any]:
    shape, n = problem.shape, x.n_devices
    if axis == "tp":
        return [d for d in divisors(n // (x.pp * x.cp)) if d <= shape.heads]
    if axis == "pp":
        return [d for d in divisors(n // (x.tp * x.cp)) if d <= shape.layers]
    if axis == "cp":
        return divisors(n // (x.tp * x.pp))
    if axis == "ep":
        return divisors(shape.n_experts) if shape.n_experts else []
    if axis == "etp":
        return divisors(x.tp) if shape.n_experts else []
    if axis == "vpp":
        return list(range(1, MAX_VPP + 1)) if x.pp > 1 else [1]
    if axis == "split":
        return ["even", "ends"] if x.pp > 1 else []
    if axis == "mbs":
        maximum = usual_most_mbs(problem.job.seq_len)
        return [d for d in divisors(x.gbs // x.dp) if d <= maximum]
    if axis == "zero":
        return [0, 1, 2, 3]
    if axis == "dp_shard":
        return [d for d in divisors(x.dp * x.cp) if d > 1] if x.zero else []
    if axis == "hpz":
        return [d for d in divisors(x.dp * x.cp) if d < x.dp * x.cp] if x.zero == 3 else [1]
    if axis in ("sp", "optimizer_offload", "dp_overlap"):
        return [False, True]
    if axis == "tp_overlap":
        return [False, True] if x.sp and problem.stack.tp_overlap_on else []
    if axis == "cp_comm":
        return list(CP_COMMS[1:]) if x.cp > 1 else []
    if axis == "rank_order":
        return list(RANK_ORDERS) if x.pp > 1 and x.dp > 1 else []
    if axis == "recompute":
        return ["none", "full"] if shape.flash_attention else ["none", "selective", "full"]
    if axis == "recompute_modules":
        now = modules_code(x.recompute_modules)
        return [MODULE_SETS[c] for c in module_sets(shape) if (c ^ now).bit_count() == 1]
    if axis == "offload_modules":
        return _sent_modules(problem, x)
    if not RECORDS[axis].has_field:
        return [RECORDS[axis].value(code) for code in range(len(RECORDS[axis].choices))]
    longest = max(x.stage_layers)
    if axis == "activation_offload_layers":
        return _offloads(problem, x)
    return _thinned(longest) if x.recompute == "full" else []


def _sent_modules(problem: Problem, x: Layout) -> list[str]:
    """Return sets of modules whose inputs may be on the host: one more or one less, and none.

    The output of attention leaves with its core, as it does nowhere else.
    """
    axis = RECORDS["offload_modules"]
    now = axis.code(x.value(axis.name))
    if problem.pool.host is None:
        return [OFFLOAD_SETS[0]]
    pair = modules_code(("core_attn", "attn_proj"), OFFLOAD_MODULES)
    steps = {now ^ 1 << bit for bit in range(len(OFFLOAD_MODULES))}
    return [OFFLOAD_SETS[code] for code in sorted({0, now | pair, now & ~pair, *steps})]


def _offloads(problem: Problem, x: Layout) -> list[int]:
    """Return numbers of layers whose activations may be on the host: none, and what copies hide.

    Without recomputation a quarter, a half and all but two of the layers.
    """
    if problem.pool.host is None or x.recompute == "selective":
        return [0]
    if x.recompute == "full":
        return [0, x.recompute_layers]
    maximum, layers = problem.shape.layers - RESIDENT_LAYERS, problem.shape.layers
    return sorted({0, *(n for n in (layers // 4, layers // 2, maximum) if 0 < n <= maximum)})


def _thinned(longest: int) -> list[int]:
    """Return counts of recomputed layers to try: all of a short stage, a grid of a long one."""
    step = max(1, -(-longest // 16))
    return sorted({*range(longest, 0, -step), 1})


def layout_value(layout: Layout, axis: str) -> Any:
    """Return the value of an axis of `AXES`; a set of modules as its word."""
    if axis == "recompute_modules":
        return MODULE_SETS[modules_code(layout.recompute_modules)]
    return layout.value(axis)


def derived(problem: Problem, layout: Layout, changes: Mapping[str, Any]) -> Layout | None:
    """Return the layout with some axes changed and what follows from them; None if none does."""
    shape, x = problem.shape, layout
    tp, pp, cp = (int(changes.get(axis, getattr(x, axis))) for axis in ("tp", "pp", "cp"))
    dp, rest = divmod(x.n_devices, tp * pp * cp)
    vpp = int(changes.get("vpp", x.vpp)) if pp > 1 else 1
    if rest or dp == 0 or pp * vpp > max(most_stages(shape.layers), len(x.stage_layers)):
        return None
    split, counts = _split(shape.layers, pp, vpp, x, str(changes.get("split", "")))
    if not counts:
        return None
    zero = int(changes.get("zero", x.zero)) if dp * cp > 1 else 0
    group = int(changes.get("dp_shard", x.shard))
    replicated = zero and 0 < group < dp * cp and dp * cp % group == 0
    hpz = int(changes.get("hpz", x.hpz if zero == 3 and not replicated else 1))
    sp = bool(changes.get("sp", x.sp or (x.tp == 1 and problem.stack.kind == "fused")))
    kind = str(changes.get("recompute", x.recompute))
    modules = x.recompute_modules
    if "recompute_modules" in changes:
        kind, modules = "selective", modules_of(MODULE_SETS.index(changes["recompute_modules"]))
    recompute_layers = _recomputed(kind, counts, x, changes)
    etp = int(changes.get("etp", x.etp))
    values = {axis.name: changes.get(axis.name, x.value(axis.name)) for axis in switch_axes()}
    near = replace(
        x,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        vpp=vpp,
        split=split,
        stage_layers=counts,
        schedule=_schedule(pp, vpp, x),
        switches=tuple((name, v) for name, v in values.items() if v != RECORDS[name].off),
    )
    near = replace(
        near,
        cp_comm=str(changes.get("cp_comm", x.cp_comm or "p2p")) if cp > 1 else "",
        ep=int(changes.get("ep", x.ep)),
        etp=min(etp, tp) if "tp" in changes else etp,
        mbs=int(changes.get("mbs", x.mbs)),
        recompute=kind,
        recompute_layers=recompute_layers,
        recompute_modules=modules,
        rank_order=str(changes.get("rank_order", x.rank_order)),
        activation_offload_layers=_offloaded(shape.layers, pp, kind, recompute_layers, x, changes),
    )
    return replace(
        near,
        zero=zero,
        shard=group if replicated else 0,
        sp=sp and tp > 1,
        optimizer_offload=bool(changes.get("optimizer_offload", x.optimizer_offload)),
        dp_overlap=bool(changes.get("dp_overlap", x.dp_overlap)) or dp * cp == 1,
        tp_overlap=bool(changes.get("tp_overlap", x.tp_overlap)) and sp and tp > 1,
        hpz=hpz if tp * pp == 1 and (dp * cp) % hpz == 0 else 1,
    )


def _split(layers: int, pp: int, vpp: int, x: Layout, split: str) -> tuple[str, tuple[int, ...]]:
    """Return a split and its layers: the one asked for, the present one, or one that exists."""
    if not split and (pp, vpp) == (x.pp, x.vpp):
        return x.split, x.stage_layers
    for name in (split,) if split else (x.split, "even", "ends"):
        if name in ("even", "ends"):
            counts = stage_layers(layers, pp, vpp, name)
            if counts:
                return name, counts
    return "", ()


def _schedule(pp: int, vpp: int, x: Layout) -> str:
    if (pp, vpp) == (x.pp, x.vpp):
        return x.schedule
    return "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b"


def _offloaded(
    layers: int, pp: int, kind: str, recomputed: int, x: Layout, changes: Mapping[str, Any]
) -> int:
    """Return the layers whose activations are on the host; none where they cannot stay there."""
    n = int(changes.get("activation_offload_layers", x.activation_offload_layers))
    if "activation_offload_layers" in changes:
        return recomputed if n and kind == "full" else n
    if n == 0 or pp > 1 or kind == "selective":
        return 0
    return recomputed if kind == "full" else max(0, min(n, layers - RESIDENT_LAYERS))


def _recomputed(kind: str, counts: tuple[int, ...], x: Layout, changes: Mapping[str, Any]) -> int:
    """Return the recomputed layers of a virtual stage: the same share of it as before."""
    if kind != "full":
        return 0
    longest = max(counts)
    if "recompute_layers" in changes:
        return min(int(changes["recompute_layers"]), longest)
    if x.recompute != "full":
        return longest
    share = x.recompute_layers / max(x.stage_layers)
    return max(1, min(longest, round(share * longest)))


def _priced(
    problem: Problem, layout: Layout, axes_of: Mapping[Layout, tuple[str, ...]]
) -> tuple[Neighbour, ...]:
    layouts = list(axes_of)
    if not layouts:
        return ()
    table = PlanTable.from_layouts(layouts)
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    peaks, rough = np.asarray(peak_bytes(rows)), np.asarray(step_times(rows))
    order = np.lexsort((peaks, rough))[:MAX_EXACT]
    exact = dict(
        zip(order.tolist(), exact_step_s(problem, [layouts[i] for i in order]), strict=True)
    )
    out = [
        Neighbour(
            near,
            _changes(layout, near, axes_of[near]),
            exact.get(i, float(rough[i])),
            float(peaks[i]),
        )
        for i, near in enumerate(layouts)
    ]
    return tuple(sorted(out, key=lambda n: (n.step_s, n.peak_bytes, n.changes)))


MAX_EXACT = 256
"""Neighbours whose pipeline is simulated; those ranked behind keep the time of the closed form."""


def _changes(old: Layout, new: Layout, axes: tuple[str, ...]) -> tuple[tuple[str, Any, Any], ...]:
    """Return what was changed, in the order of `AXES`; what follows from it is not named."""
    return tuple(
        (axis, layout_value(old, axis), layout_value(new, axis)) for axis in AXES if axis in axes
    )


Tried = tuple[str, Any, Layout | None]
"""Axis, its new value, and the layout that it gives if there is one."""

CHUNKS_OF = {"interleaved": 2, "zb-v": 2, "dualpipe-v": 2}
"""Least model chunks of a rank that a schedule needs, 1 for the others."""


@dataclass(frozen=True, slots=True)
class SingleChange:
    """One axis of a plan at another value: priced, or with the rule that forbids it."""

    axis: str
    old: Any
    new: Any
    rule: str
    """Code of the first rule that it breaks; empty where it is legal."""
    near: Neighbour | None
    """What it gives where it is legal."""


def single_changes(
    problem: Problem, layout: Layout, framework: str = "any", recipes: Sequence[str] = ()
) -> tuple[SingleChange, ...]:
    """Return every value that each axis may take alone, legal or not, axis by axis.

    The axes are those of `AXES` and the schedule, whose change brings the chunks that it needs;
    `full:3` recomputes three layers of every virtual stage.
    `framework` as in `neighbours`; `recipes` are the values that the job's precision may take.
    """
    context = _context(problem, layout)
    present = _framework_codes(problem, layout, framework)
    present |= frozenset(rules_that_break(context, layout))
    tried: list[Tried] = [
        (axis, value, derived(problem, layout, {axis: value}))
        for axis, value in _steps(problem, layout)
    ]
    tried += [*_recompute_steps(problem, layout), *_schedule_steps(problem, layout)]
    tried = _each_once(tried)
    verdicts = _broken(context, [near for _, _, near in tried if near], framework, present)
    codes = [
        verdicts[near] if near else _impossible(problem, layout, axis, value)
        for axis, value, near in tried
    ]
    legal = {
        near: (axis,)
        for (axis, _, near), code in zip(tried, codes, strict=True)
        if near and not code
    }
    priced = {near_plan.layout: near_plan for near_plan in _priced(problem, layout, legal)}
    of_layout = tuple(
        SingleChange(
            axis, layout_value(layout, axis), value, code, priced.get(near) if near else None
        )
        for (axis, value, near), code in zip(tried, codes, strict=True)
        if near != layout
    )
    return of_layout + tuple(_recipe_steps(problem, layout, framework, recipes, present))


def single_neighbours(changes: Sequence[SingleChange]) -> tuple[Neighbour, ...]:
    """Return `neighbours` of a layout in one axis, of its `single_changes`; not priced again."""
    results = [
        change.near
        for change in changes
        if change.near and change.axis in AXES and not str(change.new).startswith("full:")
    ]
    return tuple(sorted(results, key=lambda n: (n.step_s, n.peak_bytes, n.changes)))


def _each_once(tried: Sequence[Tried]) -> list[Tried]:
    """Return the changes without those that give the layout of an earlier one.

    One chunk of an interleaved schedule is 1F1B, whether vpp or the schedule says so.
    """
    seen: set[Layout] = set()
    distinct = []
    for axis, value, near in tried:
        if near is None or near not in seen:
            distinct.append((axis, value, near))
        if near is not None:
            seen.add(near)
    return distinct


def _recipe_steps(
    problem: Problem,
    layout: Layout,
    framework: str,
    recipes: Sequence[str],
    present: frozenset[str],
) -> Iterator[SingleChange]:
    """Yield the layout in every other recipe that is modelled for the accelerator."""
    for name in recipes:
        other = replace(problem, job=replace(problem.job, precision=name))
        if name == problem.job.precision or not is_modelled(other):
            continue
        code = _broken(_context(other, layout), [layout], framework, present)[layout]
        priced = () if code else _priced(other, layout, {layout: ()})
        yield SingleChange("precision", problem.job.precision, name, code, *priced or (None,))


def _recompute_steps(problem: Problem, layout: Layout) -> list[tuple[str, Any, Layout | None]]:
    """Return the plans that begin to recompute some layers of a virtual stage, not all."""
    if layout.recompute == "full":
        return []
    counts = _thinned(max(layout.stage_layers))[:-1]
    changes = [(k, {"recompute": "full", "recompute_layers": k}) for k in counts]
    return [("recompute", f"full:{k}", derived(problem, layout, to)) for k, to in changes]


def _schedule_steps(problem: Problem, layout: Layout) -> list[tuple[str, Any, Layout | None]]:
    """Return the plans under every other schedule of a pipeline, with the chunks that it needs."""
    out: list[tuple[str, Any, Layout | None]] = []
    for name in SCHEDULES[1:] if layout.pp > 1 else ():
        if name == layout.schedule:
            continue
        chunks = CHUNKS_OF.get(name, 1)
        if name == "interleaved":
            chunks = max(chunks, layout.vpp)
        near = derived(problem, layout, {"vpp": chunks})
        out.append(("schedule", name, replace(near, schedule=name) if near else None))
    return out


def _impossible(problem: Problem, layout: Layout, axis: str, value: Any) -> str:
    """Return the rule that leaves no layout at all: too many stages, or no way to fill them."""
    pp = value if axis == "pp" else layout.pp
    vpp = value if axis == "vpp" else CHUNKS_OF.get(value, 1) if axis == "schedule" else layout.vpp
    return "PP001" if pp * vpp > most_stages(problem.shape.layers) else "PP002"
