"""A plan of sharded replicas explained: what decides, time, traffic and memory by pool."""

from collections.abc import Iterator

from planner.analyze.sharded.explanation import Between, HeldUp, OtherPlan, ShardedExplanation
from planner.analyze.sharded.terms import SHARDED_TERMS, sharded_term_values
from planner.analyze.sharded.traffic import ReplicaTraffic
from planner.documents import Blank, Code, Grid, GridSpacing, Paragraph, Part
from planner.render.answers.joined.explanation import gain_text, link_text
from planner.render.answers.together import (
    MARK,
    plan_words,
    proof_text,
    replicas_text,
    runner_text,
    worth_grid,
)
from planner.units import GIB

TIME_HEADS = (
    *("pool", "replicas", "mbs"),
    *("compute", "straggle", "sync", "exchange", "update", "fixed", "step", "waits"),
)
TRAFFIC_HEADS = ("pool", "gathers", "scatters", "exchange", "waited for", "slowed by")
MEMORY_HEADS = (
    *("pool", "accelerator", "recompute", "fwd ms", "bwd ms"),
    *("states", "activations", "other", "peak GiB", "of", "free"),
)
SPACING = GridSpacing(indent=2, captioned=True)


def sharded_explanation_document(explanation: ShardedExplanation) -> list[Part]:
    """Return what decides, then time, traffic, memory, links, other plans; or one term."""
    if explanation.term:
        return _term_parts(explanation)
    opened = explanation.opened
    plan = opened.plan
    lead = f"Plan {MARK}{plan.rank}, {plan.plan_id}: {plan_words(plan)}"
    parts: list[Part] = [Paragraph(lead, strong=True), Blank(), *deciding_parts(explanation)]
    parts += [Blank(), Code(tuple(_time_tree(explanation)))]
    if text := gain_text(explanation.gains):
        parts.append(Paragraph(text, label="1% more takes off the step:"))
    parts += [Blank(), Paragraph(replicas_text(plan)), *replica_parts(explanation)]
    parts += [Blank(), *(Paragraph(link_text(x)) for x in explanation.links)]
    if len(explanation.worth) > 1:
        parts += [Blank(), worth_grid(explanation.worth, opened.together.limits)]
    if explanation.others:
        parts += [Blank(), _other_grid(explanation.others)]
    if proof := proof_text(opened.together):
        parts.append(Paragraph(proof))
    parts.append(Paragraph(runner_text(plan)))
    names = ", ".join(SHARDED_TERMS)
    return [*parts, Blank(), Paragraph(names, label="open a term: planner explain PLAN --term")]


def deciding_parts(explanation: ShardedExplanation) -> Iterator[Part]:
    """Yield which pool the others wait for, what holds up the exchange, where memory is short."""
    plan, between = explanation.opened.plan, explanation.between
    i = explanation.binding_kind
    kind, slowest = plan.kinds[i - 1], explanation.stages[i - 1]
    most = max(kind.time, key=lambda x: kind.time[x])
    seconds = kind.time[most]
    each_s = slowest.forward_s + slowest.backward_s
    yield Paragraph(
        f"{slowest.pool} ({slowest.part}): {most} takes {seconds:.3f} of"
        f" {kind.step_time_s:.3f} s ({seconds / kind.step_time_s:.0%}), {each_s * 1e3:.1f} ms a"
        f" micro-batch of {kind.mbs}",
        label="slowest replicas:",
    )
    waits = [
        f"{x.pools[0]} {plan.step_time_s - x.step_time_s:.3f} s"
        for x in plan.kinds
        if plan.step_time_s > x.step_time_s
    ]
    if waits:
        yield Paragraph(", ".join(waits), label="wait for them:")
    less = 1.0 - between.free_links_s / plan.step_time_s
    yield Paragraph(
        f"{_held_up_text(between)}: {between.micro_batch_s * 1e3:.1f} ms a micro-batch;"
        f" {_waits_text(explanation.traffic[i - 1])}, a step; with links that cost nothing"
        f" the step is {less:.1%} shorter",
        label="sum of gradients over the replicas:",
    )
    full = explanation.fullest_stage
    yield Paragraph(
        f"{full.pool} ({full.part}): {full.peak_bytes / GIB:.1f} of"
        f" {full.usable_bytes / GIB:.1f} GiB",
        label="fullest replicas:",
    )


def _held_up_text(between: Between) -> str:
    """Return what holds up the sum over the replicas, or what which part of it."""

    def where(part: Between | HeldUp) -> str:
        return f"link {part.of}" if part.what == "link" else f"the network of {part.of}"

    if len({(x.what, x.of) for x in between.units}) == 1:
        return f"{where(between)} holds it up"
    return ", ".join(f"{where(x)} holds up {x.unit}" for x in between.units)


def _waits_text(traffic: ReplicaTraffic) -> str:
    """Return what of the sum over the replicas compute waits for, and what it slows down by."""
    waits_s, slowdown_s = traffic.exchange_waits_s, traffic.exchange_slowdown_s
    # What is waited for is not hidden, and may slow down less than inside a replica alone.
    less = " less" if slowdown_s < 0.0 else ""
    return (
        f"{waits_s * 1e3:.1f} ms waited for and {abs(slowdown_s) * 1e3:.1f} ms{less} slowed down"
    )


def _time_tree(explanation: ShardedExplanation) -> Iterator[str]:
    """Yield the step of the slowest replicas, by term."""
    kind = explanation.opened.plan.kinds[explanation.binding_kind - 1]
    shown = [(name, x) for name, x in kind.time.items() if x > 0.0]
    yield f"step time {kind.step_time_s:.4f} s"
    for i, (name, seconds) in enumerate(shown, 1):
        branch = "└─" if i == len(shown) else "├─"
        share = f"{seconds:>9.4f} s {seconds / kind.step_time_s * 100:>5.1f} %"
        yield f"{branch} {name:<9} {share}  {SHARDED_TERMS[name].title}"


def replica_parts(explanation: ShardedExplanation) -> Iterator[Part]:
    """Yield time by term, traffic beside compute, and memory, a row for each kind of replica."""
    plan = explanation.opened.plan
    times, traffics, memories = [], [], []
    for kind, stage, traffic in zip(
        plan.kinds, explanation.stages, explanation.traffic, strict=True
    ):
        terms = [kind.time[name] for name in SHARDED_TERMS]
        whole = (*terms, kind.step_time_s, plan.step_time_s - kind.step_time_s)
        n = f"{kind.n_pipelines // plan.shard:,}"
        times.append((stage.pool, n, str(kind.mbs), *(_ms(x) for x in whole)))
        waited_s = traffic.gather_waits_s + traffic.scatter_waits_s + traffic.exchange_waits_s
        sent = (traffic.gather_s, traffic.scatter_s, traffic.exchange_s)
        traffics.append((stage.pool, *(_ms(x) for x in (*sent, waited_s, traffic.slowdown_s))))
        sizes = (stage.states_bytes, stage.activation_bytes, stage.other_bytes)
        memories.append(
            (
                stage.pool,
                stage.part,
                stage.recompute,
                _ms(stage.forward_s),
                _ms(stage.backward_s),
                *(f"{x / GIB:.1f}" for x in (*sizes, stage.peak_bytes, stage.usable_bytes)),
                f"{1.0 - stage.peak_bytes / stage.usable_bytes:.0%}",
            )
        )
    title = "time by term, ms a step"
    yield Grid(TIME_HEADS, tuple(times), title, tuple(range(1, 11)), spacing=SPACING)
    title = "traffic beside compute, ms a step"
    yield Grid(TRAFFIC_HEADS, tuple(traffics), title, tuple(range(1, 6)), spacing=SPACING)
    title = "a micro-batch, ms; memory of a device, GiB"
    yield Grid(MEMORY_HEADS, tuple(memories), title, tuple(range(3, 11)), spacing=SPACING)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"


def _other_grid(others: tuple[OtherPlan, ...]) -> Grid:
    """Return the plans that come nearest, and what differs in them."""
    rows = tuple(
        (
            f"{MARK}{x.rank}",
            f"{x.step_time_s:.3f}",
            f"{x.more_frac:+.1%}",
            ", ".join(f"{axis} {own} -> {other}" for axis, own, other in x.changes),
        )
        for x in others
    )
    return Grid(
        ("nearest other", "step s", "", "what differs"), rows, "Nearest other plans", (1, 2)
    )


def _term_parts(explanation: ShardedExplanation) -> list[Part]:
    """Return one term: its formula, its source, and its numbers in this plan."""
    name, text = explanation.term, SHARDED_TERMS[explanation.term]
    values = sharded_term_values(explanation.opened, name)
    rows = tuple(
        (
            str(x["kind"]),
            x["pool"],
            f"{x['time_s'] * 1e3:,.2f}",
            ", ".join(f"{part} {y * 1e3:,.2f}" for part, y in x["parts"].items()),
        )
        for x in values
    )
    parts: list[Part] = [
        Paragraph(f"{name} (time): {text.title}, plan {explanation.opened.plan.plan_id}"),
        Blank(),
        Code((f"  {text.equation}", f"  {text.symbols}")),
        Paragraph(text.source),
        Blank(),
        Grid(("kind", "pool", "ms", "parts, ms"), rows, "With this plan's numbers", (0, 2)),
    ]
    if alone_s := values[0]["micro_batch_s"]:
        units = tuple(next(iter(alone_s.values())))
        of = "of each the longest" if len(units) > 1 else "the longest"
        title = f"one micro-batch on each pool and link alone, ms: {of} counts"
        alone = tuple(
            (part, *(f"{x * 1e3:,.2f}" for x in seconds.values()))
            for part, seconds in alone_s.items()
        )
        places = tuple(range(1, len(units) + 1))
        parts += [Blank(), Grid(("", *units), alone, title, places, spacing=SPACING)]
    return parts
