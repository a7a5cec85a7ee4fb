"""Options of commands as records: typer reads their fields, `planner --server` fills them too.

The fields stand in the order of the help. Heavy modules are imported where a request is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import typer

from planner.cli.arguments import overrides_of, positive
from planner.cli.options import (
    TARGETS,
    Allow,
    AllVariants,
    AsType,
    Batch,
    Budget,
    Cache,
    CalibrationFile,
    Columns,
    Deadline,
    Format,
    Framework,
    Launcher,
    Max,
    MemoryMargin,
    Objective,
    Only,
    Pareto,
    Pin,
    PoolName,
    PoolsMode,
    Precision,
    Rank,
    Reference,
    SeqLen,
    SetOption,
    Stack,
    StepLimit,
    TableOrJson,
    Task,
    TimeLimit,
    Tokens,
    Top,
    Verbose,
    Within,
)
from planner.cli.signatures import record_of
from planner.option_names import JOB_FIELDS

if TYPE_CHECKING:
    from planner.solver.request import SolveRequest


@dataclass(frozen=True)
class JobArguments:
    """The options of `JOB_FIELDS`."""

    task: Task = ""
    rank: Rank = ""
    seq: SeqLen = ""
    batch: Batch = ""
    tokens: Tokens = ""
    precision: Precision = ""

    def shorthands(self) -> dict[str, str]:
        """Return values by the path that `--set` has for them, empty where they are not given."""
        return {path: str(getattr(self, name)) for name, path in JOB_FIELDS.items()}


class SearchArguments:
    """Options that make a `SolveRequest`; a command has some, the others are as here."""

    pin: Sequence[str] = ()
    only: Sequence[str] = ()
    max_: Sequence[str] = ()
    allow: Sequence[str] = ()
    set_: Sequence[str] = ()
    as_: str = ""
    job: JobArguments = JobArguments()
    top: int | None = None
    all_variants: bool = False
    framework: str = ""
    stack: str = ""
    pool: str = ""
    pools: str = ""
    objective: str = ""
    deadline: str = ""
    budget: str = ""
    step_limit: float | None = None
    within: float | None = None
    memory_margin: float | None = None
    pareto: str = ""
    time_limit: float | None = None
    calibration: str = ""
    reference: str = ""
    TIME_LIMIT: ClassVar = "60"
    """A limit that a message gives as an example, seconds."""

    @classmethod
    def of_params(cls, params: Mapping[str, Any]) -> Self:
        """Return the record of a command's parameters, as typer names them."""
        return record_of(cls, params)

    def shorthands(self) -> list[str]:
        """Return the options that stand for a `--set` each, as such."""
        values = {"model.as": self.as_, **self.job.shorthands()}
        return [f"{path}={value}" for path, value in values.items() if value]

    def request(self) -> "SolveRequest":
        """Return what is searched for; `UsageError` for a bad option."""
        from planner.solver.options import axis_items
        from planner.solver.request import SolveRequest

        return SolveRequest.of(
            overrides=overrides_of([*self.set_, *self.shorthands()]),
            time_limit_s=positive(self.time_limit, "--time-limit", self.TIME_LIMIT),
            step_limit_s=positive(self.step_limit, "--step-limit", "12.5"),
            within=positive(self.within, "--within", "1.05"),
            memory_margin=self.memory_margin,
            pins=axis_items(self.pin, "--pin"),
            only=axis_items(self.only, "--only"),
            at_most=axis_items(self.max_, "--max"),
            allow=tuple(self.allow),
            top=self.top,
            all_variants=self.all_variants,
            framework=self.framework,
            stack=self.stack,
            pool=self.pool,
            pools=self.pools,
            objective=self.objective,
            deadline=self.deadline,
            budget=self.budget,
            pareto=self.pareto,
            calibration=self.calibration,
            reference=self.reference,
        )


@dataclass(frozen=True)
class SolveArguments(SearchArguments):
    """Options of `planner solve`."""

    TIME_LIMIT = "2.5"
    pin: Pin = field(default_factory=list)
    only: Only = field(default_factory=list)
    max_: Max = field(default_factory=list)
    allow: Allow = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    as_: AsType = ""
    job: JobArguments = JobArguments()
    top: Top = None
    all_variants: AllVariants = False
    framework: Framework = ""
    stack: Stack = ""
    pool: PoolName = ""
    pools: PoolsMode = ""
    objective: Objective = ""
    deadline: Deadline = ""
    budget: Budget = ""
    step_limit: StepLimit = None
    within: Within = None
    memory_margin: MemoryMargin = None
    pareto: Pareto = ""
    form: Format = "table"
    columns: Columns = ""
    verbose: Verbose = False
    emit: Annotated[
        str,
        typer.Option(
            help=f"Write files: {TARGETS}; with commas. One alone is the --framework too."
        ),
    ] = ""
    out: Annotated[str, typer.Option(help="Folder for the written configurations.")] = ""
    launcher: Launcher = "torchrun"
    executor: Annotated[
        str, typer.Option(help="automatic, serial, processes or ray: same answer.")
    ] = "automatic"
    ray_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A running Ray cluster, for large work.")
    ] = ""
    time_limit: TimeLimit = None
    cache: Cache = True
    calibration: CalibrationFile = ""
    reference: Reference = ""


@dataclass(frozen=True)
class EvaluateArguments(SearchArguments):
    """Options of `planner evaluate`."""

    pin: Pin = field(default_factory=list)
    allow: Allow = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    job: JobArguments = JobArguments()
    framework: Framework = "default"
    stack: Stack = ""
    pool: PoolName = ""
    form: Format = "table"
    verbose: Verbose = False
    cache: Cache = True
    calibration: CalibrationFile = ""
    reference: Reference = ""


@dataclass(frozen=True)
class CheckArguments:
    """Options of `planner check`."""

    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Model file, where FILE does not say the model.")
    ] = ""
    framework: Annotated[
        str, typer.Option(help="megatron, megatron@0.17, deepspeed, ...; told from FILE.")
    ] = ""
    version: Annotated[
        str, typer.Option("--version", help="Release of the framework that the run uses.")
    ] = ""
    env: Annotated[
        list[str],
        typer.Option("--env", metavar="NAME=VALUE", help="A variable that your shell sets."),
    ] = field(default_factory=list)
    pin: Annotated[
        list[str],
        typer.Option("--pin", metavar="AXIS=V,...", help="What FILE cannot say: pp=4,mbs=2."),
    ] = field(default_factory=list)
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a setting of FILE, or a field of the model or cluster.",
        ),
    ] = field(default_factory=list)
    pool: PoolName = ""
    form: TableOrJson = "table"
    calibration: CalibrationFile = ""


@dataclass(frozen=True)
class TrialArguments(SearchArguments):
    """Options of `planner trial`."""

    pin: Pin = field(default_factory=list)
    only: Only = field(default_factory=list)
    max_: Max = field(default_factory=list)
    allow: Allow = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    framework: Annotated[
        str, typer.Option(help="megatron, deepspeed, torchtitan, fsdp2 or bridge; megatron.")
    ] = ""
    stack: Stack = ""
    pool: PoolName = ""
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of a run (25).")] = None
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for the short runs.")] = ""
    launcher: Launcher = ""
    read: Annotated[
        str, typer.Option("--read", metavar="DIR", help="Read the logs in such a folder.")
    ] = ""
    log: Annotated[
        list[str], typer.Option("--log", metavar="PLAN=FILE", help="With --read: a log elsewhere.")
    ] = field(default_factory=list)
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop the search after S seconds.", show_default=False),
    ] = None
    form: TableOrJson = "table"
    calibration: CalibrationFile = ""
    reference: Reference = ""


@dataclass(frozen=True)
class RecommendArguments(SearchArguments):
    """Options of `planner recommend`."""

    pin: Pin = field(default_factory=list)
    only: Only = field(default_factory=list)
    max_: Max = field(default_factory=list)
    allow: Allow = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    job: JobArguments = JobArguments()
    framework: Framework = ""
    stack: Stack = ""
    most_nodes: Annotated[
        int | None,
        typer.Option("--most", metavar="NODES", help="devices: most nodes to try (1024)."),
    ] = None
    by: Annotated[str, typer.Option(help="size: grow both (the default), width or depth.")] = ""
    step: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="sequence: in multiples of these (1024).")
    ] = None
    tolerance: Annotated[
        float, typer.Option(help="bandwidth: wait that counts as hidden, per compute time (0.02).")
    ] = 0.0
    days: Annotated[
        float, typer.Option(metavar="D", help="hardware: the run must end in D days.")
    ] = 0.0
    price: Annotated[
        list[str],
        typer.Option(metavar="PART=USD", help="hardware: USD an hour of a device: 4090=0.4."),
    ] = field(default_factory=list)
    form: TableOrJson = "table"
    calibration: CalibrationFile = ""
    reference: Reference = ""


@dataclass(frozen=True)
class ScaleArguments(SearchArguments):
    """Options of `planner scale`."""

    scaling: Annotated[
        str,
        typer.Option(help="strong: the tokens of a step stay; weak: they grow with the size."),
    ] = "strong"
    over: Annotated[str, typer.Option(help="devices, seq_len or layers.")] = "devices"
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="N",
            help="Smallest size; the first that fits, or the file's own.",
            show_default=False,
        ),
    ] = None
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="N",
            help="Largest size, also beyond the cluster; the cluster's, or what fits.",
            show_default=False,
        ),
    ] = None
    points: Annotated[int, typer.Option(metavar="N", help="Most numbers of devices.")] = 16
    pin: Pin = field(default_factory=list)
    only: Only = field(default_factory=list)
    max_: Max = field(default_factory=list)
    allow: Allow = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    framework: Framework = ""
    stack: Stack = ""
    pool: PoolName = ""
    form: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table"
    html: Annotated[
        str, typer.Option("--html", metavar="FILE", help="Write it as a page with figures, too.")
    ] = ""
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", metavar="S", help="Stop after these seconds.", show_default=False
        ),
    ] = None
    calibration: CalibrationFile = ""
    reference: Reference = ""


@dataclass(frozen=True)
class SweepArguments(SearchArguments):
    """Options of `planner sweep`."""

    vary: Annotated[
        list[str],
        typer.Option(
            metavar="PATH=VALUES",
            help="Vary a field: pools.0.nodes=32,64 or 32..512*2, +64; continuous 80GiB..320GiB.",
        ),
    ] = field(default_factory=list)
    design: Annotated[
        str, typer.Option(help="grid (every combination) or latin (a Latin hypercube).")
    ] = ""
    samples: Annotated[
        int | None, typer.Option(metavar="N", help="Points of --design latin.", show_default=False)
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of --design latin (0).", show_default=False)
    ] = None
    where: Annotated[
        list[str],
        typer.Option(
            metavar="EXPRESSION",
            help="Keep points where it holds: 'pools.0.accelerator.power * n_devices <= 20 MW'.",
        ),
    ] = field(default_factory=list)
    let: Annotated[
        list[str], typer.Option(metavar="NAME=EXPRESSION", help="A further column.")
    ] = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    pin: Pin = field(default_factory=list)
    only: Only = field(default_factory=list)
    max_: Max = field(default_factory=list)
    framework: Framework = ""
    stack: Stack = ""
    pool: PoolName = ""
    pools: PoolsMode = ""
    objective: Objective = ""
    deadline: Deadline = ""
    budget: Budget = ""
    step_limit: StepLimit = None
    within: Within = None
    memory_margin: MemoryMargin = None
    calibration: CalibrationFile = ""
    reference: Reference = ""
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="File of rows: NAME.parquet.")
    ] = ""
    form: Annotated[
        str, typer.Option("--format", help="parquet, csv or jsonl; by the ending of FILE.")
    ] = ""
    executor: Annotated[
        str, typer.Option(help="automatic, serial, processes or ray: same rows.")
    ] = "automatic"
    ray_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A running Ray cluster.")
    ] = ""
    point_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Longest search of a point (600).", show_default=False),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the points and estimate the time only.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False


@dataclass(frozen=True)
class ReplanArguments:
    """Options of `planner replan`."""

    lost: Annotated[
        str,
        typer.Option(metavar="N|HOSTS", help="Nodes that are gone: a number, n[003,007], old=1."),
    ] = ""
    gained: Annotated[
        str, typer.Option(metavar="N", help="Nodes that joined: a number, or old=2.")
    ] = ""
    via: Annotated[
        str, typer.Option(help="How the state moves: checkpoint, or network where software can.")
    ] = "checkpoint"
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop the search after S seconds.", show_default=False),
    ] = None
    form: TableOrJson = "table"
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep the new plans for last#...")
    ] = True


@dataclass(frozen=True, slots=True)
class ImportArguments:
    """Options of `planner import cluster`."""

    accelerator: Annotated[
        list[str],
        typer.Option(metavar="TYPE=NAME", help="What a type is: a100=a100-sxm-80gb, t4=none."),
    ] = field(default_factory=list)
    nic: Annotated[str, typer.Option(metavar="NAME", help="Network port: ib-ndr-400.")] = ""
    nics: Annotated[int, typer.Option(metavar="N", help="Ports of a node for training.")] = 0
    devices: Annotated[
        int, typer.Option(metavar="N", help="Devices of a node, where a dump shows one job.")
    ] = 0
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm partition only.")
    ] = None
    nodes: Annotated[
        str | None, typer.Option(metavar="HOSTLIST", help="These nodes only: n[001-016].")
    ] = None
    selector: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Kubernetes nodes with this label only.")
    ] = field(default_factory=list)
    tolerate: Annotated[
        list[str], typer.Option(metavar="KEY[=VALUE]", help="Taint that the job tolerates.")
    ] = field(default_factory=list)
    all_: Annotated[
        bool, typer.Option("--all", help="All healthy nodes, whatever is in use now.")
    ] = False
    partial: Annotated[
        bool, typer.Option("--partial", help="Use nodes in part where that uses more devices.")
    ] = False
    most_nodes: Annotated[
        int,
        typer.Option(
            "--most", metavar="NODES", help="Use at most so many, the first in the network."
        ),
    ] = 0
    name: Annotated[str, typer.Option(help="Name of the cluster.")] = ""
    out: Annotated[
        str, typer.Option(metavar="FILE", help="File to write; without it, standard output.")
    ] = ""


@dataclass(frozen=True, slots=True)
class CalibrateArguments:
    """Options of `planner calibrate`."""

    nccl_tests: Annotated[
        list[str],
        typer.Option(
            "--nccl-tests", metavar="LOG...", help="Fit links to what all_reduce_perf, ... print."
        ),
    ] = field(default_factory=list)
    measured: Annotated[
        list[str],
        typer.Option(
            "--measured", metavar="FILE", help="Fit rates to what the script of `measure` wrote."
        ),
    ] = field(default_factory=list)
    cluster: Annotated[
        str,
        typer.Option(
            metavar="CLUSTER", help="Where benchmarks ran; without it told from the devices."
        ),
    ] = ""
    pool: PoolName = ""
    link: Annotated[
        str, typer.Option(metavar="NAME", help="Network of benchmarks, without a cluster file.")
    ] = ""
    models: Annotated[str, typer.Option(help="Models by the names in RUNS.csv.")] = ""
    hardware: Annotated[str, typer.Option(help="Hardware by the names in RUNS.csv.")] = ""
    fit: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Numbers to fit, or beginnings: generation,stack.nanotron; all without it.",
        ),
    ] = ""
    start: Annotated[
        str,
        typer.Option("--from", metavar="FILE", help="Calibration that the fit begins at."),
    ] = ""
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Calibration file to write.")
    ] = ""
    name: Annotated[str, typer.Option(help="Name of the calibration; the file's without it.")] = ""
    cross_validate: Annotated[
        bool,
        typer.Option(
            "--cross-validate/--no-cross-validate", help="Also fit without each family and model."
        ),
    ] = True
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes to fit with (1); the answer is the same."),
    ] = None
    list_: Annotated[
        bool, typer.Option("--list", help="List every number with its range and meaning.")
    ] = False
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            metavar="RUN.yaml",
            help="Anchor on one to three measured steps instead.",
        ),
    ] = ""
    form: Annotated[
        str, typer.Option("--format", help="table or json; of benchmarks also full, every size.")
    ] = "table"

    def options_of_fit(self) -> dict[str, str]:
        """Return what says how runs are fitted, by option; empty where it is not given."""
        return {
            "--processes": "" if self.processes is None else str(self.processes),
            "--no-cross-validate": "" if self.cross_validate else "off",
        }

    def options_of_benchmarks(self) -> dict[str, str]:
        """Return what says where benchmarks ran, by option; empty where it is not given."""
        return {"--cluster": self.cluster, "--pool": self.pool, "--link": self.link}


@dataclass(frozen=True, slots=True)
class ValidateArguments:
    """Options of `planner validate`."""

    models: Annotated[str, typer.Option(help="Models by the names in POINTS.csv.")] = ""
    hardware: Annotated[str, typer.Option(help="Hardware by the names in POINTS.csv.")] = ""
    form: Annotated[
        str, typer.Option("--format", help="table or json; with --recipes also md.")
    ] = "table"
    by: Annotated[
        str, typer.Option(help="source, sweep or row; or search, each sweep searched (minutes).")
    ] = "source"
    calibration: CalibrationFile = ""
    recipes: Annotated[
        bool,
        typer.Option(
            "--recipes",
            help="The file holds recipes, those that ship without one: price and search each"
            " (a minute).",
        ),
    ] = False
