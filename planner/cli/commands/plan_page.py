"""`planner show --html`: the plan view as one HTML file."""

from planner.render.report.files import check_folder, require_extra, write_text
from planner.solver.answer.result_store import opened_plan, options_of


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
