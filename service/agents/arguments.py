"""Arguments of the tools: the schemas that an agent reads, with units and examples.

Names are those of the service's requests and of the command line; a text may stand for a mapping
where it holds one as JSON, as some clients send it.
"""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from costmodels.axes import AXES
from costmodels.tuning.records import TASKS
from planner.option_names import SEARCH_FIELDS
from planner.solver.request import FieldValue
from planner.specs.search.objectives import OBJECTIVES

Details = Literal["short", "full"]
Objective = Annotated[str, Field(json_schema_extra={"enum": ["", *OBJECTIVES]})]
Task = Annotated[str, Field(json_schema_extra={"enum": ["", *TASKS]})]
"""What is left empty is as the model file says."""
Launcher = Literal["torchrun", "slurm", "jobset", "pytorchjob"]


def _mapping(value: Any) -> Any:
    """Return a mapping that comes as text as what it says: JSON, or `tp=8,pp=4` of a command.

    Other values, and texts that are neither, are returned as given.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    pairs = [part.partition("=") for part in value.split(",")]
    if any(not equals or not key.strip() for key, equals, _ in pairs):
        return value
    return {key.strip(): json_value(text.strip()) for key, _, text in pairs}


def json_value(text: str) -> int | float | str | bool:
    """Return a value of the command line as JSON holds it.

    >>> [json_value(x) for x in ("8", "0.5", "true", "full:4")]
    [8, 0.5, True, 'full:4']
    """
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+(e[+-]?\d+)?", text):
        return float(text)
    return text


def _listed(value: Any) -> Any:
    """Return a list that comes as a text with commas as one."""
    return [x.strip() for x in value.split(",")] if isinstance(value, str) else value


def _joined(value: Any) -> Any:
    """Return names in a list as the text with commas that is meant."""
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _meaning(keyword: str) -> str:
    return SEARCH_FIELDS[keyword].meaning


_AXIS_NAMES = {"propertyNames": {"enum": [*AXES, "devices"]}}

Document = Annotated[
    str | dict[str, Any],
    Field(union_mode="left_to_right"),
]
Model = Annotated[
    Document,
    Field(
        description=(
            "The training job: an example by name (llama3-8b, llama3-70b, mixtral-8x7b,"
            " deepseek-v3, ...), the text or mapping of a model file or of a Hugging Face"
            " config.json, or over stdio the path of such a file."
        ),
        examples=["llama3-70b", "config.json"],
    ),
]
Cluster = Annotated[
    Document,
    Field(
        description=(
            "The hardware: an example by name (h100-x8, h100-x512, ...), words such as 64xh100 or"
            " 4x8xa100-80gb, the text of a cluster file or of a dump of Slurm, Kubernetes or"
            " nvidia-smi, or over stdio the path of such a file."
        ),
        examples=["64xh100", "h100-x512", "4x4090"],
    ),
]
Pins = Annotated[
    dict[str, FieldValue],
    BeforeValidator(_mapping),
    Field(
        description=(
            "Axes that are fixed. tp, pp, dp, cp, ep: degrees of tensor, pipeline, data, context"
            " and expert parallelism; mbs: micro-batch, sequences; zero: 0 to 3; recompute: none,"
            " selective, full; recompute_layers: how many of a stage; precision: bf16,"
            " fp8-tensorwise, ...; devices."
        ),
        examples=[{"tp": 8, "pp": 4}, {"zero": 3, "recompute": "full"}],
        json_schema_extra=_AXIS_NAMES,
    ),
]
Only = Annotated[
    dict[str, list[FieldValue]],
    BeforeValidator(_mapping),
    Field(description=_meaning("only"), examples=[{"tp": [4, 8]}]),
]
Largest = Annotated[
    dict[str, int],
    BeforeValidator(_mapping),
    Field(description=_meaning("at_most"), examples=[{"pp": 16}]),
]
Changes = Annotated[
    dict[str, FieldValue],
    BeforeValidator(_mapping),
    Field(
        description=(
            "Fields of model or cluster to change, by path: what-if questions. Sizes and speeds"
            " are texts with units."
        ),
        examples=[
            {"pools.0.nodes": 16},
            {"pools.0.nic_speed": "25 GB/s"},
            {"pools.0.price_per_hour": 2.5},
            {"training.seq_len": 16384},
        ],
    ),
]
Framework = Annotated[
    str,
    Field(
        description=_meaning("framework"),
        examples=["megatron", "deepspeed", "torchtitan", "fsdp2", "any"],
    ),
]
PlanName = Annotated[
    str,
    Field(
        description=(
            "A plan of an earlier answer: its `ref`, which is RESULT_ID#RANK; `last#1` over stdio"
            " is the first plan of the last answer."
        ),
        examples=["73b6279bf1c4#1", "last#1"],
    ),
]


_AS_IN_SOLVE = "As in solve."
OtherModel = Annotated[Document, Field(description=_AS_IN_SOLVE)]
OtherCluster = Annotated[Document, Field(description=_AS_IN_SOLVE)]
OtherPins = Annotated[
    dict[str, FieldValue], BeforeValidator(_mapping), Field(description=_AS_IN_SOLVE)
]
OtherChanges = Annotated[
    dict[str, FieldValue], BeforeValidator(_mapping), Field(description=_AS_IN_SOLVE)
]
"""What `solve` describes in full: an agent reads the schemas of all tools."""


class Arguments(BaseModel):
    """Base of all arguments: unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Detailed(Arguments):
    """What every tool takes."""

    details: Details = Field(
        "short",
        description=("full: also the whole answer, as the command line's JSON, under `full`."),
    )


class Job(Detailed):
    """A training job on a cluster, and changes of both."""

    model: OtherModel
    cluster: OtherCluster
    set: OtherChanges = {}
    seq: int | None = Field(None, gt=0, description="Tokens of a sequence.", examples=[8192])
    batch: int | None = Field(None, gt=0, description="Sequences of a step, over all devices.")
    tokens: float | None = Field(
        None, gt=0, description="Tokens of the whole run: with them the answer has days and cost."
    )
    precision: str = Field("", description="Recipe of numbers.", examples=["bf16", "fp16"])
    task: Task = Field("", description="Fine-tuning in place of pretraining.")
    rank: int | None = Field(None, gt=0, description="Rank of the adapters of LoRA.")
    stack: str = Field("", description=_meaning("stack"))
    calibration: Document | None = Field(None, description=_meaning("calibration"))
    reference: Document | None = Field(None, description=_meaning("reference"))


class Searched(Job):
    """A job whose layouts are searched."""

    pins: OtherPins = {}
    only: Only = {}
    max: Largest = {}
    framework: Framework = ""


class SolveArguments(Searched):
    """Arguments of `solve`."""

    model: Model
    cluster: Cluster
    set: Changes = {}
    pins: Pins = {}
    allow: list[str] = Field([], description=_meaning("allow"))
    pool: str = Field("", description=_meaning("pool"))
    pools: str = Field("", description=_meaning("pools"))
    objective: Objective = Field("", description=_meaning("objective"))
    within: float = Field(0.0, ge=0, description=_meaning("within"))
    memory_margin: float | None = Field(None, description=_meaning("memory_margin"))
    deadline: str | float = Field("", description=_meaning("deadline"), examples=["30d", 12])
    budget: str | float = Field("", description=_meaning("budget"))
    step_limit_s: float = Field(0.0, ge=0, description=_meaning("step_limit_s"))
    pareto: list[str] = Field(
        [], description=_meaning("pareto"), examples=[["step_time", "memory"]]
    )
    top: int = Field(3, ge=1, description="Plans in the answer.")
    all_variants: bool = Field(False, description=_meaning("all_variants"))
    time_limit_s: float = Field(0.0, ge=0, description=_meaning("time_limit_s"))


class EvaluateArguments(Job):
    """Arguments of `evaluate`."""

    pins: OtherPins
    framework: Framework = "default"
    allow: list[str] = Field([], description=_meaning("allow"))
    pool: str = Field("", description=_meaning("pool"))


class ExplainArguments(Detailed):
    """Arguments of `explain`."""

    plan: PlanName
    term: str = Field(
        "",
        description="Open one term of step or memory down to its formula, numbers and source.",
        examples=["tp", "bubble", "activations", "dp"],
    )


class ChangesArguments(Detailed):
    """Arguments of `neighbours`."""

    plan: PlanName
    framework: Framework = "any"


class CompareArguments(Detailed):
    """Arguments of `compare`."""

    a: PlanName
    b: PlanName


class CheckArguments(Detailed):
    """Arguments of `check`."""

    run: str = Field(
        description=(
            "The text of a launch script or configuration: Megatron-LM, DeepSpeed JSON, torchtitan"
            " TOML, Accelerate, TRL, axolotl, LLaMA-Factory or ms-swift YAML; over stdio also the"
            " path of one."
        ),
    )
    name: str = Field(
        "",
        description="What the file is called, where `run` is its text: it tells some formats.",
        examples=["train.sh", "ds_config.json"],
    )
    cluster: OtherCluster
    model: Document | None = Field(None, description="Where the run does not say the model.")
    files: Annotated[dict[str, str], BeforeValidator(_mapping)] = Field(
        {}, description="Texts of the files that the run names, by name."
    )
    framework: str = Field("", description="Told from the file without it.")
    version: str = Field("", description="Release of the framework that the run uses.")
    env: Annotated[dict[str, str], BeforeValidator(_mapping)] = Field(
        {}, description="Variables that the shell of the run sets."
    )
    pins: OtherPins = {}
    set: OtherChanges = {}
    pool: str = Field("", description=_meaning("pool"))


class RecommendArguments(Searched):
    """Arguments of `recommend`."""

    question: Literal[
        "devices",
        "hardware",
        "size",
        "sequence",
        "micro-batch",
        "rank",
        "bandwidth",
        "layout",
    ] = Field(
        description=(
            "devices: the fewest on which the job fits. hardware: which of the cards named in"
            " `cluster` (4090,5090,h100, or any) does it, in what time, for what money. size,"
            " sequence, micro-batch, rank: the largest that fits. bandwidth: the least of each"
            " link at which its traffic hides. layout: the decision step by step."
        )
    )
    most: int = Field(0, ge=0, description="devices: most nodes to try (1024).")
    by: Literal["", "both", "width", "depth"] = Field("", description="size: what grows.")
    step: int = Field(0, ge=0, description="sequence: in multiples of these tokens (1024).")
    tolerance: float = Field(
        0.0, ge=0, description="bandwidth: wait that counts as hidden, per compute time (0.02)."
    )
    days: float = Field(0.0, ge=0, description="hardware: the run must end in so many days.")
    price: Annotated[dict[str, float], BeforeValidator(_mapping)] = Field(
        {},
        description="hardware: USD an hour of a device, by part.",
        examples=[{"4090": 0.4, "h100": 2.5}],
    )


class ScaleArguments(Searched):
    """Arguments of `scale`."""

    over: Literal["devices", "seq_len", "layers"] = Field("devices", description="What grows.")
    scaling: Literal["strong", "weak"] = Field(
        "strong", description="strong: tokens of a step stay; weak: they grow with the size."
    )
    from_: int = Field(0, ge=0, alias="from", description="Smallest size; 0: the first that fits.")
    to: int = Field(0, ge=0, description="Largest size; 0: the cluster's, or what fits.")
    points: int = Field(8, ge=2, description="Most sizes.")
    time_limit_s: float = Field(0.0, ge=0, description=_meaning("time_limit_s"))


class ReplanArguments(Detailed):
    """Arguments of `replan`."""

    plan: PlanName
    lost: int | str = Field(
        0,
        description="Nodes that are gone: a number, host names, or POOL=N.",
        examples=[1, "n[003,007]"],
    )
    gained: int | str = Field(0, description="Nodes that joined: a number, or POOL=N.")
    via: Literal["checkpoint", "network"] = Field("checkpoint", description="How state moves.")


class PlaceArguments(Detailed):
    """Arguments of `place`."""

    plan: PlanName
    hosts: str = Field("", description="Free hosts in network order.", examples=["n[001-016]"])


class TraceArguments(Detailed):
    """Arguments of `trace`."""

    plan: PlanName
    micro_batches: int = Field(0, ge=0, description="The first and last so many alone; 0: all.")


class EmitArguments(Detailed):
    """Arguments of `emit`."""

    plan: PlanName
    for_: Annotated[str, BeforeValidator(_joined)] = Field(
        "megatron",
        alias="for",
        description=(
            "megatron, deepspeed, torchtitan, fsdp2, bridge, or a tool that fine-tunes: trl,"
            " axolotl, llama-factory, ms-swift; several with commas."
        ),
    )
    launcher: Annotated[list[Launcher], BeforeValidator(_listed)] = Field(
        ["torchrun"], description="What starts it."
    )
    hosts: str = Field("", description="Hosts in network order.", examples=["n[001-016]"])


class CatalogArguments(Detailed):
    """Arguments of `catalog`."""

    name: str = Field(
        "",
        description="An accelerator, a link, a server or a cloud machine; all names without it.",
        examples=["h100", "ib-ndr-400", "p5.48xlarge"],
    )


class RuleArguments(Detailed):
    """Arguments of `rule`."""

    code: str = Field("", description="All codes without it.", examples=["MEM001"])
    find: str = Field(
        "",
        description="Without a code: rules with this in the title.",
        examples=["expert"],
    )


class LearnArguments(Detailed):
    """Arguments of `learn`."""

    name: str = Field("", description="A calculator; all are listed without it.")
    inputs: Annotated[dict[str, FieldValue], BeforeValidator(_mapping)] = Field(
        {},
        description="Inputs that differ from its own: numbers in base units, or texts with units.",
        examples=[{"stages": 8, "micro_batches": 32}, {"params": 7.5e9, "ranks": 64}],
    )


class DescribeArguments(Detailed):
    """Arguments of `check_spec`."""

    document: Document = Field(
        description="A model or a cluster, as in solve.", examples=["llama3-70b", "h100-x512"]
    )
