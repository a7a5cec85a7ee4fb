"""A plan over several pools explained: what binds it, time, memory, links, what is proven."""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from planner.analyze.joined.explanation import (
    FASTER,
    Gain,
    JoinedExplanation,
    LinkUse,
    StageFigures,
)
from planner.analyze.joined.terms import TERM_TEXTS, term_values
from planner.analyze.sharded.explanation import ShardedExplanation
from planner.documents import Blank, Code, Grid, GridSpacing, Paragraph, Part
from planner.render.answers.together import (
    MARK,
    kind_text,
    plan_words,
    pool_names,
    proof_text,
    runner_text,
    worth_grid,
)
from planner.render.document import text_of
from planner.solver.together.plans import TERMS
from planner.text_lines import WIDTH
from planner.units import GIB, format_bandwidth, format_size

SHOWN_PERCENT = 0.0005
"""What buys less than this share of a per cent is left out."""
TIME_HEADS = (
    *("stages", "pool", "accelerator", "layers", "fwd ms", "bwd ms", "busy"),
    *("hop ms", "sync ms", "exch ms", "update ms"),
)
MEMORY_HEADS = (
    *("stages", "pool", "tp", "cp", "ep", "recompute"),
    *("states", "activations", "other", "peak GiB", "of", "free"),
)


def joined_explanation_json(
    explanation: JoinedExplanation | ShardedExplanation, width: int = WIDTH
) -> dict[str, Any]:
    """Return the explanation as JSON, with its text after the name of the term."""
    data = explanation.to_json()
    text = text_of(explanation, width)
    return {"plan_id": data["plan_id"], "term": data["term"], "text": text, **data}


def joined_explanation_document(explanation: JoinedExplanation) -> list[Part]:
    """Return what binds the plan, then time, memory, links, pools and the proof; or one term."""
    if explanation.term:
        return _term_parts(explanation)
    opened = explanation.opened
    plan = opened.plan
    lead = f"Plan {MARK}{plan.rank}, {plan.plan_id}: {plan_words(plan)}"
    parts: list[Part] = [Paragraph(lead, strong=True), Blank(), *binding_parts(explanation)]
    parts += [Blank(), Code(tuple(_time_tree(explanation)))]
    if text := gain_text(explanation.gains):
        parts.append(Paragraph(text, label="1% more takes off the step:"))
    for i in range(1, len(plan.kinds) + 1):
        parts += [Blank(), *kind_parts(explanation, i)]
    parts += [Blank(), *(Paragraph(link_text(x)) for x in explanation.links)]
    if len(explanation.worth) > 1:
        parts += [Blank(), worth_grid(explanation.worth, opened.together.limits)]
    if proof := proof_text(opened.together):
        parts.append(Paragraph(proof))
    parts.append(Paragraph(runner_text(plan)))
    names = ", ".join(TERMS)
    return [*parts, Blank(), Paragraph(names, label="open a term: planner explain PLAN --term")]


def kind_parts(explanation: JoinedExplanation, number: int) -> list[Part]:
    """Return time and memory of the stages of a kind of pipelines, by pool; kinds from 1."""
    own = [x for x in explanation.stages if x.kind == number]
    text = f"kind {number}: {kind_text(explanation.opened.plan.kinds[number - 1])}"
    return [Paragraph(text), _stage_grid(own), Blank(), _memory_grid(own)]


def binding_parts(explanation: JoinedExplanation) -> Iterator[Part]:
    """Yield which kind, stage and pool the others wait for, and where memory is short."""
    plan = explanation.opened.plan
    i, stage = explanation.binding_kind, explanation.binding_stage
    kind = plan.kinds[i - 1]
    terms = sorted(kind.time.items(), key=lambda x: -x[1])
    most, seconds = terms[0]
    which = f"kind {i} of {len(plan.kinds)}, " if len(plan.kinds) > 1 else ""
    yield Paragraph(
        f"{which}{pool_names(kind.pools)}: {most} takes {seconds:.3f} of"
        f" {kind.step_time_s:.3f} s ({seconds / kind.step_time_s:.0%})",
        label="binds:",
    )
    yield Paragraph(
        f"stage {stage.stage} of {len(kind.stages)} on {stage.pool} ({stage.part}),"
        f" {stage.time_s * 1e3:.1f} ms a micro-batch, busy {stage.busy_frac:.0%} of the step",
        label="slowest stage:",
    )
    waits = [
        f"kind {j} {plan.step_time_s - x.step_time_s:.3f} s"
        for j, x in enumerate(plan.kinds, 1)
        if j != i and plan.step_time_s > x.step_time_s
    ]
    if waits:
        yield Paragraph(", ".join(waits), label="wait for it:")
    full = explanation.fullest_stage
    named = f"kind {full.kind}, " if len(plan.kinds) > 1 else ""
    yield Paragraph(
        f"{named}stage {full.stage} on {full.pool} ({full.part}): {full.peak_bytes / GIB:.1f} of"
        f" {full.usable_bytes / GIB:.1f} GiB",
        label="fullest stage:",
    )


def _time_tree(explanation: JoinedExplanation) -> Iterator[str]:
    """Yield the step of the kind that binds, by term."""
    kind = explanation.opened.plan.kinds[explanation.binding_kind - 1]
    shown = [(name, x) for name, x in kind.time.items() if x > 0.0]
    yield f"step time {kind.step_time_s:.4f} s"
    for i, (name, seconds) in enumerate(shown, 1):
        branch = "└─" if i == len(shown) else "├─"
        share = f"{seconds:>9.4f} s {seconds / kind.step_time_s * 100:>5.1f} %"
        yield f"{branch} {name:<9} {share}  {TERM_TEXTS[name].title}"


def gain_text(gains: tuple[Gain, ...]) -> str:
    """Return what a per cent more of each figure takes off the step."""
    shown = [x for x in gains if x.gain_percent >= SHOWN_PERCENT]
    assert FASTER == 1.01
    return ", ".join(f"{x.what} of {x.of} {x.gain_percent:.3f}%" for x in shown)


def _stage_runs(stages: list[StageFigures]) -> Iterator[list[StageFigures]]:
    """Yield stages that follow one another and are alike but for what they hold in flight."""
    for _, run in groupby(stages, key=lambda x: (x.pool, x.layers, x.tp, x.cp, x.ep, x.recompute)):
        yield list(run)


def _places(run: list[StageFigures]) -> str:
    first, last = run[0].stage, run[-1].stage
    return str(first) if first == last else f"{first}-{last}"


def _stage_grid(stages: list[StageFigures]) -> Grid:
    rows = []
    for run in _stage_runs(stages):
        slow = max(run, key=lambda x: x.time_s)
        once = [max(values) * 1e3 for values in zip(*(_once(x) for x in run), strict=True)]
        rows.append(
            (
                _places(run),
                slow.pool,
                slow.part,
                str(slow.layers),
                f"{slow.forward_s * 1e3:.1f}",
                f"{slow.backward_s * 1e3:.1f}",
                f"{slow.busy_frac:.0%}",
                *(f"{x:,.1f}" for x in once),
            )
        )
    numeric = (0, *range(3, len(TIME_HEADS)))
    return Grid(TIME_HEADS, tuple(rows), "Time by stage", numeric, spacing=GridSpacing(indent=2))


def _once(stage: StageFigures) -> tuple[float, float, float, float]:
    return stage.hop_s, stage.sync_s, stage.exchange_s, stage.update_s


def _memory_grid(stages: list[StageFigures]) -> Grid:
    rows = []
    for run in _stage_runs(stages):
        full = max(run, key=lambda x: x.peak_bytes)
        figures = (full.states_bytes, full.activation_bytes, full.other_bytes)
        rows.append(
            (
                _places(run),
                full.pool,
                str(full.tp),
                str(full.cp),
                str(full.ep),
                full.recompute,
                *(f"{x / GIB:.1f}" for x in (*figures, full.peak_bytes, full.usable_bytes)),
                f"{1.0 - full.peak_bytes / full.usable_bytes:.0%}",
            )
        )
    numeric = (0, 2, 3, 4, *range(6, len(MEMORY_HEADS)))
    return Grid(
        MEMORY_HEADS, tuple(rows), "Memory by stage", numeric, spacing=GridSpacing(indent=2)
    )


def link_text(link: LinkUse) -> str:
    """Return what crosses a link, and for what."""
    parts = (("messages", link.messages_bytes), ("exchange of gradients", link.exchange_bytes))
    shown = ", ".join(f"{format_size(x)} {name}" for name, x in parts if x > 0)
    return (
        f"link {' - '.join(link.between)}: {shown} a step over"
        f" {format_bandwidth(link.bandwidth_bytes_per_s)}, busy {link.busy_frac:.1%} of it"
    )


def _term_parts(explanation: JoinedExplanation) -> list[Part]:
    """Return one term: its formula, its source, and its numbers in this plan."""
    name, text = explanation.term, TERM_TEXTS[explanation.term]
    values = term_values(explanation.opened.priced, name)
    rows = tuple(
        (
            str(x["kind"]),
            f"{x['time_s'] * 1e3:,.2f}",
            ", ".join(f"{y * 1e3:,.2f}" for y in x["by_stage_s"]),
        )
        for x in values
    )
    return [
        Paragraph(f"{name} (time): {text.title}, plan {explanation.opened.plan.plan_id}"),
        Blank(),
        Code((f"  {text.equation}", f"  {text.symbols}")),
        Paragraph(text.source),
        Blank(),
        Grid(("kind", "ms", "by stage, ms"), rows, "With this plan's numbers", (0, 1)),
    ]
