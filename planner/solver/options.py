"""Options of a solve, as the command line, Python and the service give them."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from costmodels.problem import Problem
from costmodels.tuning.records import PRETRAIN
from planner.errors import UsageError
from planner.frameworks.registry import default_stack
from planner.option_names import JOB_FIELDS, option
from planner.solver.calibration.file import Calibration, load_calibration
from planner.specs.search.axis_values import (
    DEVICES,
    PROBLEM_AXES,
    WORDS,
    axis_text,
    axis_value,
    axis_values,
    pinned_stages,
)
from planner.specs.search.objectives import WITHIN, Limits, parse_duration, parse_objective
from planner.specs.search.section import APART, POOLS, TOGETHER
from searches.mode_rules import with_open_modes
from searches.options import AXES, SearchOptions

SPLIT_SHAPES = 6
"""Shapes among the finalists whose layers are split unevenly where that helps."""
MEMORY_MARGIN = 0.05
"""Share of the usable memory that the first plan leaves free where that costs little: as much as
predicted peaks are off in the median, and where a plan is warned of (MEM101)."""
MOST_MARGIN = 0.9
"""The largest share that may be asked for."""


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Everything besides the two files that the answer depends on."""

    top: int = 10
    """Plans in the answer."""
    pins: Mapping[str, int] = field(default_factory=dict)
    """One value by axis."""
    only: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Allowed values by axis."""
    at_most: Mapping[str, int] = field(default_factory=dict)
    """Largest value by axis."""
    framework: str = "default"
    stack: str = ""
    """Software profile; empty for the framework's own."""
    allow: frozenset[str] = frozenset()
    objective: str = "step_time"
    within: float = WITHIN
    """How much slower than the fastest a plan may be that is chosen for its memory, a factor."""
    memory_margin: float = MEMORY_MARGIN
    """Share of the usable memory that the first plan leaves free where that costs little."""
    deadline_s: float | None = None
    """Longest run, wall-clock, failures included."""
    step_limit_s: float | None = None
    """Longest step."""
    budget_usd: float | None = None
    """Most money for the run, failures included."""
    pareto: tuple[str, ...] = ()
    """Axes of a front that is wanted in place of a ranking."""
    pools: str = APART
    """One of `POOLS`."""
    all_variants: bool = False
    """Whether an answer lists more than the best plan of each combination of degrees."""
    own_calibration: Calibration | None = None
    """The numbers that price the plans; None for those that ship."""

    @property
    def calibration(self) -> Calibration:
        """The numbers that price the plans."""
        return self.own_calibration or load_calibration()

    @property
    def goals(self) -> tuple[str, ...]:
        """The objectives that the answer is about."""
        return self.pareto or (self.objective,)

    def allows_devices(self, n: int) -> bool:
        """Tell whether plans may use `n` devices."""
        pinned, listed = self.pins.get(DEVICES, n), self.only.get(DEVICES, frozenset([n]))
        return n == pinned and n in listed and n <= self.at_most.get(DEVICES, n)

    @property
    def is_limited(self) -> bool:
        """Whether the run or its step must end in some time, or the run within a budget."""
        return any(x is not None for x in (self.deadline_s, self.step_limit_s, self.budget_usd))

    @property
    def limits(self) -> Limits:
        """What a run and its step must keep."""
        return Limits(self.deadline_s, self.step_limit_s, self.budget_usd)

    @property
    def names_devices(self) -> bool:
        """Whether the numbers of devices are listed, so that none is left out."""
        return DEVICES in self.pins or DEVICES in self.only

    @property
    def stack_name(self) -> str:
        """The profile that prices the plans."""
        return self.stack or default_stack(self.framework)

    def restricted(self) -> dict[str, frozenset[int]]:
        """Return the values that pins and lists leave, by axis; `UsageError` where none."""
        only = {axis: frozenset([value]) for axis, value in self.pins.items()}
        for axis, values in self.only.items():
            only[axis] = only.get(axis, values) & values
            if not only[axis]:
                raise UsageError(
                    option("pin")
                    + f" {axis} and "
                    + option("only")
                    + f" {axis} contradict each other",
                    "drop one of them",
                    code="contradiction",
                )
        return only

    def check_bounds(self) -> None:
        """Raise `UsageError` where a bound leaves nothing of what is pinned or listed."""
        for axis, limit in self.at_most.items():
            listed = self.only.get(axis, frozenset())
            named = ("pin", [self.pins[axis]]) if axis in self.pins else ("only", listed)
            if named[1] and min(named[1]) > limit:
                values = ",".join(map(str, sorted(named[1])))
                both = option(named[0], f"{axis}={values}") + " and "
                both += option("max", f"{axis}={limit}")
                raise UsageError(
                    both + " contradict each other", "drop one of them", code="contradiction"
                )

    def search_options(self, problem: Problem | None = None) -> SearchOptions:
        """Return the restrictions of the search; `UsageError` for a split spelled out.

        With the problem, the modes of its layers that nobody named are open
        (`with_open_modes`).
        """
        split = self.pins.get("split", 0)
        if pinned_stages(split):
            spelled = axis_text("split", split)
            raise UsageError(
                option("pin", f"split={spelled}") + ": a search finds uneven splits by itself",
                "planner evaluate prices this one; here "
                + option("pin", "split=even")
                + " or ends, or none",
            )
        only = self.restricted()
        options = SearchOptions(
            only={axis: values for axis, values in only.items() if axis not in PROBLEM_AXES},
            at_most={axis: n for axis, n in self.at_most.items() if axis not in PROBLEM_AXES},
            framework=self.framework,
            n_finalists=max(64, self.top),
            split_shapes=SPLIT_SHAPES,
        )
        return options if problem is None else with_open_modes(problem, options)

    def to_json(self) -> dict[str, object]:
        """Return the options as they enter the result's identity."""
        return (
            {
                "top": self.top,
                "pins": dict(sorted(self.pins.items())),
                "only": {axis: sorted(values) for axis, values in sorted(self.only.items())},
                "max": dict(sorted(self.at_most.items())),
                "framework": self.framework,
                "stack": self.stack_name,
                "allow": sorted(self.allow),
            }
            | ({"all_variants": True} if self.all_variants else {})
            | ({"pools": self.pools} if self.pools != APART else {})
            | self._goals_json()
            | self._calibration_json()
        )

    def _calibration_json(self) -> dict[str, object]:
        """Return the calibration where it is not the shipped one, so that a result holds it."""
        return {"calibration": self.own_calibration.to_json()} if self.own_calibration else {}

    def _goals_json(self) -> dict[str, object]:
        """Return what is asked besides the fastest plans; nothing where nothing is."""
        memory = "memory" in self.goals and not self.pareto
        goals: dict[str, object] = {
            "objective": self.objective if self.objective != "step_time" else None,
            "within": self.within if memory else None,
            "memory_margin": self.memory_margin if self.memory_margin != MEMORY_MARGIN else None,
            "deadline_s": self.deadline_s,
            "step_limit_s": self.step_limit_s,
            "budget_usd": self.budget_usd,
            "pareto": list(self.pareto) or None,
        }
        return {name: value for name, value in goals.items() if value is not None}


@dataclass(frozen=True, slots=True)
class SolveCommand:
    """The `planner solve` command of a search: its files as the user names them, and changes."""

    model: str
    cluster: str
    overrides: tuple[tuple[str, object], ...] = ()
    pool: str = ""
    reference: str = ""
    """File of the measured runs that anchor the calibration."""

    def text(self, options: SolveOptions, changes: Mapping[str, object]) -> str:
        """Return the command with the user's restrictions and changed fields."""
        parts = ["planner", "solve", self.model, self.cluster]
        if self.pool:
            parts += ["--pool", self.pool]
        for axis, value in options.pins.items():
            parts += ["--pin", f"{axis}={axis_text(axis, value)}"]
        for axis, values in options.only.items():
            parts += ["--only", f"{axis}={','.join(axis_text(axis, v) for v in sorted(values))}"]
        for axis, value in options.at_most.items():
            parts += ["--max", f"{axis}={value}"]
        if options.framework != "default":
            parts += ["--framework", options.framework]
        if options.stack:
            parts += ["--stack", options.stack]
        for name in sorted(options.allow):
            parts += ["--allow", name]
        if options.own_calibration and options.own_calibration.source:
            parts += ["--calibration", options.own_calibration.source]
        if self.reference:
            parts += ["--reference", self.reference]
        parts += _goal_parts(options)
        return shlex.join([*parts, *_field_parts({**dict(self.overrides), **changes})])


def _field_parts(fields: Mapping[str, object]) -> list[str]:
    """Return the options that change fields: of a fine-tuning job by their short names."""
    is_tuning = fields.get(JOB_FIELDS["task"], PRETRAIN) != PRETRAIN
    short = {path: name for name, path in JOB_FIELDS.items()} if is_tuning else {}
    parts = []
    for path, value in fields.items():
        named = path in short
        parts += [f"--{short[path]}", str(value)] if named else ["--set", f"{path}={value}"]
    return parts


def _goal_parts(options: SolveOptions) -> list[str]:
    """Return the options that say what is wanted."""
    parts = []
    if options.objective != "step_time":
        parts += ["--objective", options.objective]
    if options.within != WITHIN:
        parts += ["--within", f"{options.within:g}"]
    if options.memory_margin != MEMORY_MARGIN:
        parts += ["--memory-margin", f"{options.memory_margin:g}"]
    if options.deadline_s is not None:
        parts += ["--deadline", f"{options.deadline_s / 86400.0:g}d"]
    if options.budget_usd is not None:
        parts += ["--budget", f"{options.budget_usd:.12g}"]
    if options.step_limit_s is not None:
        parts += ["--step-limit", f"{options.step_limit_s:g}"]
    if options.pareto:
        parts += ["--pareto", ",".join(options.pareto)]
    return parts


def parse_goals(
    objective: str,
    within: float,
    deadline: object,
    step_limit_s: float,
    pareto: tuple[str, ...],
) -> dict[str, Any]:
    """Return the fields of `SolveOptions` that say what is wanted; 0 and "" are not given."""
    if pareto and objective not in ("", "step_time"):
        raise UsageError(
            option("pareto") + " and " + option("objective", objective) + " ask for two answers",
            "keep one of them",
            code="contradiction",
        )
    chosen = parse_objective(objective or "step_time")
    if within and not 1.0 <= within <= 100.0:
        raise UsageError(
            option("within") + f" must be 1 to 100, not {within:g}",
            "for example 1.05",
            code="out-of-range",
        )
    if within and chosen != "memory":
        message = option("within") + " belongs to " + option("objective", "memory")
        raise UsageError(message, "drop one of them", code="belongs-to")
    if step_limit_s < 0:
        message = option("step-limit") + " must be above 0 s"
        raise UsageError(
            message, "for example " + option("step-limit", "12.5"), code="out-of-range"
        )
    return {
        "objective": chosen,
        "within": within or WITHIN,
        "deadline_s": None if deadline in ("", None) else parse_duration(deadline, "--deadline"),
        "step_limit_s": step_limit_s or None,
        "pareto": pareto,
    }


def parse_pools(pools: str, pool: str) -> str:
    """Return one of `POOLS`; `UsageError` for another, or beside one pool that is named."""
    if pools not in ("", *POOLS):
        message = option("pools") + f": unknown {pools!r}"
        raise UsageError(message, f"one of {', '.join(POOLS)}", code="unknown-name")
    if pools == TOGETHER and pool:
        both = option("pools", TOGETHER) + " and " + option("pool", pool)
        raise UsageError(both + " contradict each other", "drop one", code="contradiction")
    return pools or APART


def parse_memory_margin(margin: float | None) -> float:
    """Return the memory margin of a request, a fraction; `UsageError` outside of 0 to 0.9."""
    if margin is None:
        return MEMORY_MARGIN
    if not 0.0 <= margin <= MOST_MARGIN:
        raise UsageError(
            option("memory-margin")
            + f" must be a fraction from 0 to {MOST_MARGIN:g}, not {margin:g}",
            "for example " + option("memory-margin", "0.05") + " for 5 %; 0 ranks by time alone",
            code="out-of-range",
        )
    return margin


def axis_items(texts: Iterable[str], flag: str) -> dict[str, list[str]]:
    """Return the values of options such as `--pin tp=8,pp=4` and `--only tp=4,8`, by axis."""
    items: dict[str, list[str]] = {}
    axis = ""
    for part in (part for text in texts for part in text.split(",")):
        name, equals, value = part.partition("=")
        if equals and value:
            axis = name.strip()
        elif equals or not axis or flag != "--only":
            raise UsageError(
                option(flag) + f": {part!r} is not of the form axis=value",
                "for example " + option(flag, "tp=8"),
                code="bad-form",
            )
        items.setdefault(axis, []).append((value if equals else part).strip())
    return items


def axis_pins(texts: Iterable[str]) -> dict[str, int | str]:
    """Return the pins of `--pin tp=8,recompute=full` as requests and files hold them."""
    pins = pin_codes(axis_items(texts, "--pin"))
    return {axis: axis_value(axis, code) for axis, code in pins.items()}


def _listed(values: object) -> list[object]:
    return list(values) if isinstance(values, list | tuple | set | frozenset) else [values]


def pin_codes(values: Mapping[str, object]) -> dict[str, int]:
    """Return pins in the numbers of the search from values as users write them."""
    pins: dict[str, int] = {}
    for axis, value in ((axis, x) for axis, several in values.items() for x in _listed(several)):
        number = axis_values(axis, value, "--pin")
        if pins.get(axis, number) != number:
            both = [axis_text(axis, x) for x in (pins[axis], number)]
            several = not any(axis == "split" and pinned_stages(x) for x in (pins[axis], number))
            raise UsageError(
                option("pin") + f": {axis} is pinned to {' and to '.join(both)}",
                "use " + option("only", f"{axis}={','.join(both)}") + " for several values"
                if several
                else "keep one of them",
                code="contradiction",
            )
        pins[axis] = number
    return pins


def list_codes(values: Mapping[str, object]) -> dict[str, frozenset[int]]:
    """Return allowed values in the numbers of the search from values as users write them."""
    codes: dict[str, frozenset[int]] = {}
    for axis, several in values.items():
        items = several.split(",") if isinstance(several, str) else _listed(several)
        if not items:
            message = option("only") + f": {axis} may have no value at all"
            hint = "name its values, or leave the axis out"
            raise UsageError(message, hint, code="out-of-range")
        codes[axis] = frozenset(axis_values(axis, x, "--only") for x in items)
    return codes


def limit_codes(values: Mapping[str, object]) -> dict[str, int]:
    """Return largest values in the numbers of the search from values as users write them."""
    limits: dict[str, int] = {}
    for axis, value in ((axis, x) for axis, several in values.items() for x in _listed(several)):
        if axis in WORDS:
            usable = ", ".join(a for a in AXES if a not in WORDS)
            message = option("max") + f": {axis} has no order"
            raise UsageError(message, f"axes with one: {usable}", code="bad-value")
        limits[axis] = axis_values(axis, value, "--max")
    return limits
