"""The report of `check` as text of at most 100 columns, and as JSON."""

import json
from collections.abc import Sequence

from planner.analyze.check import Change, Report
from planner.frameworks.runs.existing_run import Doubt
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.text_lines import wrapped
from planner.units import GIB, format_percent
from searches.frameworks.registry import framework_rules
from searches.frameworks.rule import Broken

WHEN = {
    "parse": "when it reads its configuration",
    "start": "when it starts",
    "first step": "at the first step",
}
"""When a framework refuses something, in words."""


def check_report_json(report: Report) -> str:
    """Return the JSON text: the same bytes for the same inputs."""
    return json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n"


def check_report_text(report: Report) -> str:
    """Return the report as a terminal shows it."""
    run, title = report.run, framework_rules(report.run.framework).title
    lines = heading_lines(run.source, run.format, run.framework, report.release)
    lines += _job_lines(report)
    lines.append("")
    lines += _refusal_lines(report, title)
    lines += _price_lines(report)
    lines += _standing_lines(report)
    lines += _change_lines(report)
    lines += _note_lines(report)
    return "\n".join(lines) + "\n"


def heading_lines(source: str, form: str, framework: str, release: str) -> list[str]:
    """Return which file was checked as what."""
    kind = f"{_article(form)} {form}"
    return wrapped(
        f"{source}:", f"{kind}, checked as {framework_rules(framework).title} {release}"
    )


def _article(noun: str) -> str:
    return "an" if noun[:1] in "AEIOaeio" else "a"


def _job_lines(report: Report) -> list[str]:
    lines = []
    if report.model:
        shape, job = report.model.shape, report.model.job
        lines += wrapped(
            " ",
            f"{shape.name}: {shape.layers} layers, hidden {shape.hidden}, sequences of"
            f" {job.seq_len}, global batch {job.global_batch}, {job.precision}",
        )
    pool = report.cluster.cluster.pools[0]
    lines += wrapped(
        " ", f"on {pool.n_devices} x {pool.accelerator.name} in {pool.n_nodes} node(s)"
    )
    return lines


def _refusal_lines(report: Report, title: str) -> list[str]:
    fork, lines = report.run.fork, []
    if report.partial:
        lines = ["read in part:"]
        for text in _doubt_texts(report.run.doubts):
            lines += wrapped("  not understood:", text, indent=4)
    held = "of what is understood, none" if report.partial else "none"
    messages = f"{title} accepts it: {held} of its rules is broken", f"{title} refuses it:"
    if fork:
        rules = f"a rule on sizes that {fork} shares with {title}"
        nothing = "of what is understood, nothing" if report.partial else "nothing"
        messages = f"{nothing} breaks {rules}", f"it breaks {rules}:"
    if not report.refusals:
        return [*lines, *wrapped("", messages[0])]
    lines += wrapped("", messages[1])
    for broken in report.refusals:
        lines += _broken_lines(broken)
    return lines


def _doubt_texts(doubts: Sequence[Doubt]) -> list[str]:
    """Return one sentence for all doubts of the same cause."""
    causes: dict[tuple[str, str], list[str]] = {}
    for doubt in doubts:
        where = f" (line {doubt.line})" if doubt.line else ""
        causes.setdefault((doubt.why, doubt.assumed), []).append(doubt.what + where)
    return [f"{', '.join(named)}: {why}; {assumed}" for (why, assumed), named in causes.items()]


def _broken_lines(broken: Broken) -> list[str]:
    rule = broken.rule
    lines = wrapped(f"  {rule.code}", f"{broken.reason} ({WHEN[rule.when]})", indent=9)
    return lines + wrapped("         closest:", broken.closest, indent=11)


def _price_lines(report: Report) -> list[str]:
    plan = report.plan
    if plan is None:
        return wrapped("not priced:", report.not_priced)
    lines = []
    if report.repairs:
        lines += wrapped("priced as the nearest that divides:", "; ".join(report.repairs))
    low, high = plan.step_time_p10_s, plan.step_time_p90_s
    lines += wrapped(f"plan {plan.plan_id}:", shown_layout(plan.layout))
    lines += _memory_lines(report, plan)
    lines += wrapped(
        "step",
        f"{plan.step_time_s:.3f} s ({low:.2f} - {high:.2f} s in 8 of 10 cases),"
        f" {plan.tokens_per_s_per_device:,.0f} tokens/s/device, MFU {format_percent(plan.mfu)}",
    )
    return lines


def _memory_lines(report: Report, plan: Plan) -> list[str]:
    if not report.memory_not_judged:
        return [_memory_line(plan)]
    peak, usable = plan.breakdown.peak_bytes / GIB, plan.usable_bytes / GIB
    text = (
        f"priced without {report.memory_not_judged} it would need {peak:.1f} of {usable:.1f} GiB"
    )
    return wrapped("memory not judged:", text)


def _memory_line(plan: Plan) -> str:
    peak, usable, stage = plan.breakdown.peak_bytes, plan.usable_bytes, plan.breakdown.peak_stage
    where = f"stage {stage} needs {peak / GIB:.1f} of {usable / GIB:.1f} GiB usable"
    if peak <= usable:
        return f"fits: {where}, {format_percent(1 - peak / usable)} free"
    return f"does not fit: {where}, {(peak - usable) / GIB:.1f} GiB too many"


def _standing_lines(report: Report) -> list[str]:
    standing = report.standing
    if standing is None or report.plan is None:
        return []
    if standing.best is None or standing.ratio is None:
        return ["against the best plan: no plan of this framework fits on these devices"]
    text = f"{standing.ratio:.2f} times its step"
    if standing.rank is not None and standing.rank <= standing.n_fit:
        text += f", rank {standing.rank:,} of {standing.n_fit:,} plans that fit"
    elif standing.rank is not None:
        text += f", behind all {standing.n_fit:,} plans that fit"
    if standing.stopped:
        text += f" (the search was stopped: {standing.stopped})"
    best = standing.best
    lines = wrapped("against the best plan:", text)
    return lines + wrapped(
        "  best:",
        f"{best.plan_id} {shown_layout(best.layout)}, {best.step_time_s:.3f} s,"
        f" {best.breakdown.peak_bytes / GIB:.1f} GiB",
    )


def _change_lines(report: Report) -> list[str]:
    if report.plan is None:
        return []
    if not report.changes:
        if report.fits:
            return ["no single change saves half a per cent of the step"]
        return [
            "no single change makes it surely fit"
            if report.fits is None
            else "no single change makes it fit"
        ]
    lines = ["most valuable changes:" if report.fits else "what would make it fit:"]
    if report.fits is None:
        lines = ["what would surely fit:"]
    for i, change in enumerate(report.changes, start=1):
        lines += _change_line(i, change)
    return lines


def _change_line(number: int, change: Change) -> list[str]:
    gain = f"{change.step_s:.3f} s ({-change.gain_frac:+.1%})"
    memory = f"{change.peak_bytes / GIB:.1f} GiB"
    lines = wrapped(f"  {number}", f"{change.text}: {gain}, {memory}", indent=4)
    if change.words:
        lines += wrapped("      write", ", ".join(change.words), indent=8)
    return lines


def _note_lines(report: Report) -> list[str]:
    lines: list[str] = []
    model = report.run.model
    assumed = (*report.run.assumed, *(model.assumptions if model else ()))
    for text in assumed:
        lines += wrapped("assumed:", text)
    for broken in report.unwritten:
        lines += wrapped(
            "note:", f"{broken.rule.code}: planner writes no such plan: {broken.text}"
        )
    for broken in report.ignored:
        lines += wrapped(f"warning {broken.rule.code}:", broken.text)
    for note in report.notes:
        lines += wrapped("note:", note)
    if report.plan:
        for warning in report.plan.warnings:
            lines += wrapped(f"warning {warning.code}:", warning.text)
    return lines
