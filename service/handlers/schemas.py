"""Requests of every call: the one set of their schemas for all transports.

Names and units are those of the command line's JSON. A document (a model, a cluster) is the name
of a packaged example, the mapping that its file holds, or the text of the file. Nothing in a
request names a file or an address. What a search is told is `SolveRequest`, as JSON holds it.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from planner.solver.request import FieldValue, Framework
from planner.specs.search.schema_values import often_one_of
from service.handlers.derived_fields import search_fields, with_fields


class Request(BaseModel):
    """Base of all requests: unknown fields are errors, and no text becomes a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Limit = Annotated[float, Field(ge=0.0)]
"""Seconds; 0 is not given, as in gRPC."""
Count = Annotated[int, Field(json_schema_extra={"minimum": 0})]
"""What is below is refused by the library, in words of its own."""


def _targets() -> tuple[str, ...]:
    from planner.frameworks.finetuning.tuners import TUNERS  # 0.3 s, for the document alone
    from searches.frameworks.registry import framework_names

    return (*framework_names(), *TUNERS)


def _launchers() -> tuple[str, ...]:
    from planner.frameworks.launchers.files import LAUNCHERS  # 0.3 s, for the document alone

    return tuple(LAUNCHERS)


Target = Annotated[str, Field(json_schema_extra=often_one_of("TargetName", _targets))]
"""What files are written for; a framework with `@` and a release if one is meant."""
Launcher = Annotated[str, Field(json_schema_extra=often_one_of("LauncherName", _launchers))]
"""What starts a run; spaces around it are nothing."""


class Text(Request):
    """The text of a file: YAML, JSON, a launch script, a dump of a cluster."""

    text: str
    name: str = ""
    """What the file is called, such as `job.yaml`: for messages, for documents without a name and
    for formats told by the ending. It is never opened."""


Document = Annotated[
    Text | str | dict[str, Any],
    Field(
        title="InputDocument",
        description="The name of a packaged example, the text of a file, or what a file holds.",
        union_mode="left_to_right",
    ),
]


@with_fields(**search_fields("overrides", "pool", "stack", "allow"))
class _Inputs(Request):
    """What is priced, and on what."""

    model: Document
    """Model file, Hugging Face config.json or Megatron-LM arguments."""
    cluster: Document
    """Cluster file, a dump of Slurm, Kubernetes or a node, or words such as `64xh100`."""


class Priced(_Inputs):
    """What every call that prices plans takes."""

    calibration: Document | None = None
    """A calibration file's content to price with; the one that ships without it."""
    reference: Document | None = None
    """One to three measured runs of one's own that set the scale, as `--reference` reads them: one
    run, or the text of a file."""
    files: dict[str, str] = {}
    """Texts of the files that runs of the reference name as model or cluster, by those names."""


@with_fields(
    **search_fields("pins", "only", "at_most", "top", "all_variants", "framework", "pools"),
    **search_fields("objective", "within", "memory_margin", "deadline", "budget"),
    **search_fields("step_limit_s", "pareto"),
    time_limit_s=(Limit, 0.0),
)
class SolveBody(Priced, title="SolveRequest"):
    """Rank the layouts of a training job on a cluster."""


class EvaluateBody(Priced, title="EvaluateRequest"):
    """Price one layout, whether or not it fits."""

    pins: dict[str, FieldValue]
    framework: Framework = "default"


class PlanOf(Request):
    """One plan: of a question, which is answered again, or of an answer that is given."""

    solve: SolveBody | None = None
    evaluate: EvaluateBody | None = None
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


class TextBody(Request):
    """Base of requests whose answer can be had as text, too."""

    with_text: bool = False
    """The answer also as a terminal shows it, in the field `text`."""


class ExplainBody(PlanOf, title="ExplainRequest"):
    """Explain one plan in words and as a tree, or one term down to its formula."""

    term: str = ""


class EmitBody(PlanOf, title="EmitRequest"):
    """Write the framework configuration that runs one plan, and the files that launch it."""

    for_: list[Target] = Field(default=["megatron"], alias="for")
    """Frameworks by the names that `solve` takes, and tools that fine-tune: `trl`, `axolotl`,
    `llama-factory`."""
    launcher: list[Launcher] = ["torchrun"]
    """torchrun, slurm, jobset, pytorchjob."""
    hosts: str | None = None
    """Hosts in network order, `n[001-016]`, or lines of such."""


class PlaceBody(PlanOf, TextBody, title="PlaceRequest"):
    """Show the process groups of a plan as ranks on hosts."""

    hosts: str | None = None
    """The free hosts in network order, `n[001-016]`, or lines of such; the cluster's without."""


class TraceBody(PlanOf, title="TraceRequest"):
    """One step of a plan in time, as a trace file that ui.perfetto.dev opens."""

    micro_batches: int = Field(default=0, ge=0)
    """The first and last so many of a step alone; 0: all."""


class DiffBody(TextBody, title="DiffRequest"):
    """Say term by term why one plan beats another, and what would turn it round."""

    a: PlanOf
    b: PlanOf


class ReplanBody(PlanOf, TextBody, title="ReplanRequest"):
    """The best plan after nodes of a running one were lost or gained, and what moving costs."""

    lost: Count | str | list[str] = 0
    """Nodes that are gone: a number, or their host names, `n[003,007]`, or a list of such; of a
    plan over several pools numbers by pool, `old=1,new=2`, or host names."""
    gained: Count = 0
    """Nodes that joined."""
    gained_by_pool: dict[str, Count] = {}
    """The same by pool, in place of `gained`: of a plan over several pools."""
    via: Literal["checkpoint", "network"] = "checkpoint"
    """How the state moves; between the devices only with software that can."""
    time_limit_s: Limit = 0.0
    """As in solve, over the whole call."""


@with_fields(**search_fields("pins", "only", "at_most", "framework"), time_limit_s=(Limit, 0.0))
class ScaleBody(Priced, title="ScaleRequest"):
    """The best plan at each number of devices, and where more of them stop paying."""

    scaling: Literal["strong", "weak"] = "strong"
    over: Literal["devices", "seq_len", "layers"] = "devices"
    from_: Count = Field(default=0, alias="from")
    """Smallest size; 0: the first that fits, or the file's own."""
    to: Count = 0
    """Largest size, also beyond the cluster; 0: the cluster's, or what fits."""
    points: Annotated[int, Field(json_schema_extra={"minimum": 2})] = 16
    """Most numbers of devices."""


class BatchSolveBody(Request, title="BatchSolveRequest"):
    """The fastest plan of several jobs on several kinds of devices, at several numbers of them."""

    jobs: dict[str, Document]
    """By the name that rows have for them: what `model` is in solve."""
    clusters: dict[str, Document]
    """The same of `cluster`: a kind of devices each."""
    counts: list[int]
    """Numbers of devices, also beyond a cluster."""
    framework: Framework = ""
    time_limit_s: Limit = 0.0
    """As in solve, over the whole call."""


class CurvePoint(Request):
    """What a job does with some nodes."""

    pool: str
    """One of `free`."""
    nodes: Annotated[int, Field(json_schema_extra={"minimum": 1})]
    tokens_per_s: float


class JobCurve(Request):
    """A job that runs on any of some numbers of nodes, or waits."""

    name: str
    curve: list[CurvePoint]
    weight: float = 1.0
    tokens: float = 0.0
    """That are left to train."""
    deadline_s: Limit = 0.0
    """From now on; 0: none."""


class AllocateBody(Request, title="AllocateRequest"):
    """Share free nodes among jobs, by the curve of each, with a proof or a bound."""

    free: dict[str, int]
    """Nodes by pool."""
    jobs: list[JobCurve]
    objective: Literal["throughput", "fairness", "deadline"] = "throughput"
    """Most weighted tokens a second; the largest product of speeds; most jobs in time."""


class SweepBody(Request, title="SweepRequest"):
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


class CheckBody(TextBody, title="CheckRequest"):
    """Judge an existing run: refusals, memory, step time, place among plans, best changes."""

    run: Text | str
    """Launch script, DeepSpeed JSON, torchtitan TOML or recipe, YAML of Accelerate, TRL, axolotl
    or LLaMA-Factory."""
    cluster: Document
    model: Document | None = None
    """Where the run does not say the model."""
    files: dict[str, str] = {}
    """Texts of the files that the run names, by name."""
    framework: Framework = ""
    version: str = ""
    env: dict[str, str] = {}
    """Variables that the shell of the run sets."""
    pins: dict[str, FieldValue] = {}
    set: dict[str, FieldValue] = {}
    pool: str = ""
    calibration: Document | None = None


class CatalogueBody(Request, title="CatalogueRequest"):
    """Accelerators, links, servers and cloud machines, each figure with its source and date."""

    name: str = ""
    """One part; all of them without it."""


class RulesBody(Request, title="RulesRequest"):
    """Rules that reject layouts, or settings of a framework."""

    code: str = ""
    """One rule, such as TP002; all of them without it."""


class CheckSpecBody(Request, title="CheckSpecRequest"):
    """Check a model or cluster file and say what it describes."""

    document: Document


JobState = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"]


class WebhookBody(Request, title="WebhookRequest"):
    """An address that is told when jobs come into some states, in signed requests."""

    url: str
    """https://..., of a host that webhooks of this service may lead to."""
    secret: str = ""
    """`whsec_` and the base64 of 24 to 64 random bytes; one is made and returned without it."""
    states: list[JobState] = []
    """States that it is told of: SUCCEEDED, FAILED and CANCELLED without it."""
    labels: str = ""
    """Only jobs with such labels: a selector, as for the list of jobs."""


class JobWebhook(Request):
    """An address that is told of one job alone."""

    url: str
    secret: str
    """`whsec_` and the base64 of 24 to 64 random bytes."""
    states: list[JobState] = []
    """States that it is told of: SUCCEEDED, FAILED and CANCELLED without it."""


class JobBody(Request, title="JobRequest"):
    """A call to be worked on as a job."""

    call: str
    """Name of a call: solve, sweep, scale and so on."""
    request: dict[str, Any]
    """What the call reads."""
    time_limit_s: float = Field(default=0.0, ge=0.0)
    """End the work after so many seconds with the best so far; 0: the limit of the service."""
    labels: dict[str, str] = {}
    """Names and values as Kubernetes has them, 32 at most: jobs are selected by them."""
    webhook: JobWebhook | None = None
    """Told when the job has ended."""
