"""The command line: parses options, calls the library, prints, returns exit codes.

Heavy modules are imported inside the commands, so that `planner --help` stays instant.
"""

import sys
from typing import Annotated, NoReturn

import typer

from planner.errors import PlannerError

app = typer.Typer(
    name="planner",
    help="Finds the fastest way to split an LLM training job over a cluster, and explains it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
catalog_app = typer.Typer(
    help="Accelerators, links and platforms, each figure with its source and date.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(catalog_app, name="catalog")
import_app = typer.Typer(
    help="Write a model or cluster file from what another tool wrote.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(import_app, name="import")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model file, a Hugging Face config.json, Megatron-LM arguments, or the name of an"
        " example: llama3-70b.",
    ),
]
ClusterArg = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help="Cluster file, a dump of Slurm, Kubernetes or a node, or the name of an example:"
        " h100-x512.",
    ),
]
PlanArg = Annotated[
    str, typer.Argument(metavar="PLAN", help="RESULT.json#RANK_OR_ID, or last#RANK_OR_ID.")
]
Pin = Annotated[
    list[str],
    typer.Option(
        "--pin",
        metavar="AXIS=V,...",
        help="Fix axes: tp=8,pp=4,devices=512; a wrong one lists them all.",
    ),
]
Only = Annotated[
    list[str], typer.Option("--only", metavar="AXIS=A,B", help="Allowed values: tp=4,8.")
]
Max = Annotated[list[str], typer.Option("--max", metavar="AXIS=N", help="Largest values: pp=16.")]
Allow = Annotated[
    list[str],
    typer.Option("--allow", help="tp-across-domains: accepted, always on; --max tp=8 closes it."),
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field: pools.0.nodes=16."),
]
Framework = Annotated[
    str, typer.Option(help="default, megatron, deepspeed, torchtitan, fsdp2, bridge, or any.")
]
Stack = Annotated[
    str, typer.Option(help="Software profile to price with; the framework's own by default.")
]
PoolName = Annotated[
    str, typer.Option("--pool", metavar="NAME", help="Plan for this pool of the cluster only.")
]
Hosts = Annotated[
    str | None,
    typer.Option(
        "--hosts", metavar="LIST|FILE", help="Hosts in network order: n[001-016], or a file."
    ),
]
Launcher = Annotated[str, typer.Option(metavar="L,...", help="torchrun,slurm,jobset,pytorchjob.")]
Objective = Annotated[
    str,
    typer.Option(
        metavar="X", help="step_time, tokens_per_s, cost, energy, devices, memory or goodput."
    ),
]
Deadline = Annotated[
    str, typer.Option(metavar="TIME", help="Longest run, failures included: 30d, 36h.")
]
StepLimit = Annotated[
    float | None,
    typer.Option("--step-limit", metavar="S", help="Longest step, seconds.", show_default=False),
]
Within = Annotated[
    float | None,
    typer.Option(
        metavar="F",
        help="--objective memory: at most F times the fastest (1.05).",
        show_default=False,
    ),
]
Pareto = Annotated[
    str,
    typer.Option(
        metavar="X,Y[,Z]",
        help="The front of two or three objectives instead, such as step_time,memory.",
    ),
]
Format = Annotated[str, typer.Option("--format", help="table, json, csv or md.")]
CalibrationFile = Annotated[
    str,
    typer.Option(
        "--calibration", metavar="FILE", help="Numbers to price with; those that ship without it."
    ),
]
Reference = Annotated[
    str,
    typer.Option(
        "--reference", metavar="RUN.yaml", help="One to three measured steps that set the scale."
    ),
]


def _overrides(items: list[str]) -> tuple[tuple[str, object], ...]:
    from planner.errors import UsageError

    found: list[tuple[str, object]] = []
    for item in items:
        path, equals, value = item.partition("=")
        if not equals or not path:
            raise UsageError(
                f"--set: {item!r} is not of the form PATH=VALUE", "--set pools.0.nodes=16"
            )
        found.append((path.strip(), value.strip()))
    return tuple(found)


def _positive(value: float | None, option: str, example: str) -> float:
    """Return a limit, 0 for none; `UsageError` where 0 or less is given."""
    from planner.errors import UsageError

    if value is not None and not 0 < value < float("inf"):
        raise UsageError(
            f"{option} must be a number above 0, not {value:g}",
            f"{option} {example}, or leave it out for no limit",
        )
    return value or 0.0


def _size(value: int | None, option: str) -> int:
    """Return a size, 0 for none; `UsageError` where less than 1 is given."""
    from planner.errors import UsageError

    if value is not None and value < 1:
        raise UsageError(f"{option} must be at least 1, not {value}", f"for example {option} 64")
    return value or 0


@app.command()
def solve(
    model: Model,
    cluster: ClusterArg,
    pin: Pin = [],
    only: Only = [],
    max_: Max = [],
    allow: Allow = [],
    set_: SetOption = [],
    top: Annotated[int | None, typer.Option(help="Plans to show (10).")] = None,
    framework: Framework = "",
    stack: Stack = "",
    pool: PoolName = "",
    objective: Objective = "",
    deadline: Deadline = "",
    step_limit: StepLimit = None,
    within: Within = None,
    pareto: Pareto = "",
    form: Format = "table",
    emit: Annotated[
        str,
        typer.Option(
            help="Write files: megatron, deepspeed, torchtitan, fsdp2, bridge; with commas."
        ),
    ] = "",
    out: Annotated[str, typer.Option(help="Folder for the written configurations.")] = "",
    launcher: Launcher = "torchrun",
    executor: Annotated[
        str, typer.Option(help="automatic, serial, processes or ray: same answer.")
    ] = "automatic",
    ray_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A running Ray cluster, for large work.")
    ] = "",
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop after S seconds, best so far.", show_default=False),
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep the result for last#...")
    ] = True,
    calibration: CalibrationFile = "",
    reference: Reference = "",
) -> None:
    """Rank the layouts of a training job on a cluster."""
    from planner.commands import run_solve

    raise typer.Exit(
        run_solve(
            model, cluster, pin=pin, only=only, at_most=max_, allow=allow,
            overrides=_overrides(set_), top=top, framework=framework, stack=stack, pool=pool,
            objective=objective, deadline=deadline,
            step_limit_s=_positive(step_limit, "--step-limit", "12.5"),
            within=_positive(within, "--within", "1.05"), pareto=pareto, form=form, emit=emit,
            out=out, launcher=launcher, executor=executor, ray_address=ray_address,
            time_limit_s=_positive(time_limit, "--time-limit", "2.5"), cache=cache,
            calibration=calibration, reference=reference,
        )
    )  # fmt: skip


@app.command()
def evaluate(
    model: Model,
    cluster: ClusterArg,
    pin: Pin = [],
    allow: Allow = [],
    set_: SetOption = [],
    framework: Framework = "default",
    stack: Stack = "",
    pool: PoolName = "",
    form: Format = "table",
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep the result for last#...")
    ] = True,
    calibration: CalibrationFile = "",
    reference: Reference = "",
) -> None:
    """Price one layout, given with --pin, whether or not it fits."""
    from planner.commands import run_evaluate

    raise typer.Exit(
        run_evaluate(
            model, cluster, pin=pin, allow=allow, overrides=_overrides(set_), framework=framework,
            stack=stack, pool=pool, form=form, cache=cache, calibration=calibration,
            reference=reference,
        )
    )  # fmt: skip


@app.command()
def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Launch script, DeepSpeed JSON, torchtitan TOML or recipe, Accelerate YAML.",
        ),
    ],
    cluster: ClusterArg,
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Model file, where FILE does not say the model.")
    ] = "",
    framework: Annotated[
        str, typer.Option(help="megatron, deepspeed, torchtitan, fsdp2; told from FILE.")
    ] = "",
    version: Annotated[
        str, typer.Option("--version", help="Release of the framework that the run uses.")
    ] = "",
    env: Annotated[
        list[str],
        typer.Option("--env", metavar="NAME=VALUE", help="A variable that your shell sets."),
    ] = [],
    pin: Annotated[
        list[str],
        typer.Option("--pin", metavar="AXIS=V,...", help="What FILE cannot say: pp=4,mbs=2."),
    ] = [],
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a setting of FILE, or a field of the model or cluster.",
        ),
    ] = [],
    pool: PoolName = "",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    calibration: CalibrationFile = "",
) -> None:
    """Judge an existing run: refusals, memory, step time, place among plans, best changes."""
    from planner.commands import run_check

    raise typer.Exit(
        run_check(
            file, cluster, model=model, framework=framework, version=version, env=env, pin=pin,
            overrides=_overrides(set_), pool=pool, form=form, calibration=calibration,
        )
    )  # fmt: skip


@app.command()
def trial(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="As in solve.")] = "",
    cluster: Annotated[str, typer.Argument(metavar="[CLUSTER]", help="As in solve.")] = "",
    pin: Pin = [],
    only: Only = [],
    max_: Max = [],
    allow: Allow = [],
    set_: SetOption = [],
    framework: Annotated[
        str, typer.Option(help="megatron, deepspeed, torchtitan, fsdp2 or bridge; megatron.")
    ] = "",
    stack: Stack = "",
    pool: PoolName = "",
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of a run (25).")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for the short runs.")] = "",
    launcher: Launcher = "",
    read: Annotated[
        str, typer.Option("--read", metavar="DIR", help="Read the logs in such a folder.")
    ] = "",
    log: Annotated[
        list[str], typer.Option("--log", metavar="PLAN=FILE", help="With --read: a log elsewhere.")
    ] = [],
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop the search after S seconds.", show_default=False),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    calibration: CalibrationFile = "",
    reference: Reference = "",
) -> None:
    """Write short runs of the three plans that most likely hold the best; read their logs."""
    from planner.trial.commands import run_trial, run_trial_read
    from planner.trial.scripts import STEPS

    if read:
        given = {
            "MODEL": model, "CLUSTER": cluster, "--pin": pin, "--only": only, "--max": max_,
            "--set": set_, "--framework": framework, "--stack": stack, "--pool": pool,
            "--out": out, "--calibration": calibration, "--reference": reference,
            "--allow": allow, "--steps": steps is not None, "--launcher": launcher,
            "--time-limit": time_limit is not None,
        }  # fmt: skip
        raise typer.Exit(run_trial_read(read, log, form, given))
    raise typer.Exit(
        run_trial(
            model, cluster, pin=pin, only=only, at_most=max_, allow=allow,
            overrides=_overrides(set_), framework=framework, stack=stack, pool=pool,
            steps=STEPS if steps is None else steps, out=out, launcher=launcher or "torchrun",
            log=log, time_limit_s=_positive(time_limit, "--time-limit", "60"), form=form,
            calibration=calibration, reference=reference, words=sys.argv[1:],
        )
    )  # fmt: skip


@app.command()
def recommend(
    question: Annotated[
        str,
        typer.Argument(
            metavar="QUESTION", help="devices, size, sequence, micro-batch or bandwidth."
        ),
    ],
    model: Model,
    cluster: ClusterArg,
    pin: Pin = [],
    only: Only = [],
    max_: Max = [],
    allow: Allow = [],
    set_: SetOption = [],
    framework: Framework = "default",
    stack: Stack = "",
    most: Annotated[
        int, typer.Option(metavar="NODES", help="devices: most nodes to try (1024).")
    ] = 0,
    by: Annotated[str, typer.Option(help="size: grow both (the default), width or depth.")] = "",
    step: Annotated[
        int, typer.Option(metavar="TOKENS", help="sequence: in multiples of these (1024).")
    ] = 0,
    tolerance: Annotated[
        float, typer.Option(help="bandwidth: wait that counts as hidden, per compute time (0.02).")
    ] = 0.0,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    calibration: CalibrationFile = "",
    reference: Reference = "",
) -> None:
    """Answer the inverse questions: what a job needs, the most that a cluster takes."""
    from planner.commands import run_recommend

    raise typer.Exit(
        run_recommend(
            question, model, cluster, pin=pin, only=only, at_most=max_, allow=allow,
            overrides=_overrides(set_), framework=framework, stack=stack, most=most, by=by,
            step=step, tolerance=tolerance, form=form, calibration=calibration,
            reference=reference,
        )
    )  # fmt: skip


@app.command()
def show(
    plan: PlanArg, form: Annotated[str, typer.Option("--format", help="table or json.")] = "table"
) -> None:
    """Show one plan of a saved result in full: time, memory by stage, traffic."""
    from planner.commands import run_show

    run_show(plan, form)


@app.command()
def explain(
    plan: PlanArg,
    term: Annotated[
        str, typer.Option(help="Open one term: its formula, numbers and source.")
    ] = "",
) -> None:
    """Explain one plan in words and as a tree, or one term down to its formula."""
    from planner.commands import run_explain

    run_explain(plan, term)


@app.command()
def trace(
    plan: PlanArg,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="File to write; - is stdout.")
    ] = "step.json",
    micro_batches: Annotated[
        int | None,
        typer.Option(metavar="N", help="Draw the first and last N of them; all without it."),
    ] = None,
) -> None:
    """Write one step of a plan as a timeline for Perfetto or chrome://tracing."""
    from planner.looking import run_trace

    run_trace(plan, out, int(_positive(micro_batches, "--micro-batches", "4")))


@app.command()
def scale(
    model: Model,
    cluster: ClusterArg,
    scaling: Annotated[
        str,
        typer.Option(help="strong: the tokens of a step stay; weak: they grow with the size."),
    ] = "strong",
    over: Annotated[str, typer.Option(help="devices, seq_len or layers.")] = "devices",
    from_: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="N",
            help="Smallest size; the first that fits, or the file's own.",
            show_default=False,
        ),
    ] = None,
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="N",
            help="Largest size, also beyond the cluster; the cluster's, or what fits.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[int, typer.Option(metavar="N", help="Most numbers of devices.")] = 16,
    pin: Pin = [],
    only: Only = [],
    max_: Max = [],
    allow: Allow = [],
    set_: SetOption = [],
    framework: Framework = "",
    stack: Stack = "",
    pool: PoolName = "",
    form: Annotated[str, typer.Option("--format", help="table, json or csv.")] = "table",
    html: Annotated[
        str, typer.Option("--html", metavar="FILE", help="Write it as a page with figures, too.")
    ] = "",
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", metavar="S", help="Stop after these seconds.", show_default=False
        ),
    ] = None,
    calibration: CalibrationFile = "",
    reference: Reference = "",
) -> None:
    """The best plan at each number of devices, sequence length or depth; knee and break-even."""
    from planner.scaling.command import run_scale

    raise typer.Exit(
        run_scale(
            model, cluster, scaling=scaling, over=over, points=points,
            least=_size(from_, "--from"), most=_size(to, "--to"),
            pin=pin, only=only, at_most=max_, allow=tuple(allow), overrides=_overrides(set_),
            framework=framework, stack=stack, pool=pool, form=form, html=html,
            time_limit_s=_positive(time_limit, "--time-limit", "60"), calibration=calibration,
            reference=reference,
        )
    )  # fmt: skip


@app.command()
def sweep(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP.yaml | MODEL CLUSTER",
            help="A sweep file; or a model and a cluster as in solve, with --vary.",
        ),
    ],
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="PATH=VALUES",
            help="Vary a field: pools.0.nodes=32,64 or 32..512*2, +64; continuous 80GiB..320GiB.",
        ),
    ] = [],
    design: Annotated[
        str, typer.Option(help="grid (every combination) or latin (a Latin hypercube).")
    ] = "",
    samples: Annotated[
        int | None, typer.Option(metavar="N", help="Points of --design latin.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of --design latin (0).", show_default=False)
    ] = None,
    where: Annotated[
        list[str],
        typer.Option(
            metavar="EXPRESSION",
            help="Keep points where it holds: 'pools.0.accelerator.power * n_devices <= 20 MW'.",
        ),
    ] = [],
    let: Annotated[
        list[str], typer.Option(metavar="NAME=EXPRESSION", help="A further column.")
    ] = [],
    set_: SetOption = [],
    pin: Pin = [],
    only: Only = [],
    max_: Max = [],
    framework: Framework = "",
    stack: Stack = "",
    pool: PoolName = "",
    objective: Objective = "",
    deadline: Deadline = "",
    step_limit: StepLimit = None,
    within: Within = None,
    calibration: CalibrationFile = "",
    reference: Reference = "",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="File of rows: NAME.parquet.")
    ] = "",
    form: Annotated[
        str, typer.Option("--format", help="parquet, csv or jsonl; by the ending of FILE.")
    ] = "",
    executor: Annotated[
        str, typer.Option(help="automatic, serial, processes or ray: same rows.")
    ] = "automatic",
    ray_address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A running Ray cluster.")
    ] = "",
    point_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Longest search of a point (600).", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the points and estimate the time only.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Search every point of a sweep over hardware, model or job; goes on where it stopped."""
    from planner.sweeping.command import run_sweep_command

    raise typer.Exit(
        run_sweep_command(
            files, vary=vary, design=design, samples=samples, seed=seed, where=where, let=let,
            overrides=_overrides(set_), pin=pin, only=only, at_most=max_, framework=framework,
            stack=stack, pool=pool, objective=objective, deadline=deadline,
            step_limit_s=_positive(step_limit, "--step-limit", "12.5"),
            within=_positive(within, "--within", "1.05"), calibration=calibration,
            reference=reference, out=out, form=form, executor=executor, ray_address=ray_address,
            point_limit_s=_positive(point_limit, "--point-limit", "60"), dry_run=dry_run,
            quiet=quiet,
        )
    )  # fmt: skip


@app.command()
def compare(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE... PLAN",
            help="Traces of torch.profiler, one a rank (.json, .json.gz, or their folder), or a"
            " file of planner trace; then the plan, as in explain.",
        ),
    ],
    form: Annotated[str, typer.Option("--format", help="table, json or md.")] = "table",
    steps: Annotated[
        str, typer.Option(metavar="A-B", help="Numbers of ProfilerStep; all but the first.")
    ] = "",
    rank: Annotated[
        int | None, typer.Option(metavar="R", help="Global rank, where the trace does not say it.")
    ] = None,
) -> None:
    """Set a measured step beside a plan term by term, and say which term is off."""
    from planner.errors import UsageError
    from planner.looking import run_compare

    if len(traces) < 2:
        raise UsageError("compare needs a trace and a plan", "planner compare trace.json last#1")
    run_compare(traces[:-1], traces[-1], form, steps, rank)


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan, as in explain.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Say term by term why one plan beats another, and what would turn it round."""
    from planner.looking import run_diff

    run_diff(first, second, form)


@app.command()
def neighbours(
    plan: PlanArg,
    framework: Annotated[
        str, typer.Option(help="Leave out what megatron, deepspeed, ... does not run; any.")
    ] = "any",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show what each single change of a plan would do, or the rule that forbids it."""
    from planner.looking import run_neighbours

    run_neighbours(plan, framework, form)


@app.command()
def emit(
    plan: PlanArg,
    for_: Annotated[
        str,
        typer.Option("--for", help="megatron, deepspeed, torchtitan, fsdp2, bridge; with commas."),
    ] = "megatron",
    out: Annotated[
        str, typer.Option(help="Folder to write to; without it the files are printed.")
    ] = "",
    launcher: Launcher = "torchrun",
    hosts: Hosts = None,
) -> None:
    """Write the framework configuration that runs one plan, and the files that launch it."""
    from planner.commands import run_emit

    run_emit(plan, for_, out, launcher, hosts)


@app.command()
def place(
    plan: PlanArg,
    hosts: Hosts = None,
    out: Annotated[
        str, typer.Option(help="Folder for ranks.txt, hostfile, rank files of mpirun and Slurm.")
    ] = "",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show the process groups of a plan as ranks on hosts, and write rank files."""
    from planner.placing import run_place

    run_place(plan, hosts, out, form)


@app.command()
def validate(
    points: Annotated[
        str,
        typer.Argument(
            metavar="[POINTS.csv]", help="Measured runs; the shipped ones if left out."
        ),
    ] = "",
    models: Annotated[str, typer.Option(help="Models by the names in POINTS.csv.")] = "",
    hardware: Annotated[str, typer.Option(help="Hardware by the names in POINTS.csv.")] = "",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    by: Annotated[
        str, typer.Option(help="source, sweep or row; or search, each sweep searched (minutes).")
    ] = "source",
    calibration: CalibrationFile = "",
) -> None:
    """Compare predictions with measured training runs, source by source."""
    from planner.validation.report import run_validate

    raise typer.Exit(run_validate(points, models, hardware, form, by, calibration))


@app.command()
def measure(
    cluster: Annotated[
        str,
        typer.Argument(metavar="[CLUSTER]", help="Says how to start the script there."),
    ] = "",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Script to write; - is stdout.")
    ] = "measure.py",
    nodes: Annotated[
        int, typer.Option(min=0, help="Nodes to measure on (2, or 1).", show_default=False)
    ] = 0,
    pool: PoolName = "",
) -> None:
    """Write the script that times products, attention, memory and collectives on your machines."""
    from planner.measured.command import run_measure

    raise typer.Exit(run_measure(cluster, out, nodes, pool))


@app.command()
def calibrate(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUNS.csv | LOG...]",
            help="Measured runs, the shipped ones without; or more logs after --nccl-tests LOG.",
        ),
    ] = [],
    nccl_tests: Annotated[
        list[str],
        typer.Option(
            "--nccl-tests", metavar="LOG...", help="Fit links to what all_reduce_perf, ... print."
        ),
    ] = [],
    measured: Annotated[
        list[str],
        typer.Option(
            "--measured", metavar="FILE", help="Fit rates to what the script of `measure` wrote."
        ),
    ] = [],
    cluster: Annotated[
        str,
        typer.Option(
            metavar="CLUSTER", help="Where benchmarks ran; without it told from the devices."
        ),
    ] = "",
    pool: PoolName = "",
    link: Annotated[
        str, typer.Option(metavar="NAME", help="Network of benchmarks, without a cluster file.")
    ] = "",
    models: Annotated[str, typer.Option(help="Models by the names in RUNS.csv.")] = "",
    hardware: Annotated[str, typer.Option(help="Hardware by the names in RUNS.csv.")] = "",
    fit: Annotated[
        str,
        typer.Option(
            metavar="NAME,...",
            help="Numbers to fit, or beginnings: generation,stack.nanotron; all without it.",
        ),
    ] = "",
    start: Annotated[
        str,
        typer.Option("--from", metavar="FILE", help="Calibration that the fit begins at."),
    ] = "",
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Calibration file to write.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Name of the calibration; the file's without it.")
    ] = "",
    cross_validate: Annotated[
        bool,
        typer.Option(
            "--cross-validate/--no-cross-validate", help="Also fit without each family and model."
        ),
    ] = True,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes to fit with (1); the answer is the same."),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List every number with its range and meaning.")
    ] = False,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            metavar="RUN.yaml",
            help="Anchor on one to three measured steps instead.",
        ),
    ] = "",
    form: Annotated[
        str, typer.Option("--format", help="table or json; of benchmarks also full, every size.")
    ] = "table",
) -> None:
    """Fit the numbers behind every prediction to measured runs, or to benchmarks."""
    from planner.calibration.command import one_runs_file, run_calibrate, run_list

    if list_:
        raise typer.Exit(run_list(form))
    of_fit = {
        "--processes": "" if processes is None else str(processes),
        "--no-cross-validate": "" if cross_validate else "off",
    }
    if reference:
        from planner.calibration.reference import run_calibrate_reference

        others = {
            "[RUNS.csv]": " ".join(given), "--fit": fit, "--models": models,
            "--hardware": hardware, "--nccl-tests": " ".join(nccl_tests),
            "--measured": " ".join(measured), "--cluster": cluster, "--pool": pool, "--link": link,
            **of_fit,
        }  # fmt: skip
        raise typer.Exit(run_calibrate_reference(reference, start, out, name, form, others))
    if nccl_tests or measured:
        from planner.measured.command import run_calibrate_measured

        raise typer.Exit(
            run_calibrate_measured(
                nccl_tests, measured, given, cluster=cluster, pool=pool, link=link, start=start,
                out=out, name=name, form=form, only_runs={"--models": models,
                "--hardware": hardware, "--fit": fit, **of_fit},
            )
        )  # fmt: skip
    points = one_runs_file(given, {"--cluster": cluster, "--pool": pool, "--link": link})
    raise typer.Exit(
        run_calibrate(
            points, models=models, hardware=hardware, fit=fit, start=start, out=out, name=name,
            cross_validate=cross_validate, form=form,
            processes=1 if processes is None else processes,
        )
    )  # fmt: skip


@app.command()
def report(
    sweep_file: Annotated[
        str,
        typer.Argument(metavar="SWEEP_FILE", help="What planner sweep wrote, finished or not."),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="FILE", help="HTML file to write (report.html); - is stdout."
        ),
    ] = "",
    x: Annotated[
        str, typer.Option("--x", metavar="PATH", help="Axis of the maps: pools.0.nodes.")
    ] = "",
    y: Annotated[str, typer.Option("--y", metavar="PATH", help="The other one.")] = "",
    image: Annotated[
        str,
        typer.Option(
            "--image", metavar="png|svg", help="Write the figures to the folder --out instead."
        ),
    ] = "",
) -> None:
    """Write a sweep as one HTML file: the answer in words, figures with their data, all points."""
    from planner.reporting.command import run_report

    raise typer.Exit(run_report(sweep_file, out, x, y, image))


@app.command("check-spec")
def check_spec(file: Annotated[str, typer.Argument(help="A model or cluster file.")]) -> None:
    """Check a model or cluster file and say what it describes."""
    from planner.inputs import check_spec as summary

    sys.stdout.write(summary(file).rstrip("\n") + "\n")


@app.command()
def rule(
    code: Annotated[str, typer.Argument(help="A code such as TP002; all codes without it.")] = "",
) -> None:
    """Explain a rule that rejects layouts or settings of a framework, or list them all."""
    from planner.commands import run_rule

    run_rule(code)


@catalog_app.command("list")
def catalog_list() -> None:
    """List accelerators, links, servers and cloud machines."""
    from planner.catalog_text import listing

    sys.stdout.write(listing())


@catalog_app.command("show")
def catalog_show(
    name: Annotated[
        str, typer.Argument(help="An accelerator, a link, a server or a cloud machine.")
    ],
) -> None:
    """Show every figure of a part with its source and date, and its ridge points."""
    from planner.catalog_text import sheet

    sys.stdout.write(sheet(name))


@import_app.command("model")
def import_model(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A Hugging Face config.json, the folder with it, or Megatron-LM arguments.",
        ),
    ],
    out: Annotated[str, typer.Option(help="File to write; without it, standard output.")] = "",
    name: Annotated[str, typer.Option(help="Name of the model in tables and file names.")] = "",
    as_: Annotated[
        str, typer.Option("--as", metavar="TYPE", help="Read the layers as this model_type's.")
    ] = "",
) -> None:
    """Write a model file: each field with where it came from, or that it was assumed."""
    from planner.importing import run_import_model

    run_import_model(file, out, name, as_)


@import_app.command("cluster")
def import_cluster(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Dumps of one cluster: sinfo, scontrol, kubectl -o json, nvidia-smi, rocm-smi,"
            " NCCL topology. - is standard input.",
        ),
    ],
    accelerator: Annotated[
        list[str],
        typer.Option(metavar="TYPE=NAME", help="What a type is: a100=a100-sxm-80gb, t4=none."),
    ] = [],
    nic: Annotated[str, typer.Option(metavar="NAME", help="Network port: ib-ndr-400.")] = "",
    nics: Annotated[int, typer.Option(metavar="N", help="Ports of a node for training.")] = 0,
    devices: Annotated[
        int, typer.Option(metavar="N", help="Devices of a node, where a dump shows one job.")
    ] = 0,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm partition only.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option(metavar="HOSTLIST", help="These nodes only: n[001-016].")
    ] = None,
    selector: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Kubernetes nodes with this label only.")
    ] = [],
    tolerate: Annotated[
        list[str], typer.Option(metavar="KEY[=VALUE]", help="Taint that the job tolerates.")
    ] = [],
    all_: Annotated[
        bool, typer.Option("--all", help="All healthy nodes, whatever is in use now.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Use nodes in part where that uses more devices.")
    ] = False,
    most: Annotated[
        int, typer.Option(metavar="NODES", help="Use at most so many, the first in the network.")
    ] = 0,
    name: Annotated[str, typer.Option(help="Name of the cluster.")] = "",
    out: Annotated[
        str, typer.Option(metavar="FILE", help="File to write; without it, standard output.")
    ] = "",
) -> None:
    """Write the cluster file that dumps of a cluster describe."""
    from planner.importing import run_import_cluster

    run_import_cluster(
        files, accelerators=accelerator, nic=nic, nics=nics, devices=devices, partition=partition,
        nodes=nodes, selector=selector, tolerate=tolerate, everything=all_, partial=partial,
        most=most, name=name, out=out,
    )  # fmt: skip


def _version(value: bool) -> None:
    if value:
        from planner import __version__

        sys.stdout.write(f"planner {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the fastest way to split an LLM training job over a cluster, and explain it."""


def _wrapped(text: str, width: int = 100) -> str:
    """Return a message with every line broken at blanks to `width` columns."""
    import textwrap

    lines: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines) + "\n"


def _interrupted() -> int:
    sys.stderr.write("interrupted before any plan was found\n")
    return 130


def main() -> NoReturn:
    """Run the command line; no traceback reaches the user."""
    import os

    try:
        app()
    except PlannerError as error:
        sys.stderr.write(_wrapped(f"error: {error}"))
        code = error.exit_code
    except KeyboardInterrupt:
        code = _interrupted()
    except SystemExit as left:
        # Typer makes an exit of Ctrl-C, without a word.
        if not isinstance(getattr(left.__context__, "__cause__", None), KeyboardInterrupt):
            raise
        code = _interrupted()
    except BrokenPipeError:
        # The reader went away (head, less): nothing more to say, and Python must not flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if os.environ.get("PLANNER_DEBUG"):
            raise
        sys.stderr.write(
            f"error: a defect of planner, not of your input: {type(error).__name__}: {error}\n"
            "  fix: PLANNER_DEBUG=1 shows where; please report it with the command\n"
        )
        code = 1
    else:
        code = 0
    sys.exit(code)
