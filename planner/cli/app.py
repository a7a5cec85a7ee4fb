"""The command line: parses options, calls the library, prints, returns exit codes.

Heavy modules are imported inside the commands, so that `planner --help` stays instant.
"""

import sys
from typing import Annotated, NoReturn

import typer

from planner.cli.arguments import overrides_of, positive, size
from planner.cli.commands.catalog import catalog_app
from planner.cli.commands.importing import import_app
from planner.cli.commands.measurement import calibrate, measure, validate
from planner.cli.options import (
    FRAMEWORKS,
    Allow,
    CalibrationFile,
    ClusterArg,
    Deadline,
    Format,
    Framework,
    Hosts,
    Launcher,
    Max,
    Model,
    Objective,
    Only,
    Pareto,
    Pin,
    PlanArg,
    PoolName,
    Reference,
    SetOption,
    Stack,
    StepLimit,
    Within,
)
from planner.cli.plugins import Commands
from planner.errors import PlannerError

app = typer.Typer(
    name="planner",
    cls=Commands,
    help="Finds the fastest way to split an LLM training job over a cluster, and explains it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(catalog_app, name="catalog")
app.add_typer(import_app, name="import")


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
            help=f"Write files: {FRAMEWORKS}; with commas. One alone is the --framework too."
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
    from planner.cli.output import run_solve
    from planner.cli.search_options import Stated

    stated = Stated(
        pin=pin,
        only=only,
        at_most=max_,
        allow=allow,
        overrides=overrides_of(set_),
        framework=framework,
        stack=stack,
        calibration=calibration,
        reference=reference,
    )
    raise typer.Exit(
        run_solve(
            model,
            cluster,
            stated,
            top=top,
            pool=pool,
            objective=objective,
            deadline=deadline,
            step_limit_s=positive(step_limit, "--step-limit", "12.5"),
            within=positive(within, "--within", "1.05"),
            pareto=pareto,
            form=form,
            emit=emit,
            out=out,
            launcher=launcher,
            executor=executor,
            ray_address=ray_address,
            time_limit_s=positive(time_limit, "--time-limit", "2.5"),
            cache=cache,
        )
    )


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
    from planner.cli.output import run_evaluate
    from planner.cli.search_options import Stated

    stated = Stated(
        pin=pin,
        allow=allow,
        overrides=overrides_of(set_),
        framework=framework,
        stack=stack,
        calibration=calibration,
        reference=reference,
    )
    raise typer.Exit(run_evaluate(model, cluster, stated, pool=pool, form=form, cache=cache))


@app.command()
def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Launch script, DeepSpeed JSON, torchtitan TOML or recipe, Accelerate YAML;"
            " or CLUSTER -- COMMAND ...",
        ),
    ],
    cluster: ClusterArg,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND ...]", help="A command line in place of FILE.", show_default=False
        ),
    ] = None,
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
    from planner.cli.output import run_check

    raise typer.Exit(
        run_check(
            file,
            cluster,
            command or [],
            model=model,
            framework=framework,
            version=version,
            env=env,
            pin=pin,
            overrides=overrides_of(set_),
            pool=pool,
            form=form,
            calibration=calibration,
        )
    )


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
    from planner.cli.commands.trial import run_trial, run_trial_read
    from planner.cli.search_options import Stated
    from planner.measure.trial.scripts import STEPS

    if read:
        arguments = {
            "MODEL": model,
            "CLUSTER": cluster,
            "--pin": pin,
            "--only": only,
            "--max": max_,
            "--set": set_,
            "--framework": framework,
            "--stack": stack,
            "--pool": pool,
            "--out": out,
            "--calibration": calibration,
            "--reference": reference,
            "--allow": allow,
            "--steps": steps is not None,
            "--launcher": launcher,
            "--time-limit": time_limit is not None,
        }
        raise typer.Exit(run_trial_read(read, log, form, arguments))
    stated = Stated(
        pin=pin,
        only=only,
        at_most=max_,
        allow=allow,
        overrides=overrides_of(set_),
        framework=framework or "megatron",
        stack=stack,
        calibration=calibration,
        reference=reference,
    )
    raise typer.Exit(
        run_trial(
            model,
            cluster,
            stated,
            pool=pool,
            steps=STEPS if steps is None else steps,
            out=out,
            launcher=launcher or "torchrun",
            log=log,
            time_limit_s=positive(time_limit, "--time-limit", "60"),
            form=form,
            words=sys.argv[1:],
        )
    )


@app.command()
def recommend(
    question: Annotated[
        str,
        typer.Argument(
            metavar="QUESTION",
            help="devices, size, sequence, micro-batch, bandwidth, or layout: the decision step by"
            " step.",
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
        int | None, typer.Option(metavar="NODES", help="devices: most nodes to try (1024).")
    ] = None,
    by: Annotated[str, typer.Option(help="size: grow both (the default), width or depth.")] = "",
    step: Annotated[
        int | None, typer.Option(metavar="TOKENS", help="sequence: in multiples of these (1024).")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="bandwidth: wait that counts as hidden, per compute time (0.02).")
    ] = 0.0,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    calibration: CalibrationFile = "",
    reference: Reference = "",
) -> None:
    """Answer the inverse questions, or walk the decision about a layout step by step."""
    from planner.cli.output import run_recommend
    from planner.cli.search_options import Stated

    stated = Stated(
        pin=pin,
        only=only,
        at_most=max_,
        allow=allow,
        overrides=overrides_of(set_),
        framework=framework,
        stack=stack,
        calibration=calibration,
        reference=reference,
    )
    raise typer.Exit(
        run_recommend(
            question,
            model,
            cluster,
            stated,
            most=size(most, "--most"),
            by=by,
            step=size(step, "--step"),
            tolerance=tolerance,
            form=form,
        )
    )


@app.command()
def show(
    plan: PlanArg,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    html: Annotated[
        str,
        typer.Option(metavar="FILE", help="Write the plan view as one HTML file; - is stdout."),
    ] = "",
) -> None:
    """Show one plan of a saved result in full: time, memory by stage, traffic.

    With --html as a page that needs no network: figures, and every number with its formula.
    """
    if html:
        from planner.cli.commands.plan_page import run_show_html

        run_show_html(plan, html)
        return
    from planner.cli.output import run_show

    run_show(plan, form)


@app.command()
def explain(
    plan: PlanArg,
    term: Annotated[
        str, typer.Option(help="Open one term: its formula, numbers and source.")
    ] = "",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Explain one plan: what binds it, what would relax that, or one term down to its formula."""
    from planner.cli.output import run_explain

    run_explain(plan, term, form)


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
    from planner.cli.commands.inspection import run_trace

    run_trace(plan, out, int(positive(micro_batches, "--micro-batches", "4")))


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
    from planner.cli.commands.scale import run_scale
    from planner.cli.search_options import Stated

    least, maximum = size(from_, "--from"), size(to, "--to")
    stated = Stated(
        pin=pin,
        only=only,
        at_most=max_,
        allow=allow,
        overrides=overrides_of(set_),
        framework=framework,
        stack=stack,
        calibration=calibration,
        reference=reference,
    )
    raise typer.Exit(
        run_scale(
            model,
            cluster,
            stated,
            scaling=scaling,
            over=over,
            least=least,
            most=maximum,
            points=points,
            pool=pool,
            form=form,
            html=html,
            time_limit_s=positive(time_limit, "--time-limit", "60"),
        )
    )


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
    from planner.cli.commands.sweep import run_sweep_command
    from planner.cli.search_options import Stated

    stated = Stated(
        pin=pin,
        only=only,
        at_most=max_,
        overrides=overrides_of(set_),
        framework=framework,
        stack=stack,
        calibration=calibration,
        reference=reference,
    )
    raise typer.Exit(
        run_sweep_command(
            files,
            stated,
            vary=vary,
            design=design,
            samples=samples,
            seed=seed,
            where=where,
            let=let,
            pool=pool,
            objective=objective,
            deadline=deadline,
            step_limit_s=positive(step_limit, "--step-limit", "12.5"),
            within=positive(within, "--within", "1.05"),
            out=out,
            form=form,
            executor=executor,
            ray_address=ray_address,
            point_limit_s=positive(point_limit, "--point-limit", "60"),
            dry_run=dry_run,
            quiet=quiet,
        )
    )


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
    from planner.cli.commands.inspection import run_compare
    from planner.errors import UsageError

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
    from planner.cli.commands.inspection import run_diff

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
    from planner.cli.commands.inspection import run_neighbours

    run_neighbours(plan, framework, form)


@app.command()
def emit(
    plan: PlanArg,
    for_: Annotated[
        str,
        typer.Option("--for", help=f"{FRAMEWORKS}; with commas."),
    ] = "megatron",
    out: Annotated[
        str, typer.Option(help="Folder to write to; without it the files are printed.")
    ] = "",
    launcher: Launcher = "torchrun",
    hosts: Hosts = None,
) -> None:
    """Write the framework configuration that runs one plan, and the files that launch it."""
    from planner.cli.output import run_emit

    run_emit(plan, for_, out, launcher, hosts)


@app.command()
def replan(
    plan: PlanArg,
    lost: Annotated[
        str, typer.Option(metavar="N|HOSTS", help="Nodes that are gone: a number, or n[003,007].")
    ] = "",
    gained: Annotated[int, typer.Option(metavar="N", help="Nodes that joined.")] = 0,
    via: Annotated[
        str, typer.Option(help="How the state moves: checkpoint, or network where software can.")
    ] = "checkpoint",
    time_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="Stop the search after S seconds.", show_default=False),
    ] = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Keep the new plans for last#...")
    ] = True,
) -> None:
    """Say what to do with a running plan after nodes were lost or gained, and when moving pays."""
    from planner.cli.output import run_replan

    limit_s = positive(time_limit, "--time-limit", "2.5")
    raise typer.Exit(run_replan(plan, lost, gained, via, limit_s, form, cache))


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
    from planner.analyze.placement.hosts import run_place

    run_place(plan, hosts, out, form)


for of_measurements in (validate, measure, calibrate):
    app.command()(of_measurements)


@app.command()
def report(
    sweep_file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What planner sweep wrote, finished or not; or a result of planner solve"
            " (RESULT.json, last), or a plan of one, as in explain.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File to write (report.html, review.html, review.md); - is stdout.",
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
    form: Annotated[
        str, typer.Option("--format", help="html; of a result also markdown.")
    ] = "html",
) -> None:
    """Write a sweep as one HTML page with figures, or a result as a design review."""
    from planner.render.report.files import run_report

    raise typer.Exit(run_report(sweep_file, out, x, y, image, form))


@app.command()
def learn(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="A calculator; all are listed without it.")
    ] = "",
    set_: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="An input: stages=8, link=50GB/s."),
    ] = [],
    form: Annotated[str, typer.Option("--format", help="text, json or markdown.")] = "text",
) -> None:
    """Calculators to learn from: bubble, overlap, collectives, memory walls, and more."""
    from planner.cli.commands.learn import run_learn

    raise typer.Exit(run_learn(name, set_, form))


@app.command("check-spec")
def check_spec(
    file: Annotated[str, typer.Argument(help="A model or cluster file.")],
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Check a model or cluster file and say what it describes."""
    from planner.cli.output import run_check_spec

    run_check_spec(file, form)


@app.command("check-flags")
def check_flags(
    framework: Annotated[
        str, typer.Argument(help="megatron, bridge, deepspeed, torchtitan, fsdp2.")
    ],
    python: Annotated[
        str, typer.Option(help="The interpreter that has the framework installed.")
    ] = "python3",
    between: Annotated[
        str, typer.Option(metavar="OLD,NEW", help="Two releases with a table, none installed.")
    ] = "",
    form: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Say which options the installed release of a framework added, renamed or dropped."""
    from planner.frameworks.releases import run_check_flags

    raise typer.Exit(run_check_flags(framework, python, between, form))


@app.command()
def rule(
    code: Annotated[str, typer.Argument(help="A code such as TP002; all codes without it.")] = "",
) -> None:
    """Explain a rule that rejects layouts or settings of a framework, or list them all."""
    from planner.cli.output import run_rule

    run_rule(code)


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
    server: Annotated[
        str,
        typer.Option(metavar="URL", envvar="PLANNER_SERVER", help="Ask this service instead."),
    ] = "",
    token_file: Annotated[
        str, typer.Option(metavar="FILE", help="Token for it; or the variable PLANNER_TOKEN.")
    ] = "",
    server_ca: Annotated[
        str,
        typer.Option(
            metavar="FILE", envvar="PLANNER_SERVER_CA", help="Authority of its certificate."
        ),
    ] = "",
    server_cert: Annotated[
        str,
        typer.Option(metavar="FILE", envvar="PLANNER_SERVER_CERT", help="Certificate to show it."),
    ] = "",
    server_key: Annotated[
        str, typer.Option(metavar="FILE", envvar="PLANNER_SERVER_KEY", help="Its key.")
    ] = "",
) -> None:
    """Find the fastest way to split an LLM training job over a cluster, and explain it."""
    if token_file and not server:
        from planner.errors import UsageError

        raise UsageError("--token-file is for a service", "--server URL --token-file FILE")


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
