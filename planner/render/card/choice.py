"""How a plan stands to the best one, and what is proven of it, in the words of the objective."""

from collections.abc import Mapping

from planner.render.answers.result import proof_lead
from planner.render.card.figures import seconds
from planner.render.card.sentences import degrees_words
from planner.render.nouns import noun_of
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.uncertainty import MARGIN_COST_FRAC, TIE_FRAC
from planner.units import format_percent

COMPARED: Mapping[str, tuple[str, str]] = {
    "step_time": ("the fastest plan", "takes {} time"),
    "tokens_per_s": ("the fastest plan", "takes {} time"),
    "devices": ("the fastest plan on so few {devices}", "takes {} time"),
    "cost": ("the cheapest plan", "costs {}"),
    "energy": ("the plan of least energy", "takes {} energy"),
    "goodput": ("the plan that ends the run first", "takes {} wall-clock time"),
}
"""What the best plan by each objective is called, and how another is compared with it;
`devices` is what those of the cluster are called."""
BY_TIME = ("step_time", "tokens_per_s", "devices")
"""Objectives whose plans are told apart by the step time."""
LEAST_GAIN_FRAC = 0.0005
"""Share by which another plan has to be better for a tie to be named."""


def goals_of(result: Result) -> tuple[str, ...]:
    """Return the objectives of a question: those of a Pareto front, else its one."""
    options = result.inputs["options"]
    return tuple(options.get("pareto") or (options.get("objective", "step_time"),))


def choice_words(result: Result, plan: Plan) -> str:
    """Return how a plan stands to the best one: itself, a tie, or passed over, and why."""
    if plan.rank > 1:
        more = plan.step_time_s / result.plans[0].step_time_s - 1
        return f"This plan {_difference('step_time', more)} than the recommended one."
    goals = goals_of(result)
    if len(goals) > 1:
        return f"First of the Pareto front of {', '.join(goals)}."
    if goals[0] == "memory":
        within = result.inputs["options"]["within"] - 1
        fastest = seconds(fastest_s(result, plan))
        return f"Most free memory of the plans within {within:.0%} of the fastest ({fastest})."
    margin = result.margin
    if margin is None or margin.is_kept:
        return _passed_over_words(result, plan) or _tie_words(result, plan)
    unkept = (
        f"No plan leaves {format_percent(margin.frac, 0)} of the memory free"
        f" for less than {MARGIN_COST_FRAC:.0%} more time."
    )
    return f"{_tie_words(result, plan)} {unkept}"


def fastest_s(result: Result, plan: Plan) -> float:
    """Return the step time of the fastest plan that is known, seconds: listed or not.

    Plans of uneven splits are listed, but are not among those that the proof counts.
    """
    known = [p.step_time_s for p in result.plans] or [plan.step_time_s]
    if result.certificate:
        known.append(result.certificate.fastest_s)
    if result.margin and result.margin.fastest_step_s:
        known.append(result.margin.fastest_step_s)
    return min(known)


def _best_words(result: Result, objective: str) -> str:
    return COMPARED[objective][0].format(devices=noun_of(result).many)


def _passed_over_words(result: Result, plan: Plan) -> str:
    """Return which better plan leaves too little memory free; "" where there is none."""
    margin, (objective,) = result.margin, goals_of(result)
    if margin is None or margin.fastest is None or margin.fastest_step_s is None:
        return ""
    noun, best = noun_of(result), _best_words(result, objective)
    words = f"{best[0].upper()}{best[1:]}, {degrees_words(margin.fastest.layout, noun)},"
    ranks = "time" if objective in BY_TIME else objective
    less = ""
    is_like = margin.fastest.layout.n_devices == plan.layout.n_devices and _is_one_pool(result)
    if is_like or objective in BY_TIME[:2]:
        gain = margin.fastest_step_s / plan.step_time_s - 1
        less = f" ({_difference(objective, gain).partition(' ')[2]})"
    return (
        f"{words} takes {seconds(margin.fastest_step_s)}{less} but leaves less than"
        f" {format_percent(margin.frac, 0)} of memory free; --memory-margin 0 ranks by {ranks}."
    )


def _tie_words(result: Result, plan: Plan) -> str:
    """Return that a plan is the best one, or ties with it, and which of those comes first."""
    (objective,) = goals_of(result)
    best = _best_words(result, objective)
    gain = _best_value(result, plan, objective) / _value(plan, objective) - 1
    if gain < -LEAST_GAIN_FRAC:
        how = _difference(objective, gain)
        if objective in BY_TIME:
            fastest = seconds(_best_value(result, plan, objective))
            how = f"takes {fastest} ({format_percent(-gain)} less)"
        return (
            f"A tie: {best} {how}; the model's error is {TIE_FRAC:.0%}. Among ties we"
            " prefer no CPU offload, then free memory, then the simplest layout."
        )
    rivals = result.plans[1:]
    if not rivals:
        return f"This is {best}."
    more = _value(rivals[0], objective) / _value(plan, objective) - 1
    if objective == "devices":
        more = rivals[0].step_time_s / plan.step_time_s - 1
    rival = degrees_words(rivals[0].layout, noun_of(result))
    return f"This is {best}; the next, {rival}, {_difference(objective, more)}."


def _value(plan: Plan, objective: str) -> float:
    """Return what an objective makes small: seconds, or dollars, joules of the same work."""
    run = plan.run
    if run is not None and objective == "cost" and run.usd_per_million_tokens:
        return run.usd_per_million_tokens
    if run is not None and objective == "energy" and run.energy_j_per_token:
        return run.energy_j_per_token
    if run is not None and objective == "goodput" and run.goodput.goodput_frac:
        return plan.step_time_s / run.goodput.goodput_frac
    return plan.step_time_s


def _best_value(result: Result, plan: Plan, objective: str) -> float:
    """Return the least value of an objective that is known, in the unit of `_value`.

    On one number of devices every objective grows with the step time: then also that of plans that
    are not listed.
    """
    if objective in ("step_time", "tokens_per_s") or _is_on_same_devices(result, plan):
        return _value(plan, objective) * fastest_s(result, plan) / plan.step_time_s
    rivals = [
        p
        for p in result.plans
        if objective != "devices" or p.layout.n_devices == plan.layout.n_devices
    ]
    return min(_value(p, objective) for p in rivals)


def _is_on_same_devices(result: Result, plan: Plan) -> bool:
    """Tell whether all plans that were searched share pool, recipe and number of devices."""
    counts = {p.layout.n_devices for p in result.plans}
    counts |= {n for d in result.devices for n in d.searched}
    return counts == {plan.layout.n_devices} and _is_one_pool(result)


def _is_one_pool(result: Result) -> bool:
    """Tell whether plans were searched on one pool, in one recipe."""
    searched = {(d.pool, d.precision) for d in result.devices}
    return len({(p.pool, p.recipe_label) for p in result.plans}) == 1 and len(searched) <= 1


def _difference(objective: str, more: float) -> str:
    """Return how a plan compares: `takes 0.4% more time`, `costs 1.9% less`."""
    share = f"{format_percent(abs(more))} {'more' if more >= 0 else 'less'}"
    return COMPARED[objective][1].format(share)


def proof_words(result: Result) -> str:
    """Return what is proven, and over which legal plans."""
    c, outcome = result.counts, result.certificate
    divided = f"{c.fit:,} fit, {c.pruned:,} do not"
    if c.excluded:
        divided += f", {c.excluded:,} are slower by a bound"
    over = f"{c.space:,} legal layouts{_restriction_words(result)}"
    if outcome is None or not outcome.proven:
        return f"Not proven{_why_unproven(result)}: of {over} {divided}."
    lead = proof_lead(result)
    fastest = seconds(fastest_s(result, result.plans[0]))
    return f"{lead[0].upper()}{lead[1:]}none of {over} beats {fastest} ({divided})."


def _restriction_words(result: Result) -> str:
    """Return which axes the question fixed or bounded: the proof is over the rest."""
    options = result.inputs["options"]
    axes = {axis for field in ("pins", "only", "max") for axis in options.get(field) or ()}
    return f" with {', '.join(sorted(axes))} restricted" if axes else ""


def _why_unproven(result: Result) -> str:
    if result.stopped:
        gap = f", at most {result.gap:.1%} from the best" if result.gap is not None else ""
        return f" (stopped: {result.stopped}{gap})"
    return " (only uneven splits fit)" if result.certificate else ""
