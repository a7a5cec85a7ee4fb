"""What an existing run means: what its framework refuses, whether it fits, what would help."""

from collections.abc import Sequence

from planner.analyze.check.report import Change, Report
from planner.documents import Blank, Paragraph, Part
from planner.frameworks.runs.existing_run import Doubt
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.solver.answer.utilization import mfu_words
from planner.text_lines import with_article
from planner.units import GIB, format_percent
from searches.frameworks.registry import framework_rules
from searches.frameworks.rule import Broken

WHEN = {
    "parse": "when it reads its configuration",
    "start": "when it starts",
    "first step": "at the first step",
}
"""When a framework refuses something."""


def check_document(report: Report) -> list[Part]:
    """Return the verdict, the price, the place among other plans, and what would help."""
    run = report.run
    return [
        *source_parts(run.source, run.format, run.framework, report.release),
        *_job_parts(report),
        Blank(),
        *refusal_parts(report, framework_rules(run.framework).title),
        *_price_parts(report),
        *_standing_parts(report),
        *change_parts(report),
        *note_parts(report),
    ]


def source_parts(source: str, form: str, framework: str, release: str) -> list[Part]:
    """Return which file was checked as what."""
    text = f"{with_article(form)}, checked as {framework_rules(framework).title} {release}"
    return [Paragraph(text, label=f"{source}:")]


def _job_parts(report: Report) -> list[Part]:
    parts: list[Part] = []
    if report.model:
        shape, job = report.model.shape, report.model.job
        text = (
            f"{shape.name}: {shape.layers} layers, hidden {shape.hidden}, sequences of"
            f" {job.seq_len}, global batch {job.global_batch}, {job.precision}"
        )
        parts.append(Paragraph(text, label=" "))
    pool = report.cluster.cluster.pools[0]
    text = f"on {pool.n_devices} x {pool.accelerator.name} in {pool.n_nodes} node(s)"
    return [*parts, Paragraph(text, label=" ")]


def refusal_parts(report: Report, title: str) -> list[Part]:
    """Return whether the framework accepts a run, and the rules that it breaks."""
    fork = report.run.fork
    parts: list[Part] = []
    if report.partial:
        parts.append(Paragraph("read in part:"))
        for text in _doubt_texts(report.run.doubts):
            parts.append(Paragraph(text, label="  not understood:", indent=4))
    none = "of what is understood, none" if report.partial else "none"
    accepted, refused = (
        f"{title} accepts it: {none} of its rules is broken",
        f"{title} refuses it:",
    )
    if fork:
        rules = f"a rule on sizes that {fork} shares with {title}"
        nothing = "of what is understood, nothing" if report.partial else "nothing"
        accepted, refused = f"{nothing} breaks {rules}", f"it breaks {rules}:"
    if not report.refusals:
        return [*parts, Paragraph(accepted)]
    parts.append(Paragraph(refused))
    for broken in report.refusals:
        parts += _broken_parts(broken)
    return parts


def _doubt_texts(doubts: Sequence[Doubt]) -> list[str]:
    """Return one sentence for all doubts of the same cause."""
    causes: dict[tuple[str, str], list[str]] = {}
    for doubt in doubts:
        where = f" (line {doubt.line})" if doubt.line else ""
        causes.setdefault((doubt.why, doubt.assumed), []).append(doubt.what + where)
    return [f"{', '.join(named)}: {why}; {assumed}" for (why, assumed), named in causes.items()]


def _broken_parts(broken: Broken) -> list[Part]:
    rule = broken.rule
    reason = f"{broken.reason} ({WHEN[rule.when]})"
    return [
        Paragraph(reason, label=f"  {rule.code}", indent=9),
        Paragraph(broken.closest, label="         closest:", indent=11),
    ]


def _price_parts(report: Report) -> list[Part]:
    plan = report.plan
    if plan is None:
        return [Paragraph(report.not_priced, label="not priced:")]
    parts: list[Part] = []
    if report.repairs:
        label = "priced as the nearest that divides:"
        parts.append(Paragraph("; ".join(report.repairs), label=label))
    low, high = plan.step_time_p10_s, plan.step_time_p90_s
    step = (
        f"{plan.step_time_s:.3f} s ({low:.2f} - {high:.2f} s, 80 % interval),"
        f" {plan.tokens_per_s_per_device:,.0f} tokens/s/device, {mfu_words(plan)}"
    )
    return [
        *parts,
        Paragraph(shown_layout(plan.layout), label=f"plan {plan.plan_id}:"),
        _memory_part(report, plan),
        Paragraph(step, label="step"),
    ]


def _memory_part(report: Report, plan: Plan) -> Part:
    peak, usable, stage = plan.breakdown.peak_bytes, plan.usable_bytes, plan.breakdown.peak_stage
    if report.memory_not_judged:
        text = (
            f"priced without {report.memory_not_judged} it would need {peak / GIB:.1f} of "
            f"{usable / GIB:.1f} GiB"
        )
        return Paragraph(text, label="memory not judged:")
    where = f"stage {stage} needs {peak / GIB:.1f} of {usable / GIB:.1f} GiB usable"
    if peak <= usable:
        return Paragraph(f"fits: {where}, {format_percent(1 - peak / usable)} free")
    return Paragraph(f"does not fit: {where}, {(peak - usable) / GIB:.1f} GiB too many")


def _standing_parts(report: Report) -> list[Part]:
    standing, lead = report.standing, "against the best plan:"
    if standing is None or report.plan is None:
        return []
    if standing.best is None or standing.ratio is None:
        return [Paragraph("no plan of this framework fits on these devices", label=lead)]
    text = f"{standing.ratio:.2f} times its step"
    if standing.rank is not None and standing.rank <= standing.n_fit:
        text += f", rank {standing.rank:,} of {standing.n_fit:,} plans that fit"
    elif standing.rank is not None:
        text += f", behind all {standing.n_fit:,} plans that fit"
    if standing.stopped:
        text += f" (the search was stopped: {standing.stopped})"
    best = standing.best
    shown = (
        f"{best.plan_id} {shown_layout(best.layout)}, {best.step_time_s:.3f} s,"
        f" {best.breakdown.peak_bytes / GIB:.1f} GiB"
    )
    return [Paragraph(text, label=lead), Paragraph(shown, label="  best:")]


def change_parts(report: Report) -> list[Part]:
    """Return the changes that are worth most, or that make a run fit; none of one not priced."""
    if report.not_priced:
        return []
    lead, nothing = "what would make it fit:", "no single change makes it fit"
    if report.fits is None:
        lead, nothing = "what would surely fit:", "no single change makes it surely fit"
    elif report.fits:
        lead = "most valuable changes:"
        nothing = "no single change saves half a per cent of the step"
    if not report.changes:
        return [Paragraph(nothing)]
    changes = enumerate(report.changes, start=1)
    return [Paragraph(lead), *(x for i, change in changes for x in _one_change_parts(i, change))]


def _one_change_parts(number: int, change: Change) -> list[Part]:
    gain = f"{change.step_s:.3f} s ({-change.gain_frac:+.1%})"
    memory = f"{change.peak_bytes / GIB:.1f} GiB"
    text = f"{change.text}: {gain}, {memory}"
    parts: list[Part] = [Paragraph(text, label=f"  {number}", indent=4)]
    if change.settings:
        parts.append(Paragraph(", ".join(change.settings), label="      write", indent=8))
    return parts


def note_parts(report: Report) -> list[Part]:
    """Return what was assumed, what is ignored, and notes."""
    labelled = [("assumed:", text) for text in report.assumed]
    labelled += [
        ("note:", f"{broken.rule.code}: planner writes no such plan: {broken.text}")
        for broken in report.unwritten
    ]
    labelled += [(f"warning {broken.rule.code}:", broken.text) for broken in report.ignored]
    labelled += [("note:", note) for note in report.notes]
    if report.plan:
        labelled += [(f"warning {x.code}:", x.text) for x in report.plan.warnings]
    return [Paragraph(text, label=label) for label, text in labelled]
