"""Requests and answers of every call: the one set of schemas of all transports.

Names and units are those of the command line's JSON. A document (a model, a cluster) is the name
of a packaged example, the mapping that its file holds, or the text of the file. Nothing in a
request names a file or an address.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from costmodels.axes import AXES, Axis


def _name_frameworks(schema: dict[str, Any]) -> None:
    """Name the frameworks in a schema; imported here, as most calls read no such field."""
    from searches.frameworks.registry import framework_spaces

    schema["examples"] = list(framework_spaces())


class Request(BaseModel):
    """Base of all requests: unknown fields are errors, and no text becomes a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Answer(BaseModel):
    """Base of all answers: fields may be added, and are then read as they come."""

    model_config = ConfigDict(extra="allow", frozen=True, ser_json_inf_nan="null")


Limit = Annotated[float, Field(ge=0.0)]
"""Seconds; 0 is not given, as in gRPC."""
Factor = Annotated[float, Field(json_schema_extra={"minimum": 0})]
Count = Annotated[int, Field(json_schema_extra={"minimum": 0})]
"""What is below is refused by the library, in words of its own."""
Framework = Annotated[str, Field(json_schema_extra=_name_frameworks)]
"""A framework, `default` or `any`; its schema names all that are installed."""


class Text(Request):
    """The text of a file: YAML, JSON, a launch script, a dump of a cluster."""

    text: str
    name: str = ""
    """What the file is called, such as `job.yaml`: for messages, for documents without a name and
    for formats told by the ending. It is never opened."""


Document = Annotated[
    Text | str | dict[str, Any],
    Field(
        description="The name of a packaged example, the text of a file, or what a file holds.",
        union_mode="left_to_right",
    ),
]
Value = bool | int | float | str
"""A value of an axis or of a field: a number, a switch or a word."""


class Priced(Request):
    """What every call that prices plans takes."""

    model: Document
    """Model file, Hugging Face config.json or Megatron-LM arguments."""
    cluster: Document
    """Cluster file, or a dump of Slurm, Kubernetes or a node."""
    set: dict[str, Value] = {}
    """Fields to change, by path: `{"pools.0.nodes": 16}`."""
    pool: str = ""
    """Plan for this pool of the cluster only."""
    stack: str = ""
    """Software profile to price with; the framework's own by default."""
    allow: list[str] = []
    calibration: Document | None = None
    """A calibration file's content to price with; the one that ships without it."""
    reference: Document | None = None
    """One to three measured runs of one's own that set the scale, as `--reference` reads them: one
    run, or the text of a file."""
    files: dict[str, str] = {}
    """Texts of the files that runs of the reference name as model or cluster, by those names."""


class SolveRequest(Priced):
    """Rank the layouts of a training job on a cluster."""

    pins: dict[str, Value] = {}
    """Fix axes: `{"tp": 8}`."""
    only: dict[str, list[Value]] = {}
    """Allowed values by axis."""
    max: dict[str, int] = {}
    """Largest values by axis."""
    top: Annotated[int, Field(json_schema_extra={"minimum": 1})] | None = None
    """Plans in the answer (10)."""
    framework: Framework = ""
    objective: str = ""
    within: Factor = 0.0
    """For the objective memory: how much slower than the fastest, a factor."""
    deadline: str | float = ""
    """Longest run, failures included: `30d`, or a number of days."""
    step_limit_s: Factor = 0.0
    """Longest step; 0: any."""
    pareto: list[str] = []
    """Two or three objectives whose front is wanted instead of a ranking."""
    time_limit_s: Limit = 0.0
    """Stop the search after so many seconds with the best so far; 0: the limit of the service."""


class EvaluateRequest(Priced):
    """Price one layout, whether or not it fits."""

    pins: dict[str, Value]
    framework: Framework = "default"


class PlanOf(Request):
    """One plan: of a question, which is answered again, or of an answer that is given."""

    solve: SolveRequest | None = None
    evaluate: EvaluateRequest | None = None
    result: dict[str, Any] | None = None
    """A whole answer of solve or evaluate."""
    plan: str | int = 1
    """Rank, or beginning of the plan id."""

    @model_validator(mode="after")
    def _one_source(self) -> "PlanOf":
        values = [name for name in ("solve", "evaluate", "result") if getattr(self, name)]
        if len(values) != 1:
            choices = " and ".join(values) or "none of them"
            raise ValueError(
                f"a plan is named by one of solve, evaluate and result, not {choices}"
            )
        return self


class Shown(Request):
    """Base of requests whose answer can be had as text, too."""

    with_text: bool = False
    """The answer also as a terminal shows it, in the field `text`."""


class ExplainRequest(PlanOf):
    """Explain one plan in words and as a tree, or one term down to its formula."""

    term: str = ""


class EmitRequest(PlanOf):
    """Write the framework configuration that runs one plan, and the files that launch it."""

    for_: list[str] = Field(default=["megatron"], alias="for")
    """Frameworks by the names that `solve` takes."""
    launcher: list[str] = ["torchrun"]
    """torchrun, slurm, jobset, pytorchjob."""
    hosts: str | None = None
    """Hosts in network order, `n[001-016]`, or lines of such."""


class PlaceRequest(PlanOf, Shown):
    """Show the process groups of a plan as ranks on hosts."""

    hosts: str | None = None
    """The free hosts in network order, `n[001-016]`, or lines of such; the cluster's without."""


class DiffRequest(Shown):
    """Say term by term why one plan beats another, and what would turn it round."""

    a: PlanOf
    b: PlanOf


class ReplanRequest(PlanOf, Shown):
    """The best plan after nodes of a running one were lost or gained, and what moving costs."""

    lost: Count | str | list[str] = 0
    """Nodes that are gone: a number, or their host names, `n[003,007]`, or a list of such."""
    gained: Count = 0
    """Nodes that joined."""
    via: Literal["checkpoint", "network"] = "checkpoint"
    """How the state moves; between the devices only with software that can."""
    time_limit_s: Limit = 0.0
    """As in solve, over the whole call."""


class ScaleRequest(Priced):
    """The best plan at each number of devices, and where more of them stop paying."""

    scaling: Literal["strong", "weak"] = "strong"
    over: Literal["devices", "seq_len", "layers"] = "devices"
    from_: Count = Field(default=0, alias="from")
    """Smallest size; 0: the first that fits, or the file's own."""
    to: Count = 0
    """Largest size, also beyond the cluster; 0: the cluster's, or what fits."""
    points: Annotated[int, Field(json_schema_extra={"minimum": 2})] = 16
    """Most numbers of devices."""
    pins: dict[str, Value] = {}
    only: dict[str, list[Value]] = {}
    max: dict[str, int] = {}
    framework: Framework = ""
    time_limit_s: Limit = 0.0
    """As in solve, over the whole call."""


class SweepRequest(Request):
    """A full search at every point of a grid, a list or a sample, with fields of a sweep file."""

    spec: dict[str, Any]
    """What a sweep file holds; models and clusters by name of an example, or what they hold.
    Neither `calibration` nor `reference`, which name files."""
    calibration: Document | None = None
    """A calibration file's content to price with; the one that ships without it."""
    reference: Document | None = None
    """Measured runs that set the scale of every point, as in solve."""
    files: dict[str, str] = {}
    """Texts of the files that runs of the reference name, by those names."""
    point_limit_s: Limit = 0.0
    """Longest search of one point; 0: that of the file, else of the service."""
    time_limit_s: Limit = 0.0
    """As in solve, over the whole call."""


class CheckRequest(Shown):
    """Judge an existing run: refusals, memory, step time, place among plans, best changes."""

    run: Text | str
    """Launch script, DeepSpeed JSON, torchtitan TOML or recipe, Accelerate YAML."""
    cluster: Document
    model: Document | None = None
    """Where the run does not say the model."""
    files: dict[str, str] = {}
    """Texts of the files that the run names, by name."""
    framework: Framework = ""
    version: str = ""
    env: dict[str, str] = {}
    """Variables that the shell of the run sets."""
    pins: dict[str, Value] = {}
    set: dict[str, Value] = {}
    pool: str = ""
    calibration: Document | None = None


class CatalogueRequest(Request):
    """Accelerators, links, servers and cloud machines, each figure with its source and date."""

    name: str = ""
    """One part; all of them without it."""


class RulesRequest(Request):
    """Rules that reject layouts, or settings of a framework."""

    code: str = ""
    """One rule, such as TP002; all of them without it."""


class CheckSpecRequest(Request):
    """Check a model or cluster file and say what it describes."""

    document: Document


def _axis_type(axis: Axis) -> tuple[Any, Any]:
    """Return type and field of an axis in JSON; one that is written only in use is optional."""
    kind: Any = type(axis.off) if not isinstance(axis.off, tuple) else list[str]
    if axis.is_always_written:
        return kind, Field(description=axis.title)
    return kind | None, Field(default=None, description=axis.title)


if TYPE_CHECKING:
    Layout = Answer
else:
    Layout = create_model(
        "Layout",
        __base__=Answer,
        __doc__="How one training job is split over the devices.",
        n_devices=(int, ...),
        gbs=(int, ...),
        n_micro=(int, ...),
        stage_layers=(list[int], ...),
        **{axis.name: _axis_type(axis) for axis in AXES.values() if axis.table != "derived"},
    )


class Memory(Answer):
    """Bytes of a device, by pipeline stage and term."""

    peak_bytes: int
    peak_stage: int
    usable_bytes: int
    stages: list[dict[str, int]]


class Transfer(Answer):
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


class Warned(Answer):
    """Something that the owner of a plan should know."""

    code: str
    text: str


class Plan(Answer):
    """One priced layout: seconds, bytes, fractions."""

    rank: int
    plan_id: str
    pool: str
    precision: str
    layout: Layout
    step_time_s: float
    step_time_p10_s: float
    step_time_p90_s: float
    interval_regime: str
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float
    training_s: float | None
    """Of the whole run, without failures, restarts and checkpoints; `run.expected_s` has them."""
    tie: bool
    group: int | None
    closed_form_step_time_s: float
    time: dict[str, float]
    memory: Memory
    comm: list[Transfer]
    warnings: list[Warned]
    runs_on: list[str]
    idle_devices: int
    run: dict[str, float] | None


class Rejected(Answer):
    """How many candidates a rule excluded first."""

    code: str
    n: int
    of: str


class Closest(Answer):
    """The plan that comes closest to fitting when none does."""

    layout: Layout
    peak_bytes: int
    usable_bytes: int


class Relaxed(Answer):
    """A change after which a plan exists."""

    change: str
    kind: str
    factor: float
    command: str
    layout: Layout | None
    step_time_s: float | None


class SolveAnswer(Answer):
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
    plans: list[Plan]
    closest: Closest | None
    uneven_tried: dict[str, int] | None
    conflicts: list[list[Warned]]
    relaxations: list[Relaxed]
    notes: list[str]


class ExplainAnswer(Answer):
    """A plan in words."""

    plan_id: str
    term: str
    text: str
    plan: Plan
    binding: dict[str, Any] | None = None
    """What binds the plan, what would relax that and by how much, and what binds next; null where
    a term is opened."""


class EmitAnswer(Answer):
    """Files of one plan."""

    plan_id: str
    files: dict[str, str]
    """Text by name; `*.sh` and `*.sbatch` are meant to be executable."""
    refused: dict[str, str]
    """Why a framework runs no such plan, by framework."""


class PlaceAnswer(Answer):
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


class DiffAnswer(Answer):
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


class CheckAnswer(Answer):
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
    plan: Plan | None
    standing: dict[str, Any] | None
    changes: list[dict[str, Any]]
    notes: list[str]


class CatalogueAnswer(Answer):
    """Figures with their sources: bytes, bytes per second, FLOP/s, seconds, watts."""

    hash: str
    accelerators: list[dict[str, Any]]
    links: list[dict[str, Any]]
    platforms: list[dict[str, Any]]


class Rule(Answer):
    """Why a layout, or a setting of a framework, is rejected."""

    code: str
    title: str
    why: str
    to_change: str
    source: str
    framework: str
    versions: str
    when: str


class RulesAnswer(Answer):
    """Rules by code."""

    rules: list[Rule]


class CheckSpecAnswer(Answer):
    """What a model or cluster file describes."""

    kind: Literal["model", "cluster"]
    summary: str
    notes: list[str]
    document: dict[str, Any]
    """Every default filled in."""


class ScaleAnswer(Answer):
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


class SweepAnswer(Answer):
    """Points of a sweep, a row each, in order."""

    sweep: dict[str, Any]
    """What the sweep is, as the head of its file says."""
    n_points: int
    complete: bool
    stopped: str
    rows: list[dict[str, Any]]


class ReplanAnswer(Answer):
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


class JobRequest(Request):
    """A call to be worked on as a job."""

    call: str
    """Name of a call: solve, sweep, scale and so on."""
    request: dict[str, Any]
    """What the call reads."""
    time_limit_s: float = Field(default=0.0, ge=0.0)
    """End the work after so many seconds with the best so far; 0: the limit of the service."""


class ProblemAnswer(Answer):
    """Why a request was refused, after RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    """The same for the same reason, for programs."""
    instance: str = ""
    """Id of the request, as in the logs."""
    errors: list[dict[str, Any]] = []
    """Each with its `message`; `hint`, `field`, `location`, `code` and `rule` where known. `fix`
    is the hint; `source`, `line` and `column` are the location."""
    retry_after_s: float | None = None


class JobAnswer(Answer):
    """A job; times of day in seconds since 1970."""

    job_id: str
    owner: str
    call: str
    request_id: str
    state: Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"]
    attempts: int
    n_events: int
    created_at: float
    started_at: float | None
    finished_at: float | None
    complete: bool | None
    """False where the answer is the best so far; null while there is none."""
    etag: str
    problem: dict[str, Any] | None
    """Why it failed."""


class JobsAnswer(Answer):
    """A page of jobs, the newest first."""

    jobs: list[JobAnswer]
    next_cursor: str
    """Empty after the last page."""


class PageAnswer(Answer):
    """A page of a job's answer: a part of its longest list."""

    items: list[Any]
    total: int
    next_cursor: str
    list_: str = Field(alias="list")
    """Name of the list in the answer."""
    answer: dict[str, Any] | None = None
    """With the first page: the other fields of the answer."""


class VersionAnswer(Answer):
    """What answers."""

    version: str
    api: str
    calls: list[str]
