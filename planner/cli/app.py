"""The command line: parses options, calls the library, prints, returns exit codes.

Heavy modules are imported inside the commands, so that `planner --help` stays instant.
"""

import gc
import sys
from typing import Annotated, NoReturn

import typer

from planner.cli import completion
from planner.cli.arguments import positive, with_typed_options
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
from planner.cli.commands.service.app import jobs_app
from planner.cli.options import (
    TARGETS,
    ClusterArg,
    Hosts,
    Launcher,
    Model,
    PlanArg,
    TableOrJson,
    TimeLimit,
)
from planner.cli.plugins import FIND, LOOK_UP, MEASURE, READ, RUN, SERVE, Commands
from planner.cli.signatures import records_as_options
from planner.errors import PlannerError

GARBAGE_AFTER = 50_000, 20, 100
"""Thresholds of the garbage collector: a command makes far more objects than the usual 700, and
looking for cycles among them takes a twentieth of its time."""

FIRST_STEPS = """\
The fastest way to split a training job.

An example on 64 GPUs, without a file:
  planner solve llama3-8b 64xh100
Your Hugging Face config, and its script:
  planner solve config.json 64xh100 --emit megatron --launcher slurm --out run
Why a plan is best, and what would help:
  planner explain last
Every command:
  planner --help
"""
"""What `planner` prints without a command: what to type next."""

app = typer.Typer(
    name="planner",
    cls=Commands,
    help="Finds the fastest way to split an LLM training job over a cluster, and explains it.",
    invoke_without_command=True,
    add_completion=True,
    context_settings={"max_content_width": 100},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(catalog_app, name="catalog", rich_help_panel=LOOK_UP)
app.add_typer(import_app, name="import", rich_help_panel=LOOK_UP)
app.add_typer(jobs_app, name="jobs", rich_help_panel=SERVE)


@app.command("solve", rich_help_panel=FIND)
@records_as_options
def solve_command(model: Model, cluster: ClusterArg, arguments: SolveArguments) -> None:
    """Rank the layouts of a training job on a cluster."""
    from planner.cli.commands.plans import run_solve

    raise typer.Exit(run_solve(model, cluster, arguments))


@app.command("evaluate", rich_help_panel=FIND)
@records_as_options
def evaluate_command(model: Model, cluster: ClusterArg, arguments: EvaluateArguments) -> None:
    """Price one layout, given with --pin, whether or not it fits."""
    from planner.cli.commands.plans import run_evaluate

    raise typer.Exit(run_evaluate(model, cluster, arguments))


@app.command("check", rich_help_panel=RUN)
@records_as_options
def check_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Launch script, DeepSpeed JSON, torchtitan TOML or recipe, YAML of Accelerate,"
            " TRL, axolotl, LLaMA-Factory, ms-swift or torchtune; or CLUSTER -- COMMAND ...",
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
    """Judge an existing run: refusals, fit, time, best changes.

    With its place among all plans of the job.
    """
    from planner.cli.commands.plans import run_check

    raise typer.Exit(run_check(file, cluster, command or [], arguments))


@app.command("trial", rich_help_panel=FIND)
@records_as_options
def trial_command(
    model: Annotated[str, typer.Argument(metavar="[MODEL]", help="As in solve.")] = "",
    cluster: Annotated[str, typer.Argument(metavar="[CLUSTER]", help="As in solve.")] = "",
    arguments: TrialArguments = TrialArguments(),
) -> None:
    """Time the three likeliest plans in short runs; read logs."""
    from planner.cli.commands.trial import run_trial, run_trial_read

    if arguments.read:
        raise typer.Exit(run_trial_read(model, cluster, arguments))
    raise typer.Exit(run_trial(model, cluster, arguments, sys.argv[1:]))


@app.command("recommend", rich_help_panel=FIND)
@records_as_options
def recommend_command(
    question: Annotated[
        str,
        typer.Argument(
            metavar="QUESTION",
            help="devices, hardware (of a list in CLUSTER, or any), size, sequence, micro-batch,"
            " rank, bandwidth, or layout: the decision step by step.",
            autocompletion=completion.questions,
        ),
    ],
    model: Model,
    cluster: ClusterArg,
    arguments: RecommendArguments = RecommendArguments(),
) -> None:
    """Answer inverse questions: fewest GPUs, card, size, layout."""
    from planner.cli.commands.plans import run_recommend

    raise typer.Exit(run_recommend(question, model, cluster, arguments))


@app.command("show", rich_help_panel=READ)
def show_command(
    plan: PlanArg,
    form: TableOrJson = "table",
    html: Annotated[
        str,
        typer.Option(metavar="FILE", help="Write the plan view as one HTML file; - is stdout."),
    ] = "",
) -> None:
    """Show one plan in full: time, memory by stage, traffic.

    With --html as a page that needs no network: figures, and every number with its formula.
    """
    if html:
        from planner.cli.commands.inspection import run_show_html

        run_show_html(plan, html)
        return
    from planner.cli.commands.plans import run_show

    run_show(plan, form)


@app.command("explain", rich_help_panel=READ)
def explain_command(
    plan: PlanArg,
    term: Annotated[
        str, typer.Option(help="Open one term: its formula, numbers and source.")
    ] = "",
    form: TableOrJson = "table",
) -> None:
    """Explain one plan: its bottleneck, and what would help.

    With --term one term down to its formula, numbers and source.
    """
    from planner.cli.commands.plans import run_explain

    run_explain(plan, term, form)


@app.command("trace", rich_help_panel=READ)
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
    """Write one step of a plan as a timeline for Perfetto.

    chrome://tracing reads it too.
    """
    from planner.cli.commands.inspection import run_trace

    run_trace(plan, out, int(positive(micro_batches, "--micro-batches", "4")))


@app.command("scale", rich_help_panel=FIND)
@records_as_options
def scale_command(
    model: Model,
    cluster: ClusterArg,
    arguments: ScaleArguments = ScaleArguments(),
) -> None:
    """Show the best plan at each number of GPUs.

    Or at each sequence length or depth; with the knee and the break-even point.
    """
    from planner.cli.commands.scaling.scale import run_scale

    raise typer.Exit(run_scale(model, cluster, arguments))


@app.command("batch-solve", rich_help_panel=FIND)
def batch_solve_command(
    jobs: Annotated[
        str, typer.Argument(metavar="FILE.yaml", help="jobs and clusters by name, and counts.")
    ],
    framework: Annotated[str, typer.Option(help="Only what it can run.")] = "",
    time_limit: TimeLimit = None,
    executor: Annotated[
        str, typer.Option(help="automatic, serial, processes or ray: same rows.")
    ] = "automatic",
    form: TableOrJson = "table",
) -> None:
    """Solve several jobs on several kinds and numbers of devices."""
    from planner.cli.commands.scaling.batch_solve import run_batch_solve

    raise typer.Exit(run_batch_solve(jobs, framework, time_limit, executor, form))


@app.command("allocate", rich_help_panel=FIND)
def allocate_command(
    jobs: Annotated[
        str, typer.Argument(metavar="FILE.yaml", help="Free nodes by pool, and jobs' curves.")
    ],
    objective: Annotated[
        str, typer.Option(help="throughput, fairness or deadline; that of the file.")
    ] = "",
    form: TableOrJson = "table",
) -> None:
    """Share free nodes among jobs, by the curve of each.

    With a proof that nothing is better, or a bound.
    """
    from planner.cli.commands.scaling.allocate import run_allocate

    raise typer.Exit(run_allocate(jobs, objective, form))


@app.command("sweep", rich_help_panel=FIND)
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
    """Search every point of a sweep over GPUs, model or job.

    It goes on where it stopped.
    """
    from planner.cli.commands.sweep import run_sweep_command

    raise typer.Exit(run_sweep_command(files, arguments))


@app.command("compare", rich_help_panel=READ)
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
    """Set a measured step beside a plan, term by term."""
    from planner.cli.commands.inspection import run_compare
    from planner.errors import UsageError

    if len(traces) < 2:
        raise UsageError("compare needs a trace and a plan", "planner compare trace.json last#1")
    run_compare(traces[:-1], traces[-1], form, steps, rank)


@app.command("diff", rich_help_panel=READ)
def diff_command(
    first: Annotated[str, typer.Argument(metavar="A", help="A plan, as in explain.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    form: TableOrJson = "table",
) -> None:
    """Say term by term why one plan beats another.

    And what would turn it round.
    """
    from planner.cli.commands.inspection import run_diff

    run_diff(first, second, form)


@app.command("neighbours", rich_help_panel=READ)
def neighbours_command(
    plan: PlanArg,
    framework: Annotated[
        str, typer.Option(help="Leave out what megatron, deepspeed, ... does not run; any.")
    ] = "any",
    form: TableOrJson = "table",
) -> None:
    """Show what each single change of a plan would do.

    Or the rule that forbids it.
    """
    from planner.cli.commands.inspection import run_neighbours

    run_neighbours(plan, framework, form)


@app.command("emit", rich_help_panel=RUN)
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
    """Write the files that configure and launch one plan."""
    from planner.cli.commands.plans import run_emit

    run_emit(plan, for_, out, launcher, hosts)


@app.command("replan", rich_help_panel=RUN)
@records_as_options
def replan_command(
    plan: PlanArg,
    arguments: ReplanArguments = ReplanArguments(),
) -> None:
    """Say what to do after nodes were lost or gained.

    And whether, and when, moving the running plan pays.
    """
    from planner.cli.commands.plans import run_replan

    raise typer.Exit(run_replan(plan, arguments))


@app.command("place", rich_help_panel=RUN)
def place_command(
    plan: PlanArg,
    hosts: Hosts = None,
    out: Annotated[
        str, typer.Option(help="Folder for ranks.txt, hostfile, rank files of mpirun and Slurm.")
    ] = "",
    form: TableOrJson = "table",
) -> None:
    """Show which rank of a plan runs where; write rank files."""
    from planner.cli.commands.inspection import run_place

    run_place(plan, hosts, out, form)


app.command("validate", rich_help_panel=MEASURE)(validate_command)
app.command("measure", rich_help_panel=MEASURE)(measure_command)
app.command("calibrate", rich_help_panel=MEASURE)(calibrate_command)


@app.command("report", rich_help_panel=READ)
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
    """Write a sweep or a result as a report with figures.

    A sweep as one HTML page, a result as a design review.
    """
    from planner.cli.report import run_report

    raise typer.Exit(run_report(sweep_file, out, x, y, image, form))


@app.command("learn", rich_help_panel=LOOK_UP)
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
    """Learn from calculators: bubble, overlap, memory walls.

    All are listed without a name.
    """
    from planner.cli.commands.learn import run_learn

    raise typer.Exit(run_learn(name, set_, form))


@app.command("check-spec", rich_help_panel=LOOK_UP)
def check_spec_command(
    file: Annotated[str, typer.Argument(help="A model or cluster file.")],
    form: TableOrJson = "table",
) -> None:
    """Check a model or cluster file and say what it describes."""
    from planner.cli.commands.plans import run_check_spec

    run_check_spec(file, form)


@app.command("check-flags", rich_help_panel=RUN)
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
    """Say which options a framework release added or dropped.

    Of the installed release, or between two releases with --between.
    """
    from planner.frameworks.releases import run_check_flags

    raise typer.Exit(run_check_flags(framework, python, between, form, source))


@app.command("rule", rich_help_panel=LOOK_UP)
def rule_command(
    code: Annotated[
        str,
        typer.Argument(
            help="A code such as TP002; all codes without it.",
            autocompletion=completion.rules,
        ),
    ] = "",
) -> None:
    """Explain a rule that rejects layouts, or list all rules."""
    from planner.cli.commands.plans import run_rule

    run_rule(code)


@app.command("man", rich_help_panel=LOOK_UP)
def man_command(
    context: typer.Context,
    command: Annotated[
        str,
        typer.Argument(metavar="[COMMAND]", help="solve, 'catalog list', ..."),
    ] = "",
    out: Annotated[str, typer.Option(metavar="DIR", help="Write all pages to a folder.")] = "",
) -> None:
    """Print the man page of a command, or write all of them."""
    from planner.cli.manual import run_man

    raise typer.Exit(run_man(context.find_root(), command, out))


def _version(value: bool) -> None:
    if value:
        from planner import __version__

        sys.stdout.write(f"planner {__version__}\n")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
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
    if context.invoked_subcommand is None:
        from planner.render.terminal import fitted_text, terminal_width

        sys.stdout.write(fitted_text(FIRST_STEPS, terminal_width()))
        raise typer.Exit(2)


def _error_width() -> int:
    """Return the columns of messages: of the window, 100 of a file."""
    import os
    import shutil

    if not sys.stderr.isatty() and not os.environ.get("COLUMNS"):
        return 100
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def _wrapped(text: str, width: int) -> str:
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
        text = with_typed_options(f"error: {error}", sys.argv[1:])
        sys.stderr.write(_wrapped(text, _error_width()))
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
