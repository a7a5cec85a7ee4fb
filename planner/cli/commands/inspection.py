"""Commands on plans: `trace`, `compare`, `diff`, `neighbours`, `place`, `show --html`."""

import json
import sys
from pathlib import Path

from planner.cli.arguments import check_format
from planner.cli.commands.joined import joined_opened
from planner.cli.commands.plans import printed
from planner.cli.files import check_folder, write_text
from planner.errors import EmitError
from planner.frameworks.registry import named_framework
from planner.render.report.sweep_report import require_extra
from planner.solver.answer.result_store import (
    joined_plan_of,
    opened_plan,
    options_of,
    read_plan_reference,
)
from searches.frameworks.registry import ANY


def run_trace(reference: str, out: str, micro_batches: int) -> None:
    """Run `planner trace`: write the trace file, or print it where it is named -."""
    from planner.analyze.trace.chrome_trace import trace_json

    if joined := joined_opened(reference):
        from planner.analyze.several_pools import trace_several_json

        plan_id, text = joined.plan.plan_id, trace_several_json(joined, micro_batches)
    else:
        _, _, problem, plan = opened_plan(reference)
        plan_id, text = plan.plan_id, trace_json(problem, plan, micro_batches)
    show_trace(text, plan_id, out)


def show_trace(text: str, plan_id: str, out: str) -> None:
    """Write a trace file, or print it where it is named -."""
    if out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "name another file with -o"
        raise EmitError(f"cannot write {out}: {error.strerror}", fix) from None
    sys.stderr.write(
        f"wrote {out}: one step of plan {plan_id}, open it in ui.perfetto.dev or "
        "chrome://tracing\n"
    )


def run_compare(
    traces: list[str], reference: str, form: str, steps: str, rank: int | None
) -> None:
    """Run `planner compare`: print measured steps beside a plan."""
    from planner.analyze.trace.comparison import compare_traces
    from planner.render.document import answer_document, markdown

    check_format(form, ["table", "json", "md"])
    _, _, problem, plan = opened_plan(reference)
    comparison = compare_traces(traces, problem, plan, steps, rank)
    text = markdown(answer_document(comparison)) if form == "md" else printed(comparison, form)
    sys.stdout.write(text)


def run_diff(first: str, second: str, form: str) -> None:
    """Run `planner diff`."""
    from planner.analyze.comparison import compare

    check_format(form)
    joined = joined_opened(first), joined_opened(second)
    if any(joined):
        from planner.analyze.joined.comparison import compare_joined

        a, b = (x or opened_plan(ref) for x, ref in zip(joined, (first, second), strict=True))
        sys.stdout.write(printed(compare_joined(a, b), form))
        return
    result = compare(opened_plan(first), opened_plan(second))
    sys.stdout.write(printed(result, form))


def run_neighbours(reference: str, framework: str, form: str) -> None:
    """Run `planner neighbours`."""
    from planner.analyze.single_changes import plan_changes

    check_format(form)
    if framework != ANY:
        framework = named_framework(framework, "framework")
    model, _, problem, plan = opened_plan(reference)
    result = plan_changes(problem, plan, framework, model.precisions)
    sys.stdout.write(printed(result, form))


def run_place(reference: str, hosts: str | None, out: str, form: str) -> None:
    """Run `planner place`: print where the ranks of a plan run, write the files for launchers."""
    from planner import __version__
    from planner.analyze.joined_files import check_own_hosts, joined_heading, joined_placement
    from planner.cli.files import write_files
    from planner.frameworks.launchers.hosts import chosen_hosts
    from planner.frameworks.launchers.placement import place_plan
    from planner.frameworks.launchers.rank_files import placement_files, placement_json
    from planner.render.answers.placement import placement_document
    from planner.render.terminal import terminal_text, terminal_width

    check_format(form)
    data, which = read_plan_reference(reference)
    if joined := joined_plan_of(data, which):
        from planner.render.answers.joined.placement import joined_placement_document

        check_own_hosts(hosts)
        placed = joined_placement(data, joined)
        heading = joined_heading(data, joined)
        if out:
            header = [heading, f"written by planner {__version__}"]
            write_files(Path(out), placement_files(placed.placement, header))
            sys.stderr.write(f"wrote {out}\n")
        shown = terminal_text(joined_placement_document(placed, heading), terminal_width())
        sys.stdout.write(json.dumps(placed.to_json()) + "\n" if form == "json" else shown)
        return
    model, cluster, problem, plan = opened_plan(reference)
    names = chosen_hosts(hosts, cluster)
    fabric = cluster.cluster.fabric
    placement = place_plan(plan.layout, model.shape, problem.pool, fabric, names)
    heading = f"plan {plan.plan_id}, model {model.shape.name}, cluster {cluster.cluster.name}"
    if out:
        header = [heading, f"written by planner {__version__}"]
        write_files(Path(out), placement_files(placement, header))
        sys.stderr.write(f"wrote {out}\n")
    if form == "json":
        sys.stdout.write(json.dumps(placement_json(placement, plan.plan_id)) + "\n")
    else:
        parts = placement_document(placement, heading)
        sys.stdout.write(terminal_text(parts, terminal_width()))


def run_show_html(reference: str, out: str) -> None:
    """Write the view of a plan to a file, or print it where it is named -."""
    require_extra()
    check_folder(out)
    from planner.render.plan_view.data import ViewOptions, plan_view, trace_file
    from planner.render.plan_view.page import plan_html

    model, cluster, problem, plan = opened_plan(reference)
    options = options_of(reference)
    view = plan_view(
        model,
        cluster,
        problem,
        plan,
        ViewOptions(
            calibration=options.calibration,
            reference=reference,
            framework=options.framework if options.framework != "default" else "any",
        ),
    )
    write_text(out, plan_html(view, trace_file(problem, plan)))
