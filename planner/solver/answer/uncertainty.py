"""How sure a predicted step time is, and which plans the model cannot tell apart."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, log1p

from costmodels.layers.layer_grid import LayerGrid
from costmodels.plans import Layout
from costmodels.problem import Problem
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.resolution import resolution_of
from searches.frameworks.registry import searched_frameworks
from searches.frameworks.table import runnable_layouts
from searches.options import SearchOptions
from searches.pricing.candidates import ByDegrees, Candidate
from searches.pricing.layout_prices import price_layouts
from searches.pricing.shared_work import SharedWork

TIE_FRAC = 0.01
"""Plans this close to the fastest count as ties, which memory headroom orders: repeats of one
measured layout differ by 0.3-3 %. The model tells plans apart less well than that
(`planner.solver.calibration.resolution`), but in measured sweeps a first plan chosen by headroom
among plans 3 % or more behind is a worse one."""

HEADROOM_STEP = 0.05
"""Memory headroom is compared in steps of this share of the usable memory."""

MARGIN_COST_FRAC = 0.03
"""How much slower than the fastest a plan may be that comes first for its memory margin, a share:
as much as repeats of one measured layout differ at most."""

SAME_MEMORY = 1.005
"""Memory that differs by less than this factor counts as the same."""


def without_pointless_recompute(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates without those that recompute more for no memory.

    A plan is left out when another differs from it in recomputation alone, is no slower and needs
    no more memory: the price of a recomputed layer's working set can eat what it saves.
    """

    def degrees(c: Candidate) -> tuple[object, ...]:
        x = c.layout
        split = (x.tp, x.pp, x.dp, x.cp, x.cp_comm, x.ep, x.etp)
        switches = (x.optimizer_offload, x.activation_offload, x.dp_overlap, x.hpz)
        return (*split, x.vpp, x.split, x.mbs, x.zero, x.sp_code, *switches, x.switches)

    undominated: dict[tuple[object, ...], list[Candidate]] = {}
    out = []
    for c in sorted(candidates, key=lambda c: (c.step_s, c.peak_bytes, ByDegrees(c.layout))):
        rivals = undominated.setdefault(degrees(c), [])
        if all(c.peak_bytes * SAME_MEMORY < faster.peak_bytes for faster in rivals):
            rivals.append(c)
            out.append(c)
    return out


def with_plain_groups(
    problem: Problem,
    candidates: Sequence[Candidate],
    options: SearchOptions = SearchOptions(),
    grid: LayerGrid | None = None,
    work: SharedWork | None = None,
) -> list[Candidate]:
    """Return the candidates with ZeRO groups over all ranks where smaller ones gain nothing.

    A plan whose ZeRO groups are replicated gives way to the one with whole groups when that is no
    further behind than the model can tell, the options allow it and the framework runs it: it
    needs less memory and is simpler to run. `grid` holds layer terms, if they are known; `work`
    what other searches know.
    """

    def may_be_whole(x: Layout) -> bool:
        return x.shard > 0 and options.allows("dp_shard", x.dp * x.cp)

    split = [c for c in candidates if may_be_whole(c.layout)]
    layouts = [replace(c.layout, shard=0) for c in split]
    if layouts and options.framework != "any":
        vendor = problem.pool.accelerator.vendor
        names = searched_frameworks(options.framework, vendor)
        able_each = runnable_layouts(names, layouts, problem.shape, problem.job, vendor)
        runs = [any(column) for column in able_each.T.tolist()]
        split = [c for c, able in zip(split, runs, strict=True) if able]
        layouts = [x for x, able in zip(layouts, runs, strict=True) if able]
    total = price_layouts(problem, layouts, grid, work)
    plain = {}
    for c, other in zip(split, total, strict=True):
        # The pipeline is the same, so its exact time differs from the closed form by as much.
        step_s = c.step_s + (other.closed_form_s - c.closed_form_s)
        plain[c.layout] = replace(other, step_s=step_s)
    out = []
    for c in candidates:
        result = plain.get(c.layout)
        near = result is not None and result.step_s <= c.step_s * (1.0 + TIE_FRAC)
        out += [result] if result is not None and near else [c]
    return out


def resolution_groups(
    plans: Sequence[tuple[Layout, float]], calibration: Calibration
) -> tuple[int, ...]:
    """Return the group of each plan, from 1; plans are layouts with their values, best first.

    A group is led by its first plan. A plan belongs to the first group whose leader the model
    cannot tell it from, and leads the next one where there is none.
    """
    leaders: list[tuple[Layout, float]] = []
    results = []
    for layout, value in plans:
        near = (
            i
            for i, (first, best) in enumerate(leaders)
            if abs(log(value / best)) <= log1p(resolution_of(first, layout, calibration))
        )
        group = next(near, len(leaders))
        if group == len(leaders):
            leaders.append((layout, value))
        results.append(group + 1)
    return tuple(results)


def simplicity(candidate: Candidate) -> tuple[int, int, int]:
    """Return how involved a plan is: axes in use, virtual stages, recomputed layers or modules."""
    x = candidate.layout
    axes = (
        x.tp > 1,
        x.pp > 1,
        x.cp > 1,
        x.vpp > 1,
        x.zero > 1,
        x.shard > 0,
        x.recompute != "none",
        x.tp_overlap,
        x.hpz > 1,
    )
    n_recomputed = x.recompute_layers + len(x.recompute_modules)
    return sum(axes) + (x.split != "even"), x.vpp, n_recomputed + x.activation_offload_layers


def keeps_margin(c: Candidate, usable_bytes: float, margin_frac: float) -> bool:
    """Tell whether a plan leaves a share of the usable memory free."""
    return c.peak_bytes <= (1.0 - margin_frac) * usable_bytes


@dataclass(frozen=True, slots=True)
class RankLimits:
    """Up to where plans tie, and whether those that fill the memory do."""

    value: float
    """Plans up to this value of the objective tie."""
    margin_frac: float
    """Share of the usable memory that the first plan leaves free where that costs little."""
    only_roomy: bool
    """Whether only plans that keep the margin tie: the best of them is behind the best of all by
    more than ties, but by no more than `MARGIN_COST_FRAC`."""

    @classmethod
    def of(cls, values: Sequence[tuple[float, bool]], margin_frac: float) -> "RankLimits":
        """Return the limits of plans, each with its value and whether it keeps the margin."""
        best = min(value for value, _ in values)
        limit = best * (1.0 + TIE_FRAC)
        roomy = min((value for value, is_roomy in values if is_roomy), default=float("inf"))
        if limit < roomy <= best * (1.0 + MARGIN_COST_FRAC):
            return cls(roomy * (1.0 + TIE_FRAC), margin_frac, only_roomy=True)
        return cls(limit, margin_frac, only_roomy=False)

    def ties(self, c: Candidate, usable_bytes: float, value: float) -> bool:
        """Tell whether a plan ties with the first."""
        near = value <= self.value
        return near and (not self.only_roomy or keeps_margin(c, usable_bytes, self.margin_frac))

    def key(self, c: Candidate, usable_bytes: float, value: float) -> tuple[object, ...]:
        """Return the sort key of a plan of some value.

        Those that tie come first: those that keep the margin, then those with the optimizer or
        activations on the device, as headroom is bought with the host, then by memory headroom,
        simplicity and time.
        """
        if not self.ties(c, usable_bytes, value):
            return (1, value, c.step_s, c.peak_bytes, ByDegrees(c.layout))
        tight = not keeps_margin(c, usable_bytes, self.margin_frac)
        headroom = int((1.0 - c.peak_bytes / usable_bytes) / HEADROOM_STEP)
        offloaded = c.layout.optimizer_offload + c.layout.activation_offload
        order = (tight, offloaded, -headroom, *simplicity(c))
        return (0, *order, c.step_s, ByDegrees(c.layout))
