"""What tools answer first: the figures that matter, out of the answers of the handlers.

Each number is one of the whole answer, in base units: s, bytes, FLOP/s, US dollars. The schemas
are those that the tools declare.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Data = Mapping[str, Any]


class ShortAnswer(BaseModel):
    """Base of all answers; `full` is the whole one where it was asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    full: dict[str, Any] | None = Field(
        default=None, description="The whole answer: details=full."
    )


class NextCall(BaseModel):
    """A call that goes on from an answer."""

    purpose: str
    tool: str
    arguments: dict[str, Any]


class Change(BaseModel):
    """A change after which a plan exists."""

    change: str
    call: NextCall
    step_time_s: float | None
    layout: dict[str, Any] | None


class Coded(BaseModel):
    """A text with the code of a rule or a warning."""

    code: str
    text: str


class ShortPlan(BaseModel):
    """A plan in its figures."""

    ref: str = Field(description="Its name for other tools; empty where no tool can open it.")
    plan_id: str
    rank: int
    fits: bool
    layout: dict[str, Any] = Field(description="Degrees and switches by axis.")
    n_devices: int
    idle_devices: int
    precision: str
    step_time_s: float
    step_time_p10_s: float = Field(description="Lower end of the 80 % interval.")
    step_time_p90_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float = Field(description="Model FLOPs over the peak of the precision, 0-1.")
    peak_bytes: float = Field(description="On the fullest device.")
    usable_bytes: float
    free_frac: float = Field(description="Of the usable memory; negative is missing.")
    time: dict[str, float] = Field(description="Parts of the step by term, s.")
    memory: dict[str, float] = Field(description="Of the fullest stage by term, bytes.")
    run: dict[str, float] | None = Field(
        description="Of the whole run: expected_s, energy_j, cost_usd, as far as they are known."
    )
    is_tie: bool = Field(description="Within the model's error of the fastest.")
    runs_on: list[str] = Field(description="Frameworks that run it.")
    warnings: list[Coded]


class SolveAnswer(ShortAnswer):
    """Ranked plans, or why there is none and what would help."""

    result_id: str
    sentence: str
    fits: bool
    complete: bool = Field(description="Whether the search ended by itself.")
    plans: list[ShortPlan]
    bottleneck: str
    proof: str
    counts: dict[str, int]
    closest: dict[str, Any] | None = Field(
        description="Where nothing fits the plan that needs least: layout, bytes, missing_bytes."
    )
    conflicts: list[Coded] = Field(description="Rules that cannot all hold.")
    would_help: list[Change] = Field(description="Nearest changes, the smallest first.")
    faster_if_allowed: list[dict[str, Any]] = Field(
        description="Choices that are off by default, in the first plan: pins, s, bytes, fits."
    )
    assumptions: list[str]
    notes: list[str]
    together: dict[str, Any] | None = Field(description="Plans over several pools, with refs.")
    next: list[NextCall]


class ExplainAnswer(ShortAnswer):
    """What binds a plan and what would relax it; or one term opened."""

    plan_id: str
    term: str
    binds: str = Field(description="The part of the step that takes most; empty for a term.")
    parts: list[dict[str, Any]] = Field(description="Parts of the step: part, time_s, share.")
    changes: list[dict[str, Any]] = Field(
        description="change, step_time_s, gain_frac, peak_bytes, fits; the best first."
    )
    next_bottleneck: dict[str, Any] | None


class ChangesAnswer(ShortAnswer):
    """What each single change of a plan does, or the rule that forbids it."""

    plan_id: str
    step_time_s: float
    changes: list[dict[str, Any]]
    next: list[NextCall]


class CompareAnswer(ShortAnswer):
    """Two plans beside each other; differences are b less a."""

    winner: str
    tokens_per_s_ratio: float
    a: dict[str, Any]
    b: dict[str, Any]
    layout: list[dict[str, Any]]
    time: dict[str, float] = Field(description="Differences by term, s; those that are not 0.")
    memory: dict[str, float] = Field(description="Differences by term, bytes.")
    turns: list[str] = Field(description="What would turn the order round.")


class CheckAnswer(ShortAnswer):
    """An existing run, judged."""

    framework: str
    release: str
    accepted: bool = Field(description="Whether the framework takes it.")
    fits: bool | None
    n_devices: int | None
    enough_devices: bool | None
    layout: dict[str, Any]
    refusals: list[dict[str, Any]] = Field(description="code, reason, closest, when.")
    not_priced: str
    plan: ShortPlan | None
    times_best: float | None = Field(description="Its step over that of the best plan.")
    rank: int | None
    n_fit: int | None
    best: ShortPlan | None
    changes: list[dict[str, Any]] = Field(
        description="change, step_time_s, gain_frac, peak_bytes, fits, write: what to write."
    )
    notes: list[str]


class RecommendAnswer(ShortAnswer):
    """The answer to an inverse question."""

    question: str
    answer: dict[str, Any] | None = Field(description="null where there is none in the range.")
    scope: str = Field(description="What was searched, and why the answer is its extreme.")
    plan: ShortPlan | None
    notes: list[str]
    next: list[NextCall]


class ScaleAnswer(ShortAnswer):
    """The best plan at each size, and where more stops paying."""

    result_id: str
    over: str
    scaling: str
    marks: dict[str, Any] = Field(
        description="knee, break_even_cost, break_even_throughput, takeover; null: not reached."
    )
    rows: list[dict[str, Any]]
    notes: list[str]


class ReplanAnswer(ShortAnswer):
    """What to do after nodes were lost or gained."""

    verdict: str
    break_even_s: float | None = Field(description="From when on moving pays, s.")
    nodes: dict[str, Any]
    batch: dict[str, Any]
    plan: ShortPlan | None = Field(description="The best plan on what is left.")
    notes: list[str]


class PlaceAnswer(ShortAnswer):
    """Which nodes hold which ranks."""

    plan_id: str
    n_ranks: int
    rank_order: str
    pools: list[dict[str, Any]] = Field(description="Nodes and ranks by pool, where several.")
    groups: list[dict[str, Any]] = Field(
        description="group, n_members, n_groups, stride, n_nodes, tier."
    )


class TraceAnswer(ShortAnswer):
    """What the trace file of a step holds; details=full has its text."""

    plan_id: str
    n_events: int
    trace_end_s: float
    predicted_step_s: float
    notes: list[str]


class EmitAnswer(ShortAnswer):
    """Files that run a plan."""

    plan_id: str
    files: dict[str, str] = Field(description="Text by name; programs only with details=full.")
    left_out: list[str] = Field(description="Names of files whose text is not shown.")
    refused: dict[str, str] = Field(description="Why a framework does not run it.")


class CatalogAnswer(ShortAnswer):
    """Names of the catalogue, or the figures of one part."""

    names: dict[str, list[str]]
    part: dict[str, Any] | None
    sources: dict[str, str] = Field(description="Where figures of the part are from.")


class RuleAnswer(ShortAnswer):
    """Rules, or one of them in full."""

    rules: list[dict[str, Any]]


class LearnAnswer(ShortAnswer):
    """A calculator's answer, or the list of calculators."""

    calculators: list[dict[str, Any]]
    name: str
    headline: str
    inputs: dict[str, Any]
    numbers: dict[str, float | None] = Field(description="By key, base units.")
    formulas: dict[str, str]


class DescribeAnswer(ShortAnswer):
    """What a model or a cluster file describes."""

    kind: str
    summary: str
    parameters: int | None
    active_parameters: int | None
    document: dict[str, Any]
    notes: list[str]


def short_plan(plan: Data, ref: str = "") -> ShortPlan:
    """Return the figures of a plan of an answer; `ref` names it for other tools."""
    memory = plan["memory"]
    peak, usable = memory["peak_bytes"], memory["usable_bytes"]
    return ShortPlan(
        ref=ref,
        fits=peak <= usable,
        n_devices=plan["layout"]["n_devices"],
        is_tie=plan["tie"],
        peak_bytes=peak,
        usable_bytes=usable,
        free_frac=1.0 - peak / usable,
        memory=memory["stages"][memory["peak_stage"]],
        warnings=[Coded(code=w["code"], text=w["text"]) for w in plan["warnings"]],
        **{name: plan[name] for name in _SAME},
    )


_SAME = (
    "plan_id",
    "rank",
    "layout",
    "idle_devices",
    "precision",
    "step_time_s",
    "step_time_p10_s",
    "step_time_p90_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "mfu",
    "time",
    "run",
    "runs_on",
)
"""Fields of a plan that a short one has under the same names."""


def picked(rows: list[Data], *names: str) -> list[dict[str, Any]]:
    """Return rows with some of their fields, those that they have."""
    return [{name: row[name] for name in names if name in row} for row in rows]
