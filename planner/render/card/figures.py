"""The numbers of the card: figures with units, the bars of the step and of the memory."""

from collections.abc import Callable, Mapping, Sequence

from hardware.nouns import DeviceNoun
from planner.render.card.card import Bar, CardFigure, Segment
from planner.render.colours import LEGEND, memory_key, time_key
from planner.solver.answer.result import Plan
from planner.units import GIB, format_percent

DAY_S = 86400.0
JOULES_PER_MWH = 3.6e9


def figures_of(plan: Plan, noun: DeviceNoun, goals: Sequence[str] = ()) -> tuple[CardFigure, ...]:
    """Return the figures of a plan: step, MFU, rate, memory; days and cost where known.

    `noun`: what its devices are called. `goals` are the objectives of the question: energy has a
    figure where it is one of them.
    """
    energy = _energy(plan) if "energy" in goals else []
    return (*_rates(plan, noun), _memory(plan, noun), *_run(plan), *energy)


def _rates(plan: Plan, noun: DeviceNoun) -> list[CardFigure]:
    low, high = plan.step_time_p10_s, plan.step_time_p90_s
    interval = f"80 % interval {seconds(low)} to {seconds(high)}"
    over = ""
    if plan.mfu_over_bf16 is not None:
        over = f"{format_percent(plan.mfu_over_bf16)} of the bf16 peak"
    figures = [
        CardFigure(
            "step_time_s",
            "step",
            plan.step_time_s,
            seconds(plan.step_time_s),
            interval,
            (low, high),
        ),
        CardFigure("mfu", "MFU", plan.mfu, format_percent(plan.mfu), over),
        CardFigure(
            "tokens_per_s",
            "tokens/s",
            plan.tokens_per_s,
            f"{plan.tokens_per_s:,.0f}",
            f"{plan.tokens_per_s_per_device:,.0f} per {noun.one}",
        ),
    ]
    return figures


def _memory(plan: Plan, noun: DeviceNoun) -> CardFigure:
    peak, usable = plan.breakdown.peak_bytes, plan.usable_bytes
    free = plan.headroom_frac
    left = f"{format_percent(abs(free))} {'free' if free >= 0 else 'too much'}"
    note = f"of {usable / GIB:.1f} usable on the fullest {noun.one}, {left}"
    return CardFigure("peak_bytes", "memory", round(peak), f"{peak / GIB:.1f} GiB", note)


def _run(plan: Plan) -> list[CardFigure]:
    """Return days and cost of the whole run, as far as they are known."""
    run, figures = plan.run, []
    expected_s = run.expected_s if run else None
    if plan.training_s is not None:
        whole_s = plan.training_s if expected_s is None else expected_s
        note = f"{plan.training_s / DAY_S:,.1f} training, the rest failures and checkpoints"
        key = "training_s" if expected_s is None else "expected_s"
        text = f"{whole_s / DAY_S:,.1f} days"
        figures.append(CardFigure(key, "run", whole_s, text, "" if expected_s is None else note))
    if run and run.cost_usd is not None:
        figures.append(CardFigure("cost_usd", "cost", run.cost_usd, f"${run.cost_usd:,.0f}"))
    elif run and run.usd_per_million_tokens is not None:
        value = run.usd_per_million_tokens
        text = f"${value:,.3f} per million tokens"
        figures.append(CardFigure("usd_per_million_tokens", "cost", value, text))
    return figures


def _energy(plan: Plan) -> list[CardFigure]:
    """Return the energy of the whole run, MWh, and of a token; of a token alone without tokens."""
    run = plan.run
    if run is None or run.energy_j_per_token is None:
        return []
    of_token = f"{run.energy_j_per_token:.3g} J a token"
    if run.energy_j is None:
        return [CardFigure("energy_j_per_token", "energy", run.energy_j_per_token, of_token)]
    text = f"{run.energy_j / JOULES_PER_MWH:,.1f} MWh"
    return [CardFigure("energy_j", "energy", run.energy_j, text, of_token)]


def seconds(time_s: float) -> str:
    """Return a step time: s with two digits, ms where it is short.

    >>> seconds(16.126), seconds(0.0425)
    ('16.13 s', '42.5 ms')
    """
    return f"{time_s:.2f} s" if time_s >= 1.0 else f"{time_s * 1e3:.1f} ms"


def part_text(time_s: float, total_s: float) -> str:
    """Return a part of a step in the unit of the whole, so that parts add up.

    >>> part_text(0.0228, 16.126), part_text(0.0004, 0.0425)
    ('0.02 s', '0.4 ms')
    """
    return f"{time_s:.2f} s" if total_s >= 1.0 else f"{time_s * 1e3:.1f} ms"


def step_bar(plan: Plan) -> Bar:
    """Return the step by key of the legend; segments sum to the step time."""
    sums = _summed(plan.breakdown.time_s, time_key)
    total = plan.step_time_s
    segments = tuple(
        Segment(key, LEGEND[key].label, value, value / total, part_text(value, total), terms)
        for key, (value, terms) in sums.items()
    )
    return Bar("step", "step", total, seconds(total), segments)


def memory_bar(plan: Plan) -> Bar:
    """Return the memory of the fullest stage up to what is usable; the last part is free.

    Where a plan does not fit the bar is as long as its need.
    """
    stage = plan.breakdown.stages[plan.breakdown.peak_stage]
    sums = _summed({term: float(round(x)) for term, x in stage.items()}, memory_key)
    used = sum(value for value, _ in sums.values())
    total = max(used, float(round(plan.usable_bytes)))
    if total > used:
        sums["free"] = (total - used, ())
    segments = tuple(
        Segment(key, LEGEND[key].label, value, value / total, f"{value / GIB:.1f} GiB", terms)
        for key, (value, terms) in sums.items()
    )
    return Bar("memory", "memory", total, f"{total / GIB:.1f} GiB", segments)


def _summed(
    terms: Mapping[str, float], key_of: Callable[[str], str]
) -> dict[str, tuple[float, tuple[str, ...]]]:
    """Return positive terms summed by key of the legend, in its order, with their names."""
    sums: dict[str, tuple[float, tuple[str, ...]]] = {}
    for key in LEGEND:
        named = tuple(term for term, x in terms.items() if key_of(term) == key and x > 0)
        if named:
            sums[key] = (sum(terms[term] for term in named), named)
    return sums
