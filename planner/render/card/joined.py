"""The card of a plan over several pools: one sentence, its figures, one picture by pool."""

from collections.abc import Mapping
from typing import Any

from planner.render.answers.together import (
    MARK,
    plan_words,
    proof_text,
    runner_text,
    together_document,
    together_sentence,
)
from planner.render.card.answer import accelerator_name, job_words
from planner.render.card.card import (
    AnswerCard,
    Bar,
    CardCounts,
    CardFigure,
    NextCommand,
    PipelineRow,
    PoolsDrawing,
    PoolStage,
    Segment,
)
from planner.render.card.figures import part_text, seconds
from planner.render.card.html import card_html
from planner.render.card.sentences import bottleneck_words
from planner.render.colours import LEGEND
from planner.render.html import html
from planner.solver.answer.result import Result
from planner.solver.together.records import JoinedKind, JoinedPlan, JoinedStage, Together
from planner.units import GIB, format_percent

TERM_KEYS = {
    "compute": "compute",
    "bubble": "waiting",
    "straggle": "waiting",
    "messages": "pp",
    "sync": "dp",
    "exchange": "network",
    "update": "per step",
    "fixed": "per step",
}
"""Key of the legend by term of the step of a plan over several pools."""


def joined_card_of(data: Mapping[str, Any], plan: JoinedPlan, source: str = "last") -> AnswerCard:
    """Return the card that `planner show` has of a plan over several pools of an answer."""
    result = Result.from_json(data)
    assert result.together is not None
    return joined_card(plan, result.together, result, source)


def together_html(result: Result, *, is_styled: bool = True) -> str:
    """Return what people read of a job over several pools: the card of its first plan, tables.

    Empty where none was asked for. `is_styled` as in `card_html`.
    """
    together = result.together
    if together is None:
        return ""
    parts = together_document(together)
    if not together.plans:
        return html(parts)
    card = joined_card(together.plans[0], together, result)
    return card_html(card, is_styled=is_styled) + html(parts[1:])  # the card says the first


def joined_card(
    plan: JoinedPlan,
    together: Together | None = None,
    result: Result | None = None,
    source: str = "",
) -> AnswerCard:
    """Return the card of a plan over several pools.

    Without `together` and `result` it says what the plan alone knows.
    """
    parts = {}
    if result is not None:
        parts = {x["name"]: accelerator_name(x) for x in result.inputs["cluster"]["pools"]}
    slowest = max(plan.kinds, key=lambda x: x.step_time_s)
    step = _step_bar(slowest)
    is_first = together is not None and plan.rank == 1
    words = f"Plan {MARK}{plan.rank}: {plan_words(plan)}"
    which = f"{source}#{MARK}{plan.rank}"
    return AnswerCard(
        sentence=together_sentence(together) if together and is_first else words,
        job=job_words(result) if result else "",
        cluster=", ".join(
            f"{n:,} of {name}" + (f" ({parts[name]})" if name in parts else "")
            for name, n in plan.devices.items()
        ),
        plan_id=plan.plan_id,
        figures=tuple(_figures(plan)),
        why=f"Bottleneck: {bottleneck_words(step)}; {_slowest_words(slowest)}.",
        choice="",
        proof=proof_text(together) if together and is_first else "",
        counts=CardCounts(0, 0, 0, 0),
        closed=(),
        assumptions=(),
        notes=(runner_text(plan),),
        warnings=(),
        drawing=pools_drawing(plan, parts),
        step=step,
        memory=_memory_bar(_fullest(plan)),
        commands=_commands(plan, which) if source else (),
    )


def _figures(plan: JoinedPlan) -> list[CardFigure]:
    """Return step, rate, memory of the fullest device; cost and energy where they are known."""
    step_s, rate = plan.step_time_s, plan.tokens_per_s
    full = _fullest(plan)
    free = 1.0 - full.peak_bytes / full.usable_bytes
    note = f"of {full.usable_bytes / GIB:.1f} usable, {full.pool}, {format_percent(free)} free"
    used = f"{full.peak_bytes / GIB:.1f} GiB"
    low, high = seconds(plan.step_time_p10_s), seconds(plan.step_time_p90_s)
    interval = f"80 % interval {low} to {high}, that of unlike jobs"
    each = f"{rate / plan.n_devices:,.0f} per GPU"
    figures = [
        CardFigure("step_time_s", "step", step_s, seconds(step_s), interval),
        CardFigure("tokens_per_s", "tokens/s", rate, f"{rate:,.0f}", each),
        CardFigure("peak_bytes", "memory", round(full.peak_bytes), used, note),
    ]
    if plan.expected_s is not None:
        text = f"{plan.expected_s / 86400.0:,.1f} days"
        figures.append(CardFigure("expected_s", "run", plan.expected_s, text, "with failures"))
    if plan.cost_usd is not None:
        figures.append(CardFigure("cost_usd", "price", plan.cost_usd, f"${plan.cost_usd:,.0f}"))
    if plan.usd_per_million_tokens is not None:
        value = plan.usd_per_million_tokens
        text = f"${value:,.3f} per million tokens"
        figures.append(CardFigure("usd_per_million_tokens", "cost", value, text))
    if plan.energy_j_per_token is not None:
        value = plan.energy_j_per_token
        figures.append(CardFigure("energy_j_per_token", "energy", value, f"{value:.3g} J a token"))
    return figures


def _fullest(plan: JoinedPlan) -> JoinedStage:
    stages = [stage for kind in plan.kinds for stage in kind.stages]
    return max(stages, key=lambda x: x.peak_bytes / x.usable_bytes)


def _slowest_words(kind: JoinedKind) -> str:
    """Return the stage that the others of its pipeline wait for."""
    i = max(range(len(kind.stages)), key=lambda j: kind.stages[j].time_s)
    if len(kind.stages) == 1:
        return f"slowest: replicas on {kind.stages[0].pool}"
    return f"slowest: stage {i + 1} of {len(kind.stages)}, on {kind.stages[i].pool}"


def _step_bar(kind: JoinedKind) -> Bar:
    """Return the step of a kind of pipelines; segments sum to it."""
    total = kind.step_time_s
    segments = []
    for key in LEGEND:
        terms = tuple(x for x, value in kind.time.items() if TERM_KEYS[x] == key and value > 0.0)
        if terms:
            value = sum(kind.time[x] for x in terms)
            text = part_text(value, total)
            segments.append(Segment(key, LEGEND[key].label, value, value / total, text, terms))
    return Bar("step", "step", total, seconds(total), tuple(segments))


def _memory_bar(stage: JoinedStage) -> Bar:
    """Return the memory of a stage up to what is usable; the last part is free."""
    sums = {
        "states": float(round(stage.states_bytes)),
        "activations": float(round(stage.activation_bytes)),
        "working": float(round(stage.other_bytes)),
    }
    used = sum(sums.values())
    total = max(used, float(round(stage.usable_bytes)))
    if total > used:
        sums["free"] = total - used
    segments = tuple(
        Segment(key, LEGEND[key].label, x, x / total, f"{x / GIB:.1f} GiB")
        for key, x in sums.items()
    )
    return Bar("memory", "memory", total, f"{total / GIB:.1f} GiB", segments)


def pools_drawing(plan: JoinedPlan, parts: Mapping[str, str]) -> PoolsDrawing:
    """Return which layers of which pipelines lie where; `parts` are accelerators by pool."""
    names = list(plan.devices)
    pools = tuple(
        f"{name}: {n:,} x {parts[name]}" if name in parts else f"{name}: {n:,} devices"
        for name, n in plan.devices.items()
    )
    rows = tuple(
        PipelineRow(
            pipelines=kind.n_pipelines // plan.shard,
            share=kind.share,
            text=f"{kind.n_micro} micro-batches of {kind.mbs}, {seconds(kind.step_time_s)} a step",
            stages=tuple(
                PoolStage(names.index(x.pool), x.layers, _stage_text(x, i))
                for i, x in enumerate(kind.stages, 1)
            ),
        )
        for kind in plan.kinds
    )
    return PoolsDrawing(pools, rows)


def _stage_text(stage: JoinedStage, number: int) -> str:
    degrees = [f"{name.upper()} {n}" for name, n in _degrees(stage) if n > 1]
    again = "" if stage.recompute == "none" else f", recomputation {stage.recompute}"
    return (
        f"stage {number}, {stage.pool}: {stage.layers} layers, {' x '.join(degrees) or '1 GPU'}"
        f"{again}, {stage.time_s * 1e3:.1f} ms a micro-batch,"
        f" {stage.peak_bytes / GIB:.1f} of {stage.usable_bytes / GIB:.1f} GiB"
    )


def _degrees(stage: JoinedStage) -> tuple[tuple[str, int], ...]:
    return ("tp", stage.tp), ("cp", stage.cp), ("ep", stage.ep)


def _commands(plan: JoinedPlan, which: str) -> tuple[NextCommand, ...]:
    commands = []
    if plan.runs_on:
        line = f"planner emit {which} --for {plan.runs_on[0]} --launcher slurm --out run"
        commands.append(NextCommand("launch script", line))
    commands.append(NextCommand("what binds it", f"planner explain {which}"))
    return tuple(commands)
