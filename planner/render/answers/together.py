"""One job over several pools as a document: the plan by pool, what each adds, what runs it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from planner.documents import Blank, Grid, GridSpacing, Paragraph, Part
from planner.solver.answer.reasons import stage_words
from planner.solver.together.records import (
    NARROWEST,
    JoinedKind,
    JoinedLink,
    JoinedPlan,
    JoinedStage,
    LinkWorth,
    PoolWorth,
    Together,
)
from planner.specs.importers.hostlist import compress_hosts
from planner.specs.search.objectives import rounded_up, shown_duration
from planner.units import GIB, format_bandwidth, format_size, format_time

STAGE_HEADS = ("pool", "stages", "layers", "tp", "cp", "ep", "recompute", "ms", "GiB", "of")
PLAN_HEADS = ("plan", "step s", "tokens/s", "devices", "pipelines", "$/Mtok", "J/tok", "runs on")
REPLICA_HEADS = (
    "pool",
    "replicas",
    "mbs",
    "sequences",
    "share",
    "recompute",
    "ms",
    "GiB",
    "of",
    "step s",
)
RUN_HEADS = ("days", "k$")
"""Further columns where tokens of the run are stated, and prices."""
BY_TIME = ("step_time", "tokens_per_s")
"""Objectives that the bound, one of the step time, speaks of."""
NAMES = {
    "cost": "the cheapest",
    "energy": "the one of least energy",
    "goodput": "the one that ends the run first",
}
"""What the first plan is called by other objectives."""
DAY_S = 86400.0
LEAST_FREE = 0.05
"""Share of the usable memory below which the answer says how little is free."""
MARK = "t"
"""Before the rank of a plan over several pools, in tables and in PLAN arguments: t1."""


def together_document(together: Together) -> list[Part]:
    """Return what people read of a job over several pools."""
    parts: list[Part] = [Paragraph(together_sentence(together), strong=True)]
    if together.plans:
        first = together.plans[0]
        parts += [Blank(), *stage_parts(first), *link_parts(first.links)]
        parts += [Blank(), _plan_grid(together.plans)]
    if len(together.worth) > 1:
        parts += [Blank(), worth_grid(together.worth, together.limits)]
    parts += [Paragraph(link_worth_text(x)) for x in together.links]
    parts += [Paragraph(text) for text in _closing_texts(together)]
    return parts


def joined_plan_document(plan: JoinedPlan) -> list[Part]:
    """Return what people read of one plan over several pools."""
    lead = f"Plan {MARK}{plan.rank}, {plan.plan_id}: {plan_words(plan)}"
    parts: list[Part] = [Paragraph(lead, strong=True), Blank(), *stage_parts(plan)]
    parts += [*link_parts(plan.links), Blank(), _time_grid(plan.kinds)]
    return [*parts, Paragraph(runner_text(plan))]


def together_sentence(together: Together) -> str:
    """Return what to do, in one sentence."""
    if len(together.joined) < 2:
        return "There are no two pools to join: each plan uses one pool"
    alone = [x.alone_s for x in together.worth if x.alone_s is not None]
    if not together.plans and not together.complete:
        return (
            f"No plan over {pool_names(together.joined)} so far: the time limit stopped the search"
        )
    if not together.plans and together.n_missed:
        return f"No plan over {pool_names(together.joined)} {_missed_words(together)}"
    if not together.plans and together.bound_s is not None and alone:
        best = next(x for x in together.worth if x.is_used)
        return (
            f"Use {best.pool} alone: the fastest plans use one pool, and none over several takes"
            f" less than {format_time(together.bound_s)}; on it {format_time(min(alone))}"
        )
    if not together.plans:
        return f"No plan over {pool_names(together.joined)} fits: each plan uses one pool"
    first = together.plans[0]
    if not together.pays:
        best = next(x for x in together.worth if x.is_used)
        return (
            f"Use {best.pool} alone: the best plan over several pools takes"
            f" {first.step_time_s:.2f} s a step, on it {best.alone_s or 0.0:.2f} s"
        )
    gain = ""
    if alone and together.objective in BY_TIME:
        ratio = min(alone) / first.step_time_s
        gain = f", {ratio:.2f} times as fast as the fastest plan on one pool"
    run = _run_words(first) if together.limits or together.objective not in BY_TIME else ""
    return f"Use {plan_words(first)}: {first.step_time_s:.2f} s a step{run}{gain}"


def _run_words(plan: JoinedPlan) -> str:
    """Return how long the run takes and what it costs, as far as that is known."""
    days = "" if plan.expected_s is None else f", {plan.expected_s / DAY_S:,.1f} days"
    return days + ("" if plan.cost_usd is None else f", ${plan.cost_usd:,.0f}")


def _missed_words(together: Together) -> str:
    """Return which limits no plan keeps that was found, and what could be kept."""
    shown = ", ".join(limit_words(name, value) for name, value in together.nearest.items())
    nearest = f", at best {shown}" if shown else " together"
    proven = " (proven by the bound of the step)" if together.cannot else ""
    return f"keeps the limits{nearest}{proven}: {together.n_missed} plans that fit miss them"


def limit_words(name: str, value: float) -> str:
    """Return a limit as the command line has it, no less than a value.

    >>> limit_words("deadline_s", 30.0 * 86400), limit_words("budget_usd", 1e6)
    ('--deadline 30d', '--budget 1000000')
    """
    if name == "deadline_s":
        return f"--deadline {shown_duration(value)}"
    if name == "budget_usd":
        return f"--budget {math.ceil(value):d}"
    return f"--step-limit {rounded_up(value, 3)}"


def plan_words(plan: JoinedPlan) -> str:
    """Return which pools a plan uses, and how."""
    devices = " and ".join(f"{counted(n, 'device')} of {pool}" for pool, n in plan.devices.items())
    if plan.is_sharded:
        return f"{devices}, sharded replicas on different pools"
    spans = any(len(set(kind.pools)) > 1 for kind in plan.kinds)
    how = "stages on different pools" if spans else "replicas on different pools"
    if spans and len(plan.kinds) > 1:
        how = "stages and replicas on different pools"
    return f"{devices}, {how}"


def stage_parts(plan: JoinedPlan) -> Iterator[Part]:
    """Yield each kind of pipelines: its share of the batch, and its stages by pool."""
    if plan.is_sharded:
        yield Paragraph(replicas_text(plan))
        yield _replica_grid(plan)
        return
    for kind in plan.kinds:
        yield Paragraph(kind_text(kind))
        rows = tuple(_stage_rows(kind.stages))
        yield Grid(STAGE_HEADS, rows, "", (1, 2, 3, 4, 5, 7, 8, 9), spacing=GridSpacing(indent=2))


def kind_text(kind: JoinedKind) -> str:
    """Return how many pipelines of a kind there are, over which pools, with which share."""
    pipelines, stages = counted(kind.n_pipelines, "pipeline"), counted(len(kind.stages), "stage")
    return (
        f"{pipelines} of {stages} over {pool_names(kind.pools)}: {kind.n_sequences:,} sequences"
        f" ({kind.share:.0%}), {counted(kind.n_micro, 'micro-batch')} of {kind.mbs},"
        f" {kind.step_time_s:.2f} s"
    )


def replicas_text(plan: JoinedPlan) -> str:
    """Return what the replicas of a sharded plan have in common."""
    stage, n_micro = plan.kinds[0].stages[0], plan.kinds[0].n_micro
    each = plan.shard * stage.tp * stage.cp
    degrees = [f"{axis} {n}" for axis, n in (("tp", stage.tp), ("cp", stage.cp)) if n > 1]
    inside = f" ({', '.join([f'shard {plan.shard}', *degrees])})" if degrees else ""
    n_replicas = sum(kind.n_pipelines for kind in plan.kinds) // plan.shard
    return (
        f"{counted(n_replicas, 'replica')} of {counted(each, 'device')}{inside}, ZeRO {plan.zero};"
        f" {counted(n_micro, 'micro-batch')} a step on every one"
    )


def _replica_grid(plan: JoinedPlan) -> Grid:
    """Return the kinds of replicas: on which pool, with which part of the batch."""
    rows = tuple(
        (
            kind.pools[0],
            f"{kind.n_pipelines // plan.shard:,}",
            str(kind.mbs),
            f"{kind.n_sequences:,}",
            f"{kind.share:.0%}",
            stage.recompute,
            f"{stage.time_s * 1e3:.1f}",
            f"{stage.peak_bytes / GIB:.1f}",
            f"{stage.usable_bytes / GIB:.1f}",
            f"{kind.step_time_s:.2f}",
        )
        for kind in plan.kinds
        for stage in kind.stages
    )
    numbers = (1, 2, 3, 4, 6, 7, 8, 9)
    return Grid(REPLICA_HEADS, rows, "", numbers, spacing=GridSpacing(indent=2))


def kinds_text(plan: JoinedPlan) -> str:
    """Return how many pipelines, or sharded replicas, lie on which pools."""
    if not plan.is_sharded:
        return ", ".join(f"{kind.n_pipelines} on {'+'.join(kind.pools)}" for kind in plan.kinds)
    stage = plan.kinds[0].stages[0]
    each = plan.shard * stage.tp * stage.cp
    return ", ".join(
        f"{kind.n_pipelines // plan.shard} x {each} on {kind.pools[0]}" for kind in plan.kinds
    )


def counted(n: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "stage"), counted(2, "micro-batch")
    ('1 stage', '2 micro-batches')
    """
    plural = "" if n == 1 else "es" if noun.endswith("ch") else "s"
    return f"{n:,} {noun}{plural}"


def _stage_rows(stages: Sequence[JoinedStage]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each run of stages that are alike but for their layers."""
    for _, run in groupby(stages, key=lambda x: x.degrees):
        some = list(run)
        slowest, fullest = max(some, key=_time), max(some, key=lambda x: x.peak_bytes)
        yield (
            some[0].pool,
            str(len(some)),
            stage_words([x.layers for x in some]),
            str(some[0].tp),
            str(some[0].cp),
            str(some[0].ep),
            some[0].recompute,
            f"{slowest.time_s * 1e3:.1f}",
            f"{fullest.peak_bytes / GIB:.1f}",
            f"{fullest.usable_bytes / GIB:.1f}",
        )


def _time(stage: JoinedStage) -> float:
    return stage.time_s


def link_parts(links: Sequence[JoinedLink]) -> Iterator[Part]:
    """Yield what crosses each link in a step."""
    for link in links:
        price = f", ${link.usd:,.2f}" if link.usd else ""
        wan = "wan link" if link.wan else "link"
        text = (
            f"{wan} {' - '.join(link.between)}: {format_size(link.bytes)} a step over"
            f" {format_bandwidth(link.bandwidth_bytes_per_s)}{price}"
        )
        yield Paragraph(text)


def _time_grid(kinds: Sequence[JoinedKind]) -> Grid:
    terms = list(kinds[0].time)
    rows = tuple(
        (str(i), *(f"{kind.time[term] * 1e3:,.1f}" for term in terms), f"{kind.step_time_s:.3f}")
        for i, kind in enumerate(kinds, 1)
    )
    heads = ("kind", *(f"{term} ms" for term in terms), "step s")
    return Grid(heads, rows, "", tuple(range(1, len(heads))))


def _plan_grid(plans: Sequence[JoinedPlan]) -> Grid:
    has_run = any(plan.expected_s is not None for plan in plans)
    rows = tuple(
        (
            f"{MARK}{plan.rank}",
            f"{plan.step_time_s:.3f}",
            f"{plan.tokens_per_s:,.0f}",
            f"{plan.n_devices:,}",
            kinds_text(plan),
            "" if plan.usd_per_million_tokens is None else f"{plan.usd_per_million_tokens:.3f}",
            "" if plan.energy_j_per_token is None else f"{plan.energy_j_per_token:.3f}",
            *(_run_cells(plan) if has_run else ()),
            ", ".join(plan.runs_on) or "-",
        )
        for plan in plans
    )
    *heads, last = PLAN_HEADS
    heads += [*(RUN_HEADS if has_run else ()), last]
    words = {"pipelines": "replicas"} if plans[0].is_sharded else {}
    named = tuple(words.get(head, head) for head in heads)
    return Grid(named, rows, "", (1, 2, 3, *range(5, len(heads) - 1)))


def _run_cells(plan: JoinedPlan) -> tuple[str, str]:
    days = "" if plan.expected_s is None else f"{plan.expected_s / DAY_S:,.1f}"
    return days, "" if plan.cost_usd is None else f"{plan.cost_usd * 1e-3:,.1f}"


def worth_grid(worth: Sequence[PoolWorth], limits: Mapping[str, float] = {}) -> Grid:
    """Return what each pool adds as a table, of plans that keep the limits."""
    nothing = "none in the limits" if limits else "nothing fits"

    def seconds(value: float | None) -> str:
        return nothing if value is None else f"{value:.2f}"

    rows = tuple(
        (x.pool, seconds(x.alone_s), seconds(x.without_s), "yes" if x.is_used else "left out")
        for x in worth
    )
    return Grid(("pool", "alone s", "without it s", "used"), rows, "Pools", (1, 2))


def link_worth_text(link: LinkWorth) -> str:
    """Return from which bandwidth on a link pays."""
    names = " and ".join(link.between)
    if link.from_bytes_per_s is None:
        return f"joining {names} pays at no bandwidth of their link"
    if link.from_bytes_per_s <= NARROWEST:
        return f"joining {names} pays at any bandwidth of their link"
    stated = format_bandwidth(link.stated_bytes_per_s)
    return (
        f"joining {names} pays from {format_bandwidth(_rounded(link.from_bytes_per_s))} on"
        f" (the link has {stated})"
    )


def _rounded(value: float) -> float:
    """Return a number with three digits."""
    return float(f"{value:.3g}")


def proof_text(together: Together) -> str:
    """Return what is proven of the plans over several pools; empty where nothing is known."""
    if together.bound_s is None or together.gap is None:
        return ""
    stopped = "" if together.complete else "stopped by the time limit; "
    least = f"{stopped}no plan over these pools takes less than {format_time(together.bound_s)}"
    text = f"{least}: the fastest is within {together.gap:.1%} of the best there is"
    if together.proven:
        text = f"proven: no {_family(together)} faster"
    elif together.limits:
        text = (
            f"{least}, within the limits or not: the fastest found within them is within"
            f" {together.gap:.1%} of that"
        )
    if name := NAMES.get(together.objective):
        text += f"; {MARK}1 is {name} of the plans found, which is not proven"
    return text


def _family(together: Together) -> str:
    """Return which plans are looked for, with the verb."""
    if any(plan.is_sharded for plan in together.plans):
        return "sharded replicas over these pools, of those looked for, are"
    return "plan over these pools is"


def runner_text(plan: JoinedPlan) -> str:
    """Return what runs a plan, or which feature frameworks lack."""
    if plan.runs_on:
        return f"runs on: {', '.join(plan.runs_on)}"
    return f"no framework has what it takes: {'; '.join(plan.missing)}"


def _closing_texts(together: Together) -> Iterator[str]:
    """Yield the proof, what runs the first plan, and which pools were not joined."""
    if proof := proof_text(together):
        yield proof
    if together.plans:
        first = together.plans[0]
        yield f"{MARK}1 {runner_text(first)}"
        stages = [stage for kind in first.kinds for stage in kind.stages]
        fullest = max(stages, key=lambda x: x.peak_bytes / x.usable_bytes)
        free = 1.0 - fullest.peak_bytes / fullest.usable_bytes
        if free < LEAST_FREE:
            yield f"{MARK}1 leaves {free:.1%} of the memory of {fullest.pool} free"
        able = next((x for x in together.plans if x.runs_on), None)
        if able is not None and able is not first:
            later = able.step_time_s / first.step_time_s - 1.0
            yield f"{MARK}{able.rank} runs on {', '.join(able.runs_on)}, {later:.1%} slower"
    for name, parts in together.merged.items():
        yield f"{name}: pools {', '.join(parts)} are alike, and planned as one"
    for name, reason in together.alone.items():
        yield f"{name} is planned alone: {reason}"


def pool_names(pools: Sequence[str]) -> str:
    """Return pools in words, each once."""
    return " and ".join(dict.fromkeys(pools))


def pool_nodes_grid(pools: Sequence[Mapping[str, Any]]) -> Grid:
    """Return which nodes and ranks each pool holds, as `JoinedPlacement.pools` has them."""
    rows = tuple(
        (
            "{}-{}".format(*group["nodes"]),
            "{}-{}".format(*group["ranks"]),
            group["pool"],
            group["accelerator"],
            compress_hosts(group["hosts"]) if group["hosts"] else "",
        )
        for group in pools
    )
    return Grid(("node ranks", "ranks", "pool", "accelerator", "hosts"), rows, "")
