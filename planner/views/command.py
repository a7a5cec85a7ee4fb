"""`planner show --html`: the plan view as one HTML file."""

from planner.reporting.command import check_folder, require_extra, write_text
from planner.saved import opened, options_of


def run_show_html(reference: str, out: str) -> None:
    """Write the view of a plan to a file, or print it where it is named -."""
    require_extra()
    check_folder(out)
    from planner.views.plan_page import plan_html
    from planner.views.plan_view import plan_view, trace_file

    model, cluster, problem, plan = opened(reference)
    options = options_of(reference)
    view = plan_view(
        model, cluster, problem, plan, calibration=options.calibration, reference=reference,
        framework=options.framework if options.framework != "default" else "any",
    )  # fmt: skip
    write_text(out, plan_html(view, trace_file(problem, plan)))
