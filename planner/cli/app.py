"""The command line: parses options, calls the library, prints, returns exit codes.

Heavy modules are imported inside the commands, so that `planner --help` stays instant.
"""

import gc
import sys
from typing import Annotated, NoReturn

import typer

from planner.cli.arguments import positive
from planner.cli.command_arguments import (
    CheckArguments,
    EvaluateArguments,
    RecommendArguments,
    ReplanArguments,
    ScaleArguments,
    SolveArguments,
    SweepArguments,
    TrialArguments,
)
from planner.cli.commands.catalog import catalog_app
from planner.cli.commands.import_app import import_app
from planner.cli.commands.measurement import (
    calibrate_command,
    measure_command,
    validate_command,
)
from planner.cli.options import (
    TARGETS,
    ClusterArg,
    Hosts,
    Launcher,
    Model,
    PlanArg,
    TableOrJson,
)
from planner.cli.plugins import Commands
from planner.cli.signatures import records_as_options
from planner.errors import PlannerError

GARBAGE_AFTER = 50_000, 20, 100
"""Thresholds of the garbage collector: a command makes far more objects than the usual 700, and
looking for cycles among them takes a twentieth of its time."""

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


@app.command("solve")
@records_as_options
def solve_command(model: Model, cluster: ClusterArg, arguments: SolveArguments) -> None:
    """Rank the layouts of a training job on a cluster."""
    from planner.cli.commands.plans import run_solve

    raise typer.Exit(run_solve(model, cluster, arguments))


@app.command("evaluate")
@records_as_options
def evaluate_command(model: Model, cluster: ClusterArg, arguments: EvaluateArguments) -> None:
    """Price one layout, given with --pin, whether or not it fits."""
    from planner.cli.commands.plans import run_evaluate

    raise typer.Exit(run_evaluate(model, cluster, arguments))


@app.command("check")
@records_as_options
def check_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Launch script, DeepSpeed JSON, torchtitan TOML or recipe, YAML of Accelerate,"
            " TRL, axolotl or LLaMA-Factory; or CLUSTER -- COMMAND ...",
        ),
    ],
    cluster: ClusterArg,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND ...]", help="A command line in place of FILE.", show_default=False
        ),
    ] = None,
    arguments: CheckArguments = CheckArguments(),
) -> None:
    """Judge an existing run: refusals, memory, step time, place among plans, best changes."""
    from planner.cli.commands.plans import run_check

    raise typer.Exit(run_check(file, cluster, command or [], arguments))


@app.command("trial")
@records_as_options
def trial_command(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="As in solve.")] = "",
    cluster: Annotated[str, typer.Argument(metavar="[CLUSTER]", help="As in solve.")] = "",
    arguments: TrialArguments = TrialArguments(),
) -> None:
    """Write short runs of the three plans that most likely hold the best; read their logs."""
    from planner.cli.commands.trial import run_trial, run_trial_read

    if arguments.read:
        raise typer.Exit(run_trial_read(model, cluster, arguments))
    raise typer.Exit(run_trial(model, cluster, arguments, sys.argv[1:]))


@app.command("recommend")
@records_as_options
def recommend_command(
    question: Annotated[
        str,
        typer.Argument(
            metavar="QUESTION",
            help="devices, hardware (of a list in CLUSTER, or any), size, sequence, micro-batch,"
            " rank, bandwidth, or layout: the decision step by step.",
        ),
    ],
    model: Model,
    cluster: ClusterArg,
    arguments: RecommendArguments = RecommendArguments(),
) -> None:
    """Answer the inverse questions, or walk the decision about a layout step by step."""
    from planner.cli.commands.plans import run_recommend

    raise typer.Exit(run_recommend(question, model, cluster, arguments))


@app.command("show")
def show_command(
    plan: PlanArg,
    form: TableOrJson = "table",
    html: Annotated[
        str,
        typer.Option(metavar="FILE", help="Write the plan view as one HTML file; - is stdout."),
    ] = "",
) -> None:
    """Show one plan of a saved result in full: time, memory by stage, traffic.

    With --html as a page that needs no network: figures, and every number with its formula.
    """
    if html:
        from planner.cli.commands.inspection import run_show_html

        run_show_html(plan, html)
        return
    from planner.cli.commands.plans import run_show

    run_show(plan, form)


@app.command("explain")
def explain_command(
    plan: PlanArg,
    term: Annotated[
        str, typer.Option(help="Open one term: its formula, numbers and source.")
    ] = "",
    form: TableOrJson = "table",
) -> None:
    """Explain one plan: what binds it, what would relax that, or one term down to its formula."""
    from planner.cli.commands.plans import run_explain

    run_explain(plan, term, form)


@app.command("trace")
def trace_command(
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


@app.command("scale")
@records_as_options
def scale_command(
    model: Model,
    cluster: ClusterArg,
    arguments: ScaleArguments = ScaleArguments(),
) -> None:
    """The best plan at each number of devices, sequence length or depth; knee and break-even."""
    from planner.cli.commands.scale import run_scale

    raise typer.Exit(run_scale(model, cluster, arguments))


@app.command("sweep")
@records_as_options
def sweep_command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="SWEEP.yaml | MODEL CLUSTER",
            help="A sweep file; or a model and a cluster as in solve, with --vary.",
        ),
    ],
    arguments: SweepArguments = SweepArguments(),
) -> None:
    """Search every point of a sweep over hardware, model or job; goes on where it stopped."""
    from planner.cli.commands.sweep import run_sweep_command

    raise typer.Exit(run_sweep_command(files, arguments))


@app.command("compare")
def compare_command(
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


@app.command("diff")
def diff_command(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan, as in explain.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    form: TableOrJson = "table",
) -> None:
    """Say term by term why one plan beats another, and what would turn it round."""
    from planner.cli.commands.inspection import run_diff

    run_diff(first, second, form)


@app.command("neighbours")
def neighbours_command(
    plan: PlanArg,
    framework: Annotated[
        str, typer.Option(help="Leave out what megatron, deepspeed, ... does not run; any.")
    ] = "any",
    form: TableOrJson = "table",
) -> None:
    """Show what each single change of a plan would do, or the rule that forbids it."""
    from planner.cli.commands.inspection import run_neighbours

    run_neighbours(plan, framework, form)


@app.command("emit")
def emit_command(
    plan: PlanArg,
    for_: Annotated[
        str,
        typer.Option("--for", help=f"{TARGETS}; with commas."),
    ] = "megatron",
    out: Annotated[
        str, typer.Option(help="Folder to write to; without it the files are printed.")
    ] = "",
    launcher: Launcher = "torchrun",
    hosts: Hosts = None,
) -> None:
    """Write the framework configuration that runs one plan, and the files that launch it."""
    from planner.cli.commands.plans import run_emit

    run_emit(plan, for_, out, launcher, hosts)


@app.command("replan")
@records_as_options
def replan_command(
    plan: PlanArg,
    arguments: ReplanArguments = ReplanArguments(),
) -> None:
    """Say what to do with a running plan after nodes were lost or gained, and when moving pays."""
    from planner.cli.commands.plans import run_replan

    raise typer.Exit(run_replan(plan, arguments))


@app.command("place")
def place_command(
    plan: PlanArg,
    hosts: Hosts = None,
    out: Annotated[
        str, typer.Option(help="Folder for ranks.txt, hostfile, rank files of mpirun and Slurm.")
    ] = "",
    form: TableOrJson = "table",
) -> None:
    """Show the process groups of a plan as ranks on hosts, and write rank files."""
    from planner.cli.commands.inspection import run_place

    run_place(plan, hosts, out, form)


app.command("validate")(validate_command)
app.command("measure")(measure_command)
app.command("calibrate")(calibrate_command)


@app.command("report")
def report_command(
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
    from planner.cli.report import run_report

    raise typer.Exit(run_report(sweep_file, out, x, y, image, form))


@app.command("learn")
def learn_command(
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
def check_spec_command(
    file: Annotated[str, typer.Argument(help="A model or cluster file.")],
    form: TableOrJson = "table",
) -> None:
    """Check a model or cluster file and say what it describes."""
    from planner.cli.commands.plans import run_check_spec

    run_check_spec(file, form)


@app.command("check-flags")
def check_flags_command(
    framework: Annotated[
        str, typer.Argument(help="megatron, bridge, deepspeed, torchtitan, fsdp2; NAME@RELEASE.")
    ],
    python: Annotated[
        str, typer.Option(help="The interpreter that has the framework installed.")
    ] = "python3",
    source: Annotated[
        str, typer.Option(metavar="DIR", help="An unpacked wheel of it, in place of that.")
    ] = "",
    between: Annotated[
        str, typer.Option(metavar="OLD,NEW", help="Two releases with a table, none installed.")
    ] = "",
    form: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Say which options the installed release of a framework added, renamed or dropped."""
    from planner.frameworks.releases import run_check_flags

    raise typer.Exit(run_check_flags(framework, python, between, form, source))


@app.command("rule")
def rule_command(
    code: Annotated[str, typer.Argument(help="A code such as TP002; all codes without it.")] = "",
) -> None:
    """Explain a rule that rejects layouts or settings of a framework, or list them all."""
    from planner.cli.commands.plans import run_rule

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

    gc.set_threshold(*GARBAGE_AFTER)
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
