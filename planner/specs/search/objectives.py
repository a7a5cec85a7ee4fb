"""What a plan is good at, besides its step time: figures of the run, and the values that rank it.

On one number of devices of one pool every value but memory grows with the step time, in
proportion; so the fastest plan of each number is the best by any of them, and numbers of devices
are compared through it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.problem import Problem
from costmodels.run.cost_energy import cost_usd, device_power_w, energy_j
from costmodels.run.goodput import Goodput, goodput
from costmodels.shapes import TrainingJob
from hardware.parts import Operations
from planner.errors import UsageError
from planner.option_names import option, option_or_section

OBJECTIVES = ("step_time", "tokens_per_s", "cost", "energy", "devices", "memory", "goodput")
"""What `--objective` and `--pareto` know."""
OVER_COUNTS = ("devices", "cost", "energy", "goodput")
"""Objectives of which every number of devices may hold a part of the front."""
BUDGET = "--budget"
WITHIN = 1.05
"""`--objective memory`: how much slower than the fastest a plan may be, as a factor."""
BEST: Mapping[str, str] = {
    "step_time": "the fastest",
    "tokens_per_s": "the fastest",
    "cost": "the cheapest",
    "energy": "the one of least energy",
    "devices": "the fastest on so few devices",
    "memory": "the one of most memory headroom",
    "goodput": "the one that ends the run first",
}
"""What the best plan by each objective is called."""
NONE_BETTER: Mapping[str, str] = {
    "cost": "costs{margin} less",
    "energy": "takes{margin} less energy",
    "devices": "keeps the limits on fewer devices",
    "goodput": "ends the run{margin} earlier",
}
"""What no plan does that was left out by a bound, where numbers of devices are compared; `margin`
is that of ties."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What a whole run of one plan takes, failures and checkpoints included."""

    goodput: Goodput
    power_w: float | None
    """Of all devices in use, at the meter; None where the power limit is not published."""
    energy_j_per_token: float | None
    usd_per_million_tokens: float | None
    """None where the cluster file states no price."""
    expected_s: float | None
    """Wall-clock time of the run, where its tokens are stated; so are the two below."""
    energy_j: float | None
    cost_usd: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the figures that are known, in base units."""
        g = self.goodput
        figures = {
            "goodput_frac": g.goodput_frac,
            "expected_s": self.expected_s,
            "mtbf_s": g.mtbf_s,
            "checkpoint_bytes": round(g.checkpoint_bytes),
            "checkpoint_s": g.checkpoint_s,
            "checkpoint_interval_s": g.interval_s,
            "restart_s": g.restart_s,
            "power_w": self.power_w,
            "energy_j_per_token": self.energy_j_per_token,
            "energy_j": self.energy_j,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "cost_usd": self.cost_usd,
        }
        return {name: value for name, value in figures.items() if value is not None}


def run_figures(
    problem: Problem,
    operations: Operations,
    n_devices: int,
    step_s: float,
    share: Goodput | None = None,
    useful_frac: float = 1.0,
) -> RunFigures:
    """Return what a run takes on `n_devices` at a step time; `share` is its goodput, if known.

    `useful_frac` of the slots of a step are tokens of the run.
    """
    job, share = problem.job, share or goodput(problem, operations, n_devices)
    wall_s = step_s / share.goodput_frac if share.goodput_frac else float("inf")
    tokens_per_step = job.tokens_per_step * useful_frac
    n_steps = job.tokens / tokens_per_step if job.tokens else None
    power = device_power_w(problem.pool.accelerator, operations)
    price = operations.price_per_device_hour
    finite = wall_s < float("inf")
    energy = energy_j(power, n_devices, wall_s) if power and finite else None
    cost = cost_usd(price, n_devices, wall_s) if price and finite else None

    def of_run(value: float | None) -> float | None:
        return None if n_steps is None or value is None else value * n_steps

    return RunFigures(
        goodput=share,
        power_w=power and power * n_devices,
        energy_j_per_token=energy and energy / tokens_per_step,
        usd_per_million_tokens=cost and cost / tokens_per_step * 1e6,
        expected_s=of_run(wall_s if finite else None),
        energy_j=of_run(energy),
        cost_usd=of_run(cost),
    )


def value_per_s(objective: str, problem: Problem, operations: Operations, n_devices: int) -> float:
    """Return the value of an objective for a step of one second; smaller is better.

    The value of any step is this times its seconds, except of `devices`, which is the same for
    all. Seconds, dollars or joules of a step, wall-clock for the last three; tokens/s rank as the
    step time does.
    """
    if objective in ("step_time", "tokens_per_s", "memory"):
        return 1.0
    if objective == "devices":
        return float(n_devices)
    share = goodput(problem, operations, n_devices).goodput_frac
    wall_s = 1.0 / share if share else float("inf")
    if objective == "goodput":
        return wall_s
    if objective == "cost":
        assert operations.price_per_device_hour is not None  # `check_inputs`
        return cost_usd(operations.price_per_device_hour, n_devices, wall_s)
    power = device_power_w(problem.pool.accelerator, operations)
    assert power is not None  # `check_inputs`
    return energy_j(power, n_devices, wall_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run and its step must keep; None: nothing."""

    deadline_s: float | None = None
    step_limit_s: float | None = None
    budget_usd: float | None = None

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return any(x is not None for x in (self.deadline_s, self.step_limit_s, self.budget_usd))


def step_limit_s(
    problem: Problem,
    operations: Operations,
    n_devices: int,
    limits: Limits,
) -> float:
    """Return the longest step that keeps the deadline, the budget and the limit on the step.

    Seconds. Deadline and budget are kept by the expected wall-clock time, failures and checkpoints
    included.
    """
    longest_s = math.inf if limits.step_limit_s is None else limits.step_limit_s
    run_s = math.inf if limits.deadline_s is None else limits.deadline_s
    if limits.budget_usd is not None:
        assert operations.price_per_device_hour is not None  # `check_inputs`
        usd_per_s = cost_usd(operations.price_per_device_hour, n_devices, 1.0)
        run_s = min(run_s, limits.budget_usd / usd_per_s if usd_per_s else math.inf)
    if run_s == math.inf:
        return longest_s
    job = problem.job
    share = goodput(problem, operations, n_devices).goodput_frac
    return min(longest_s, run_s * share * useful_tokens(job) / job.tokens)


def useful_tokens(job: TrainingJob) -> float:
    """Return the tokens of a run that one step trains."""
    return job.tokens_per_step * (job.data.useful_frac() if job.data else 1.0)


def check_inputs(
    objectives: Sequence[str],
    limits: Limits,
    problem: Problem,
    operations: Operations,
    index: int = 0,
) -> None:
    """Raise `UsageError` for an objective whose figures the inputs do not give.

    `index` is the place of the pool in the cluster file.
    """
    pool, about = problem.pool, "pareto" if len(objectives) > 1 else "objective"
    needs_price = "cost" if "cost" in objectives else "budget" if limits.budget_usd else ""
    if needs_price and operations.price_per_device_hour is None:
        raise UsageError(
            f"{needs_price} needs a price, and pool {pool.name} states none",
            "add `price_per_hour: 2.95` (US dollars an accelerator) to the pool, or "
            + option("set", f"pools.{index}.price_per_hour=2.95"),
            "budget" if needs_price == "budget" else about,
            code="needs-figure",
        )
    if "energy" in objectives and device_power_w(pool.accelerator, operations) is None:
        raise UsageError(
            f"energy needs a power limit, and none is published for {pool.accelerator.name}",
            f"spell it out: accelerator: {{like: {pool.accelerator.name}, power: 700 W}}",
            about,
            code="needs-figure",
        )
    of_run = "deadline" if limits.deadline_s is not None else "budget" * bool(limits.budget_usd)
    if of_run and not problem.job.tokens:
        raise UsageError(
            option(of_run) + " needs the tokens of the run, and the model file states none",
            "add `tokens: 15T` under training, or " + option("set", "training.tokens=15T"),
            code="needs-figure",
        )


def parse_objective(name: str, flag: str = "--objective") -> str:
    """Return an objective by its name; `UsageError` for an unknown one."""
    if name not in OBJECTIVES:
        raise UsageError(
            option_or_section(flag) + f": unknown {name!r}",
            f"one of {', '.join(OBJECTIVES)}",
            code="unknown-name",
        )
    return name


def parse_pareto(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return two or three different objectives from `step_time,memory`."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    axes = tuple(parse_objective(part.strip(), "--pareto") for part in parts if part.strip())
    if not axes:
        return ()
    if not 2 <= len(axes) <= 3 or len(set(axes)) < len(axes):
        raise UsageError(
            option("pareto") + f": {','.join(axes)} is not two or three different objectives",
            "for example " + option("pareto", "step_time,memory"),
            code="bad-value",
        )
    if {"step_time", "tokens_per_s"} <= set(axes):
        message = option("pareto") + ": step_time and tokens_per_s are one axis"
        raise UsageError(message, "name one of them", code="bad-value")
    return axes


def parse_duration(value: object, flag: str) -> float:
    """Return seconds from `30d`, `12 h` or a number of days."""
    from planner.errors import BadValue
    from planner.units import parse_time

    text = str(value).strip()
    days = isinstance(value, (int, float)) or text.replace(".", "", 1).isdigit()
    try:
        number = float(text) * 86400.0 if days else parse_time(text)
    except BadValue as error:
        raise UsageError(
            option_or_section(flag) + f": {error.message}", "for example 30d or 36h"
        ) from None
    if number <= 0.0:
        raise UsageError(
            option_or_section(flag) + f" must be above 0, not {text}",
            "for example 30d or 36h",
            code="out-of-range",
        )
    return number


def parse_budget(value: object, flag: str = BUDGET) -> float:
    """Return US dollars from `2.5M`, `$300k` or a number."""
    from planner.errors import BadValue
    from planner.units import parse_count

    text = str(value).strip()
    try:
        number = parse_count(text.removeprefix("$"))
    except BadValue as error:
        raise UsageError(
            option_or_section(flag) + f": {error.message}", "dollars, for example 2.5M"
        ) from None
    if number <= 0.0:
        raise UsageError(
            option_or_section(flag) + f" must be above 0, not {text}",
            "dollars, for example 2.5M",
            code="out-of-range",
        )
    return number


def rounded_up(value: float, digits: int) -> str:
    """Return a number that is no less, with at most so many decimal places.

    >>> rounded_up(53.6721, 3), rounded_up(12.0, 3)
    ('53.673', '12')
    """
    text = f"{math.ceil(value * 10**digits) / 10**digits:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def shown_duration(seconds: float) -> str:
    """Return a duration that is no shorter, as `--deadline` reads it.

    >>> shown_duration(30.04 * 86400), shown_duration(36 * 3600), shown_duration(45)
    ('30.1d', '36h', '45s')
    """
    for unit, size_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size_s:
            return rounded_up(seconds / size_s, 1) + unit
    return rounded_up(seconds, 1) + "s"


Shown = tuple[str, str, Callable[[Any], str]]


def _of_run(name: str, scale: float, digits: int) -> Callable[[Any], str]:
    def text(plan: Any) -> str:
        value = getattr(plan.run, name)
        return "-" if value is None else f"{value * scale:,.{digits}f}"

    return text


def _per_token(plan: Any) -> str:
    """Return the energy of a token with the digits that tell plans apart."""
    value = plan.run.energy_j_per_token
    return "-" if value is None else f"{value:#.4g}"


COLUMNS: Mapping[str, tuple[Shown, ...]] = {
    "cost": (
        ("$/Mtok", "", _of_run("usd_per_million_tokens", 1.0, 3)),
        ("cost", "k$", _of_run("cost_usd", 1e-3, 1)),
    ),
    "energy": (
        ("J/tok", "", _per_token),
        ("energy", "MWh", _of_run("energy_j", 1 / 3.6e9, 1)),
    ),
    "goodput": (
        ("good", "%", lambda plan: f"{plan.run.goodput.goodput_frac * 100:.1f}"),
        ("expect", "days", _of_run("expected_s", 1 / 86400.0, 1)),
    ),
}
"""Columns of the table that an objective adds: title, unit, text."""
