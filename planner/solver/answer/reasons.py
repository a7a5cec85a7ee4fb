"""Why the first plan is first, in a few lines."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from costmodels.axes import AXES
from costmodels.breakdown import break_down
from costmodels.documentation.terms import COMPUTE_TERMS, TIME_TERMS
from costmodels.layers.layer_grid import LayerGrid
from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.solver.answer.result import Plan
from planner.solver.answer.switches import switches_worth, worth_text
from planner.solver.answer.uncertainty import HEADROOM_STEP, TIE_FRAC
from searches.pricing.candidates import Candidate

MIN_SHARE = 0.002
"""Differences below this share of the step are not worth a word."""
KERNELS = "kernels"
"""What the sum of the terms is called in which the slowest rank computes for the first time."""


def stage_words(counts: Sequence[int]) -> str:
    """Return the layers of the virtual stages in model order, runs of equal ones as one word.

    >>> stage_words((4, 4, 4, 1))
    '3x4-1'
    """
    runs = [(size, len(list(same))) for size, same in groupby(counts)]
    return "-".join(f"{n}x{size}" if n > 1 else str(size) for size, n in runs)


def shown_layout(layout: Layout) -> str:
    """Return a layout in a few words: `tp8 pp4 dp16 vpp5 zero1 mbs1`."""
    x = layout
    axes = [f"tp{x.tp}", f"pp{x.pp}", f"dp{x.dp}", f"vpp{x.vpp}", f"zero{x.zero}", f"mbs{x.mbs}"]
    if x.cp > 1:
        axes.insert(3, f"cp{x.cp} {x.cp_comm}")
    if x.ep > 1:
        axes.append(f"ep{x.ep}")
    if x.etp > 1:
        axes.append(f"etp{x.etp}")
    if x.shard:
        axes.append(f"groups of {x.dp_shard}")
    if x.schedule not in ("none", "1f1b", "interleaved"):
        axes.append(x.schedule)
    if x.split == "ends":
        axes.append("ends split")
    elif x.split != "even":
        axes.append(f"layers {stage_words(x.stage_layers)}")
    if x.pipelines_inside:
        axes.append("pipelines inside")
    if not x.sp and x.tp > 1:
        axes.append("no sp")
    if x.recompute != "none":
        axes.append(f"recompute {x.recompute_text} {x.recompute_layers or ''}".strip())
    if x.hpz > 1:
        axes.append(f"hpz{x.hpz}")
    if x.optimizer_offload:
        axes.append("optimizer offload")
    if x.activation_offload:
        axes.append(f"activation offload {x.activation_offload_layers}")
    if not x.dp_overlap:
        axes.append("no dp overlap")
    if x.tp_overlap:
        axes.append("tp overlap")
    for name, value in x.switches:
        axes.append(f"{AXES[name].label or name} {AXES[name].text(value)}")
    return " ".join(axes)


def _grouped(terms: Mapping[str, float]) -> dict[str, float]:
    """Return the terms of a step, those of all kernels that run once as one.

    Which stage is the slowest moves time between these. Their sum is more than the part `compute`
    of what binds (`planner.analyze.bottleneck`): operators that wait for memory are among them.
    """
    grouped = {KERNELS: sum(terms.get(t, 0.0) for t in COMPUTE_TERMS)}
    return {**grouped, **{t: terms[t] for t in TIME_TERMS if t not in COMPUTE_TERMS}}


def _shown_s(seconds: float, plan: Plan) -> str:
    """Return a part of the step in s, or in ms when the whole step is short."""
    return f"{seconds:.2f} s" if plan.step_time_s >= 2.0 else f"{seconds * 1e3:.1f} ms"


def _beyond_the_node(problem: Problem, layout: Layout) -> str:
    """Return which groups use a scale-up domain that is larger than a node, or ""."""
    pool, x = problem.pool, layout
    if pool.scale_up_domain <= pool.devices_per_node:
        return ""
    spans = {"tp": x.tp, "cp": x.tp * x.cp, "ep": x.etp * x.ep}
    sizes = {"tp": x.tp, "cp": x.cp, "ep": x.ep}
    inside = [
        f"{axis} {sizes[axis]}"
        for axis, span in spans.items()
        if sizes[axis] > 1
        and pool.devices_per_node < span <= pool.scale_up_domain
        and pool.scale_up_domain % span == 0
    ]
    if not inside:
        return ""
    return (
        f"{' and '.join(inside)} reach{'es' if len(inside) == 1 else ''} over nodes of "
        f"{pool.devices_per_node} and stay{'s' if len(inside) == 1 else ''} inside the scale-up "
        f"domain of {pool.scale_up_domain}"
    )


def why_first(
    problem: Problem,
    plans: Sequence[Plan],
    ranked: Sequence[tuple[Candidate, bool]],
    best: str = "the fastest",
    grid: LayerGrid | None = None,
) -> tuple[str, ...]:
    """Return the sentences that compare the first plan with the best plan outside its ties.

    `best` is what the objective calls the best plan (`planner.specs.search.objectives.BEST`);
    `grid` holds layer terms, if they are known.
    """
    if not plans:
        return ()
    first = plans[0]
    terms = _grouped(first.breakdown.time_s)
    least = MIN_SHARE * first.step_time_s
    largest = sorted(terms, key=lambda t: (-terms[t], t))
    lines = [" | ".join(f"{t} {_shown_s(terms[t], first)}" for t in largest if terms[t] >= least)]
    ties = [c for c, tie in ranked if tie]
    if len(ties) > 1:
        lines.append(
            f"{len(ties)} plans lie within {TIE_FRAC:.0%} of {best}: the model cannot tell "
            "them apart. Among ties we prefer no CPU offload, then more free memory, in steps of "
            f"{HEADROOM_STEP:.0%}, then the simplest layout"
        )
    if first.layout.switches:
        worth = switches_worth(problem, first.layout, grid)
        texts = [worth_text(x, first.step_time_s) for x in worth]
        lines += [f"switches: {', '.join(texts)}"] * bool(texts)
    wide = _beyond_the_node(problem, first.layout)
    if wide:
        lines.append(wide)
    rival = next((c for c, tie in ranked if not tie), None)
    if rival is None:
        return tuple(lines)
    alike = (x.breakdown for x in plans if (x.pool, x.precision) == (first.pool, first.precision))
    opened = next((breakdown for breakdown in alike if breakdown.layout == rival.layout), None)
    other = _grouped((opened or break_down(problem, rival.layout, grid=grid)).time_s)
    gaps = {t: other[t] - terms[t] for t in terms}
    ordered = sorted(gaps.items(), key=lambda x: (-x[1], x[0]))
    saved = [f"{t} -{_shown_s(gap, first)}" for t, gap in ordered if gap > least]
    paid = [f"{t} +{_shown_s(-gap, first)}" for t, gap in reversed(ordered) if -gap > least]
    lead = f"against {shown_layout(rival.layout)} ({rival.step_s / first.step_time_s - 1:+.1%}): "
    price = f", but longer: {', '.join(paid)}" if paid else ""
    lines.append(lead + (", ".join(saved) or "many small differences") + price)
    return tuple(lines)


def why_others(
    first: Plan, chosen: str, kind: str, others: Sequence[tuple[str, Candidate | None]]
) -> str:
    """Return the sentence that compares pool or recipe of the first plan with the others' best."""
    parts = [
        f"{name} {rival.step_s:.2f} s ({rival.step_s / first.step_time_s - 1:+.1%}, "
        f"{shown_layout(rival.layout)})"
        if rival
        else f"{name}: nothing fits"
        for name, rival in others
    ]
    lead = "in" if kind == "recipes" else "on"
    return f"{lead} {chosen}; at best the other {kind} take: {'; '.join(parts)}"


def why_count(first: Plan, others: Sequence[tuple[int, Candidate | None]]) -> str:
    """Return the sentence that compares the devices in use with other numbers of them."""
    n = first.layout.n_devices
    parts = [
        f"on {other} the fastest takes {rival.step_s:.2f} s"
        f" ({rival.step_s / first.step_time_s - 1:+.1%}, {shown_layout(rival.layout)})"
        if rival
        else f"on {other} there is no plan"
        for other, rival in others
    ]
    return f"on {n} devices, {first.n_idle} idle; {'; '.join(parts)}"
