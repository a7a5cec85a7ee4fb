"""Commands on one plan or two: `trace`, `compare`, `diff`, `neighbours`, `show --html`."""

import sys
from pathlib import Path

from planner.cli.arguments import check_format
from planner.errors import EmitError, UsageError
from planner.render.report.files import check_folder, require_extra, write_text
from planner.solver.answer.result_store import opened_plan, options_of
from searches.frameworks.registry import ANY, framework_names


def run_trace(reference: str, out: str, micro_batches: int) -> None:
    """Run `planner trace`: write the trace file, or print it where it is named -."""
    from planner.analyze.trace.chrome_trace import trace_json

    _, _, problem, plan = opened_plan(reference)
    text = trace_json(problem, plan, micro_batches)
    if out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        fix = "name another file with -o"
        raise EmitError(f"cannot write {out}: {error.strerror}", fix) from None
    sys.stderr.write(
        f"wrote {out}: one step of plan {plan.plan_id}, open it in ui.perfetto.dev or "
        "chrome://tracing\n"
    )


def run_compare(
    traces: list[str], reference: str, form: str, steps: str, rank: int | None
) -> None:
    """Run `planner compare`: print measured steps beside a plan."""
    from planner.analyze.trace.comparison import TraceComparison, compare_traces
    from planner.render.trace_text import comparison_markdown, trace_comparison_text

    formats = {
        "table": trace_comparison_text,
        "json": TraceComparison.dumps,
        "md": comparison_markdown,
    }
    check_format(form, list(formats))
    _, _, problem, plan = opened_plan(reference)
    sys.stdout.write(formats[form](compare_traces(traces, problem, plan, steps, rank)))


def run_diff(first: str, second: str, form: str) -> None:
    """Run `planner diff`."""
    from planner.analyze.comparison import compare, comparison_text

    check_format(form)
    result = compare(opened_plan(first), opened_plan(second))
    sys.stdout.write(result.dumps() if form == "json" else comparison_text(result))


def run_neighbours(reference: str, framework: str, form: str) -> None:
    """Run `planner neighbours`."""
    from planner.analyze.neighborhood import single_changes
    from planner.analyze.neighborhood_text import changes_json, changes_text

    check_format(form)
    names = (*framework_names(), ANY)
    if framework not in names:
        raise UsageError(f"--framework: unknown {framework!r}", f"one of {', '.join(names)}")
    model, _, problem, plan = opened_plan(reference)
    result = single_changes(problem, plan.layout, framework, model.precisions)
    shown = changes_json if form == "json" else changes_text
    sys.stdout.write(shown(plan, result, framework))


def run_show_html(reference: str, out: str) -> None:
    """Write the view of a plan to a file, or print it where it is named -."""
    require_extra()
    check_folder(out)
    from planner.render.plan_view.data import plan_view, trace_file
    from planner.render.plan_view.page import plan_html

    model, cluster, problem, plan = opened_plan(reference)
    options = options_of(reference)
    view = plan_view(
        model,
        cluster,
        problem,
        plan,
        calibration=options.calibration,
        reference=reference,
        framework=options.framework if options.framework != "default" else "any",
    )
    write_text(out, plan_html(view, trace_file(problem, plan)))
