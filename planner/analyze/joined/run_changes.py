"""The changes of a run over several pools that are worth most: one axis each, nodes as they are.

A change that moves layers (`tp`, `cp`, `pp`, and `layers` itself) is priced with its best split:
from an even one, or the run's own, layers go one by one from the slowest stage to the fastest.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from costmodels.mixed.layer_tables import Degrees
from costmodels.mixed.plans import MixedPlan
from costmodels.mixed.prices import MixedPrice, fits
from costmodels.plans import Layout
from planner.analyze.check.asked import AskedRun
from planner.analyze.check.changes import MIN_GAIN, N_CHANGES, as_overrides, connections
from planner.analyze.check.report import Change, Report
from planner.errors import PlannerError
from planner.frameworks.runs.changes import changed_settings, changed_words
from planner.frameworks.runs.nearest_layout import nearest_layout
from planner.solver.answer.reasons import stage_words
from planner.solver.together.problems import JoinedProblem
from planner.specs.inputs import ModelInput

PlanOf = Callable[[Layout], MixedPlan | None]
"""The plan of a layout on the nodes of a run; None where a stage would lie on two pools."""
RECOMPUTES = ("none", "selective", "full")
COMPARED = ("tp", "pp", "dp", "cp", "ep", "mbs", "zero", "recompute", "stage_layers")
"""Fields of a layout that a changed run is read back by."""


@dataclass(frozen=True, slots=True)
class PricedJoinedRun:
    """A run over several pools as it is priced, nothing changed."""

    asked: AskedRun
    report: Report
    """What is said of it so far."""
    model: ModelInput
    layout: Layout
    per_node: int
    plan_of: PlanOf
    step_s: float
    fits: bool
    problem_of: Callable[[Sequence[Degrees]], JoinedProblem]
    """The job on the pools of the run, with tables of some degrees."""


def joined_changes(run: PricedJoinedRun) -> tuple[Change, ...]:
    """Return the changes that are worth most among those that fit, the fastest first."""
    variants = list(_variants(run.layout))
    degrees = [Degrees(x.tp, x.cp, x.ep, x.mbs) for _, x, _ in variants]
    joined = run.problem_of(list(dict.fromkeys(degrees)))
    priced: list[tuple[float, str, Layout, MixedPrice]] = []
    for axis, layout, moves_layers in variants:
        found = _best_split(joined, layout, run.plan_of, moves_layers=moves_layers)
        if found and found[0] != run.layout:
            priced.append((found[1].step_s, axis, *found))
    least = MIN_GAIN if run.fits else -math.inf
    chosen: list[Change] = []
    for step_s, axis, layout, price in sorted(priced, key=lambda x: (x[0], x[1])):
        gain = 1.0 - step_s / run.step_s
        if len(chosen) >= N_CHANGES or gain < least:
            break
        if any(x.text.startswith(f"{axis} ") for x in chosen):
            continue
        settings = _settings(run, layout, joined)
        if settings is None:
            continue
        chosen.append(
            Change(
                text=_words(axis, run.layout, layout),
                settings=settings,
                step_s=step_s,
                gain_frac=gain,
                peak_bytes=max(x.peak_bytes for kind in price.kinds for x in kind.stages),
                fits=True,
                layout=layout,
            )
        )
    return tuple(chosen)


def _words(axis: str, old: Layout, new: Layout) -> str:
    """Return a change: `tp 4 -> 2`, with the layers of the stages where they are others."""
    layers = f"layers {stage_words(old.stage_layers)} -> {stage_words(new.stage_layers)}"
    if axis == "layers":
        return layers
    text = f"{axis} {getattr(old, axis)} -> {getattr(new, axis)}"
    return text if old.stage_layers == new.stage_layers else f"{text}, {layers}"


def _variants(old: Layout) -> Iterator[tuple[str, Layout, bool]]:
    """Yield what one change makes of a layout: axis, layout, whether layers move too."""
    if old.pp > 1:
        yield "layers", old, True
    for axis in ("tp", "cp", "pp"):
        for size in (getattr(old, axis) * 2, getattr(old, axis) // 2):
            if size and (new := _resized(old, axis, size)):
                yield axis, new, new.pp > 1
    for mbs in (old.mbs * 2, old.mbs // 2):
        if mbs and old.gbs % (old.dp * mbs) == 0:
            yield "mbs", replace(old, mbs=mbs), False
    for ep in (old.ep * 2, old.ep // 2):
        if ep and old.ep > 1:
            yield "ep", replace(old, ep=ep), False
    for recompute in RECOMPUTES:
        if recompute != old.recompute:
            yield "recompute", _with_recompute(old, recompute), False
    yield "zero", replace(old, zero=1 - old.zero), False


def _resized(old: Layout, axis: str, size: int) -> Layout | None:
    """Return a layout of another degree on the same devices; None where it does not divide."""
    degrees = {"tp": old.tp, "cp": old.cp, "pp": old.pp} | {axis: size}
    dp, rest = divmod(old.n_devices, math.prod(degrees.values()))
    n_layers = sum(old.stage_layers)
    if rest or not dp or old.gbs % (dp * old.mbs) or degrees["pp"] > n_layers:
        return None
    few, more = divmod(n_layers, degrees["pp"])
    layers = tuple(few + (i < more) for i in range(degrees["pp"]))
    new = replace(
        old,
        tp=degrees["tp"],
        cp=degrees["cp"],
        pp=degrees["pp"],
        dp=dp,
        sp=degrees["tp"] > 1,
        cp_comm="p2p" if degrees["cp"] > 1 else "",
        schedule="1f1b" if degrees["pp"] > 1 else "none",
    )
    return _with_layers(new, layers)


def _with_layers(layout: Layout, layers: tuple[int, ...]) -> Layout:
    split = "even" if len(set(layers)) == 1 else "-".join(map(str, layers))
    return _with_recompute(replace(layout, stage_layers=layers, split=split), layout.recompute)


def _with_recompute(layout: Layout, recompute: str) -> Layout:
    n = max(layout.stage_layers) if recompute == "full" else 0
    modules = ("core_attn",) if recompute == "selective" else ()
    return replace(layout, recompute=recompute, recompute_layers=n, recompute_modules=modules)


def _best_split(
    joined: JoinedProblem, layout: Layout, plan_of: PlanOf, *, moves_layers: bool
) -> tuple[Layout, MixedPrice] | None:
    """Return a layout that fits with its price, layers moved where that helps; None else."""

    def priced(some: Layout) -> tuple[bool, float, Layout, MixedPrice] | None:
        plan = plan_of(some)
        if plan is None:
            return None
        try:
            price = joined.price(plan)
        except KeyError:  # degrees that one of the pools does not have
            return None
        return not fits(plan, joined.mixed, price), price.step_s, some, price

    best = priced(layout)
    while best is not None and moves_layers:
        moved = priced(_with_layers(best[2], _one_moved(best[2].stage_layers, best[3])))
        if moved is None or moved[:2] >= best[:2]:
            break
        best = moved
    return None if best is None or best[0] else best[2:]


def _one_moved(layers: tuple[int, ...], price: MixedPrice) -> tuple[int, ...]:
    """Return layers of stages with one moved from the slowest stage to the fastest."""
    times = [
        max(kind.stages[i].forward_s + kind.stages[i].backward_s for kind in price.kinds)
        for i in range(len(layers))
    ]
    slow = max((i for i in range(len(layers)) if layers[i] > 1), key=lambda i: times[i], default=0)
    fast = min(range(len(layers)), key=lambda i: times[i])
    if slow == fast:
        return layers
    return tuple(n - (i == slow) + (i == fast) for i, n in enumerate(layers))


def _settings(run: PricedJoinedRun, new: Layout, joined: JoinedProblem) -> tuple[str, ...] | None:
    """Return what to write to come to a layout; None where nothing says it, or it is refused."""
    first, own = joined.problems[0], run.report.run
    nodes = new.n_devices // run.per_node
    problem = replace(first, pool=replace(first.pool, n_nodes=nodes))
    changes = changed_settings(own, run.layout, new, problem)
    if not changes:
        return None
    sets, pins = as_overrides(changes)
    try:
        changed = run.asked.source.read(new.n_devices, sets, pins, all_devices=False)
    except PlannerError:
        return ()
    commands, env = connections(changed.env, run.layout, new)
    changed = replace(changed, env=env)
    described, _ = run.asked.describe(changed)
    before = {broken.rule.code for broken in run.report.refusals}
    for each in joined.problems:
        verdict = run.asked.judge(changed, described, each.pool.accelerator)
        if {broken.rule.code for broken in verdict.refused} - before:
            return None
    near = nearest_layout(
        changed.layout, first.shape, first.job.seq_len, new.n_devices, run.per_node
    )
    read = near.layout
    if read is None or any(getattr(read, x) != getattr(new, x) for x in COMPARED):
        return None
    return (*changed_words(own, changes), *commands)
