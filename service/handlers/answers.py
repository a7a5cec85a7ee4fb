"""Answers of every call: the one set of their schemas for all transports.

Names and units are those of the command line's JSON.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from costmodels.axes import AXES, Axis
from service.handlers.derived_fields import with_fields


class AnswerBody(BaseModel):
    """Base of all answers: fields may be added, and are then read as they come."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="null")


def deprecated_field(since: str, sunset: str, instead: str) -> Any:
    """Return a field that goes away: days from when it is deprecated and until it is kept.

    Schemas say so; over HTTP answers that hold it have the headers of it.
    """
    marks = {"x-deprecated-since": since, "x-sunset": sunset, "x-use-instead": instead}
    return Field(json_schema_extra={"deprecated": True, **marks})


def _axis_type(axis: Axis) -> tuple[Any, Any]:
    """Return type and field of an axis in JSON; one that is written only in use is optional."""
    kind: Any = type(axis.off) if not isinstance(axis.off, tuple) else list[str]
    if axis.is_always_written:
        return kind, Field(description=axis.title)
    return kind | None, Field(default=None, description=axis.title)


@with_fields(**{axis.name: _axis_type(axis) for axis in AXES.values() if axis.table != "derived"})
class LayoutBody(AnswerBody, title="Layout"):
    """How one training job is split over the devices."""

    n_devices: int
    gbs: int
    n_micro: int
    stage_layers: list[int]


class Memory(AnswerBody):
    """Bytes of a device, by pipeline stage and term."""

    peak_bytes: int
    peak_stage: int
    usable_bytes: int
    stages: list[dict[str, int]]


class TransferBody(AnswerBody, title="Transfer"):
    """One kind of collective of a step."""

    axis: str
    collective: str
    algorithm: str
    tier: str
    group_size: int
    n_calls: float
    message_bytes: int
    bytes: int
    time_s: float
    exposed_s: float
    dtype: str


class Warned(AnswerBody):
    """Something that the owner of a plan should know."""

    code: str
    text: str


class PlanBody(AnswerBody, title="Plan"):
    """One priced layout: seconds, bytes, fractions."""

    rank: int
    plan_id: str
    pool: str
    precision: str
    layout: LayoutBody
    step_time_s: float
    step_time_p10_s: float
    step_time_p90_s: float
    interval_regime: str
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    mfu_bf16: float | None
    """Over the dense bf16 peak, whatever the precision; null where the part has no bf16."""
    training_s: float | None
    """Of the whole run, without failures, restarts and checkpoints; `run.expected_s` has them."""
    tie: bool
    group: int | None
    closed_form_step_time_s: float
    time: dict[str, float]
    memory: Memory
    comm: list[TransferBody]
    warnings: list[Warned]
    runs_on: list[str]
    first_releases: dict[str, str] = {}
    """The oldest release of a framework that runs it, where an older one does not; left out where
    there is none."""
    n_variants: int | None = None
    """Plans of its pool, precision, devices, tp, pp, cp and ep, of which it is the best; left out
    where it is the only one or each is listed."""
    idle_devices: int
    run: dict[str, float] | None


class Rejected(AnswerBody):
    """How many candidates a rule excluded first."""

    code: str
    n: int
    of: str


class Closest(AnswerBody):
    """The plan that comes closest to fitting when none does."""

    layout: LayoutBody
    peak_bytes: int
    usable_bytes: int


class Relaxed(AnswerBody):
    """A change after which a plan exists."""

    change: str
    kind: str
    factor: float
    command: str
    layout: LayoutBody | None
    step_time_s: float | None


class AlternativeBody(AnswerBody, title="Alternative"):
    """Another value of the job's numbers, or of an axis that is off, in the first plan."""

    axis: str
    value: str
    step_time_s: float
    peak_bytes: int
    pin: str
    fits: bool
    changes: str
    """`numerics`: what is computed; `schedule`: an axis of the layout that is off by default."""


class SolveAnswer(AnswerBody):
    """Ranked plans, counts and reasons; without plans, what would help."""

    schema_version: str
    result_id: str
    inputs: dict[str, Any]
    calibration: dict[str, Any]
    complete: bool
    stopped: str
    """`time limit` where the search was stopped: the best so far."""
    gap: float | None
    devices: list[dict[str, Any]]
    counts: dict[str, int]
    certificate: dict[str, Any] | None
    rejected: list[Rejected]
    why_first: list[str]
    plans: list[PlanBody]
    memory_margin: dict[str, Any] | None
    """Whether the first plan leaves that share of the memory free, and what it was put before."""
    closest: Closest | None
    uneven_tried: dict[str, int] | None
    conflicts: list[list[Warned]]
    relaxations: list[Relaxed]
    alternatives: list[AlternativeBody]
    notes: list[str]
    together: dict[str, Any] | None = None
    """One job over several pools: its plans, their bound, what each pool adds; absent where pools
    are planned apart."""


class ExplainAnswer(AnswerBody):
    """A plan in words."""

    plan_id: str
    term: str
    text: str
    plan: PlanBody | None
    """Null for a plan over several pools."""
    binding: dict[str, Any] | None = None
    """What binds the plan, what would relax that and by how much, and what binds next; null where
    a term is opened."""
    together: dict[str, Any] | None = None
    """Of a plan over several pools what binds it, its stages, links and pools, or the values of
    the term; absent for others."""


class EmitAnswer(AnswerBody):
    """Files of one plan."""

    plan_id: str
    files: dict[str, str]
    """Text by name; `*.sh` and `*.sbatch` are meant to be executable."""
    refused: dict[str, str]
    """Why a framework runs no such plan, by framework."""


class PlaceAnswer(AnswerBody):
    """Ranks on hosts, and the process groups."""

    plan_id: str
    n_ranks: int
    rank_order: str
    grids: dict[str, dict[str, int]]
    devices_per_node: int
    nodes_per_domain: int
    hosts_known: bool
    hosts: list[str]
    ranks: list[dict[str, Any]]
    groups: dict[str, dict[str, Any]]
    pools: list[dict[str, Any]] | None = None
    """Of a plan over several pools its nodes in the order of ranks: `pool`, `accelerator`, first
    and last of `nodes` and `ranks`, `hosts`; absent for others."""


class TraceAnswer(AnswerBody):
    """One step of a plan in time."""

    plan_id: str
    trace: str
    """Text of a trace file in Chrome's format."""


class DiffAnswer(AnswerBody):
    """Two plans side by side; differences are B less A."""

    a: dict[str, Any]
    b: dict[str, Any]
    winner: str
    tokens_per_s_ratio: float
    inputs: list[str]
    layout: list[dict[str, Any]]
    time: dict[str, dict[str, float]]
    memory: dict[str, dict[str, float]]
    traffic: dict[str, dict[str, dict[str, float]]]
    turns: list[str]


class CheckAnswer(AnswerBody):
    """An existing run, judged."""

    schema_version: str
    source: str
    framework: str
    release: str
    accepted: bool
    fits: bool | None
    refusals: list[dict[str, Any]]
    n_devices: int | None
    """On which the run starts, where it says that."""
    plan: PlanBody | None
    standing: dict[str, Any] | None
    changes: list[dict[str, Any]]
    notes: list[str]
    together: dict[str, Any] | None = None
    """Of a run over several pools what `explain` says of such a plan; absent for others."""


class CatalogueAnswer(AnswerBody):
    """Figures with their sources: bytes, bytes per second, FLOP/s, seconds, watts."""

    hash: str
    accelerators: list[dict[str, Any]]
    links: list[dict[str, Any]]
    platforms: list[dict[str, Any]]


class RuleBody(AnswerBody, title="Rule"):
    """Why a layout, or a setting of a framework, is rejected."""

    code: str
    title: str
    why: str
    to_change: str
    source: str
    framework: str
    versions: str
    when: str


class RulesAnswer(AnswerBody):
    """Rules by code."""

    rules: list[RuleBody]


class CheckSpecAnswer(AnswerBody):
    """What a model or cluster file describes."""

    kind: Literal["model", "cluster"]
    summary: str
    notes: list[str]
    document: dict[str, Any]
    """Every default filled in."""


class ScaleAnswer(AnswerBody):
    """A curve: one row a size."""

    schema_version: str
    result_id: str
    inputs: dict[str, Any]
    calibration: dict[str, Any]
    over: str
    scaling: str
    stopped: str
    marks: dict[str, Any]
    """Knee, break-even, wall, takeover."""
    columns: list[dict[str, str]]
    rows: list[dict[str, Any]]
    notes: list[str]


class BatchRow(AnswerBody):
    """One job on one number of one kind of devices; null where it has no plan."""

    index: int
    """Place of the row, from 0."""
    job: str
    cluster: str
    n_devices: int
    n_nodes: int
    status: Literal["ok", "nothing fits", "no layout"]
    reason: str
    """Why it has no plan, where that is short."""
    plan_id: str | None
    step_time_s: float | None
    tokens_per_s: float | None
    peak_bytes: int | None
    layout: LayoutBody | None


class BatchSolveAnswer(AnswerBody):
    """A row for every job, kind of devices and number of them, in this order."""

    schema_version: str
    result_id: str
    n_cells: int
    stopped: str
    rows: list[BatchRow]


class JobAllocation(AnswerBody):
    """What one job gets."""

    name: str
    pool: str | None
    """Null where it waits."""
    nodes: int
    tokens_per_s: float
    speed_frac: float
    """Of that of its fastest point."""
    remaining_s: float | None
    """Time for the tokens that are left, where they are known."""
    is_in_time: bool | None
    """Whether it meets its deadline, where it has one and runs."""


class AllocateAnswer(AnswerBody):
    """Which job gets what, in the order of the jobs."""

    schema_version: str
    result_id: str
    objective: str
    free: dict[str, int]
    used: dict[str, int]
    value: float
    """Of the objective."""
    bound: float
    """No allocation has a larger value."""
    is_proven: bool
    gap_frac: float
    """How far the value may be below the best one; 0 where it is proven."""
    jobs: list[JobAllocation]


class SweepAnswer(AnswerBody):
    """Points of a sweep, a row each, in order."""

    sweep: dict[str, Any]
    """What the sweep is, as the head of its file says."""
    n_points: int
    complete: bool
    stopped: str
    rows: list[dict[str, Any]]


class ReplanAnswer(AnswerBody):
    """What to do with a running plan on the nodes that are there."""

    schema_version: str
    plan_id: str
    nodes: dict[str, Any]
    verdict: Literal["move", "carry on", "nothing fits"]
    break_even_s: float | None
    batch: dict[str, Any]
    move: dict[str, Any] | None
    carry_on: dict[str, Any]
    complete: bool
    stopped: str
    result: SolveAnswer
    """Of the search on the nodes that are there: name its plans to other calls."""
    notes: list[str]
    together: dict[str, Any] | None = None
    """Of a plan over several pools the old plan, the best and the old layout with fewer pipelines,
    and what changes; absent for others."""


class FaultBody(AnswerBody, title="Fault"):
    """One thing wrong in a request; what is not known is left out."""

    message: str
    """What is wrong, with what was given and what is allowed."""
    hint: str = ""
    """What to change."""
    fix: str = ""
    """The same as `hint`."""
    field: str = ""
    """Place in the request, or in the document that it holds: `pools.0.nodes`."""
    location: str = ""
    """Document, line and column as one text: `model:3:7`."""
    source: str = ""
    """The document in the request where lines are counted: its name, or `model`, `cluster`."""
    line: int = 0
    """From 1, within that document."""
    column: int = 0
    rule: str = ""
    """Rule that the message is about, such as TP002."""
    code: str = ""
    """Kind of error, one of docs/errors.md: `bad-option.contradiction`."""
    in_options: dict[str, str] = {}
    """Message, hint and source with options of the command line in place of fields."""


class QuotaExceededAnswer(AnswerBody, title="QuotaExceeded"):
    """The quota that a request was refused for."""

    group: str
    quota: Literal["running_jobs", "queued_jobs", "cpu_s", "stored_results", "stored_bytes"]
    used: float
    limit: float
    frees_in_s: float | None
    """Time until some of it frees by itself; null where only the end of a job frees it."""
    window_s: float | None
    """Time within which CPU seconds count; null for other quotas."""


class ProblemAnswer(AnswerBody):
    """Why a request was refused, after RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """The same for the same reason, for programs."""
    instance: str = ""
    """Id of the request, as in the logs."""
    errors: list[FaultBody] = []
    retry_after_s: float | None = None
    quota: QuotaExceededAnswer | None = None
    """What is used up, where the code is `quota-exceeded`."""


JobState = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"]


class StateEvent(AnswerBody):
    """Data of the event `state`: what a job has become."""

    state: JobState
    attempt: int = 0
    """Which attempt began, from 1; left out otherwise."""
    reason: str = ""
    """Why it waits again; left out otherwise."""


class ProgressEvent(AnswerBody):
    """Data of the event `progress`: how far a job is."""

    phase: str
    """What is worked on: `search`, `points`."""
    done: int
    """Of `total`."""
    total: int
    best_step_time_s: float | None = None
    """Of the best plan so far; null where none is known."""


class JobAnswer(AnswerBody):
    """A job; times of day in seconds since 1970."""

    job_id: str
    owner: str
    call: str
    request_id: str = deprecated_field("2026-11-28", "2027-12-01", "content_id")
    """The same as `content_id`, by the name of older releases. In headers, problems and logs a
    request id is that of one request, whatever it asks."""
    content_id: str
    """Content hash of what is asked: equal questions have the same."""
    state: JobState
    attempts: int
    n_events: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    complete: bool | None
    """False where the answer is the best so far; null while there is none."""
    etag: str
    problem: ProblemAnswer | None
    """Why it failed."""
    group: str
    """Group of its owner when it was submitted."""
    priority: Literal["urgent", "normal", "background"]
    labels: dict[str, str]
    resource_version: int
    """Of its last change: the larger, the later among all jobs."""


class JobsAnswer(AnswerBody):
    """A page of jobs, the newest first."""

    jobs: list[JobAnswer]
    next_cursor: str
    """Empty after the last page."""
    resource_version: int
    """To watch from: that of the first page misses nothing that comes after it."""


class WebhookAnswer(AnswerBody):
    """An address that is told of jobs; its secret is not shown."""

    webhook_id: str
    owner: str
    url: str
    states: list[str]
    """States that it is told of."""
    labels: str
    """Selector of the jobs that it is told of; empty for all."""
    job_id: str
    """The only job that it is told of; empty for all."""
    created_at: float
    n_dropped: int
    """Changes that it is not told of, because too many deliveries waited."""


class NewWebhookAnswer(WebhookAnswer):
    """A webhook that was registered, with its secret, which is not shown again."""

    secret: str


class WebhooksAnswer(AnswerBody):
    """A page of webhooks, the oldest first."""

    webhooks: list[WebhookAnswer]
    next_cursor: str
    """Empty after the last page."""


class DeliveryAnswer(AnswerBody):
    """What is sent to a webhook; times of day in seconds since 1970."""

    delivery_id: str
    """The header `webhook-id` of every attempt."""
    webhook_id: str
    job_id: str
    type: str
    """`job.succeeded` and so on; `webhook.test`."""
    state: Literal["WAITING", "DELIVERED", "FAILED"]
    attempts: int
    status: int | None
    """Of the last answer over HTTP."""
    error: str
    """Why the last attempt failed."""
    created_at: float
    finished_at: float | None


class DeliveriesAnswer(AnswerBody):
    """A page of deliveries of a webhook, the newest first."""

    deliveries: list[DeliveryAnswer]
    next_cursor: str
    """Empty after the last page."""


class PageAnswer(AnswerBody):
    """A page of a job's answer: a part of its longest list."""

    items: list[Any]
    total: int
    next_cursor: str
    list_: str = Field(alias="list")
    """Name of the list in the answer."""
    answer: dict[str, Any] | None = None
    """With the first page: the other fields of the answer."""


class QuotaAnswer(AnswerBody, title="Quota"):
    """A quota of a group, and what of it is used."""

    quota: Literal["running_jobs", "queued_jobs", "cpu_s", "stored_results", "stored_bytes"]
    used: float
    limit: float | None
    """Null where nothing bounds it."""
    frees_in_s: float | None
    """Time until some of it frees by itself; null where the end of a job frees it, or nothing is
    used up."""


class UsageAnswer(AnswerBody):
    """What a group of callers may use, and has used."""

    group: str
    weight: float
    """Part of the workers among the groups of one priority, relative to theirs."""
    priority: Literal["urgent", "normal", "background"]
    """Of a request that asks for none."""
    highest_priority: Literal["urgent", "normal", "background"]
    window_s: float
    """Time within which CPU seconds count."""
    quotas: list[QuotaAnswer]


class VersionAnswer(AnswerBody):
    """What answers."""

    version: str
    api: str
    calls: list[str]
