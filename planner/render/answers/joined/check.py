"""An existing run over several pools: verdict, memory and time of each stage by its pool."""

from planner.analyze.joined.check import JoinedReport
from planner.analyze.joined.explanation import JoinedExplanation
from planner.analyze.joined.standing import JoinedStanding
from planner.analyze.sharded.explanation import ShardedExplanation
from planner.documents import Blank, Paragraph, Part
from planner.render.answers.check import change_parts, note_parts, refusal_parts, source_parts
from planner.render.answers.joined.explanation import binding_parts, kind_parts, link_text
from planner.render.answers.joined.replicas import deciding_parts, replica_parts
from planner.render.answers.together import counted, plan_words, replicas_text
from planner.solver.answer.reasons import shown_layout
from planner.solver.together.words import pipelines_text
from planner.units import GIB, format_percent
from searches.frameworks.registry import framework_rules


def joined_check_document(report: JoinedReport) -> list[Part]:
    """Return the verdict, whether every stage fits, and what binds the step."""
    run = report.run
    parts = source_parts(run.source, run.format, run.framework, report.release)
    if report.model:
        shape, job = report.model.shape, report.model.job
        batch = f" global batch {job.global_batch}," if report.knows_batch else ""
        text = (
            f"{shape.name}: {shape.layers} layers, hidden {shape.hidden}, sequences of"
            f" {job.seq_len},{batch} {job.precision}"
        )
        parts.append(Paragraph(text, label=" "))
    if report.joined:
        parts.append(Paragraph(f"on {plan_words(report.joined.opened.plan)}", label=" "))
    parts += [Blank(), *refusal_parts(report, framework_rules(run.framework).title)]
    parts += _price_parts(report)
    return [*parts, *note_parts(report)]


def _price_parts(report: JoinedReport) -> list[Part]:
    """Return memory and step of a run that is priced, by kind of pipelines and stage."""
    found = report.joined
    if found is None:
        return [Paragraph(report.not_priced, label="not priced:")]
    plan, full = found.opened.plan, found.fullest_stage
    parts: list[Part] = []
    if report.repairs:
        label = "priced as the nearest that divides:"
        parts.append(Paragraph("; ".join(report.repairs), label=label))
    stage = "" if isinstance(found, ShardedExplanation) else f"stage {full.stage} on "
    where = (
        f"{stage}{full.pool} needs {full.peak_bytes / GIB:.1f} of"
        f" {full.usable_bytes / GIB:.1f} GiB usable"
    )
    free = 1.0 - full.peak_bytes / full.usable_bytes
    missing = f"{(full.peak_bytes - full.usable_bytes) / GIB:.1f} GiB too many"
    memory = (
        f"fits: {where}, {format_percent(free)} free"
        if report.fits
        else f"does not fit: {where}, {missing}"
    )
    each = plan.tokens_per_s / plan.n_devices
    parts += [
        Paragraph(memory),
        Paragraph(f"{plan.step_time_s:.3f} s, {each:,.0f} tokens/s/device", label="step"),
        Blank(),
        *_opened_parts(found),
    ]
    parts += [Blank(), *(Paragraph(link_text(x)) for x in found.links), Blank()]
    return [*parts, *_standing_parts(report), *change_parts(report)]


def _opened_parts(found: JoinedExplanation | ShardedExplanation) -> list[Part]:
    """Return what decides, and time and memory by kind of pipelines or replicas."""
    plan = found.opened.plan
    if isinstance(found, ShardedExplanation):
        text = replicas_text(plan)
        return [*deciding_parts(found), Blank(), Paragraph(text), *replica_parts(found)]
    parts = list(binding_parts(found))
    for i in range(1, len(plan.kinds) + 1):
        parts += [Blank(), *kind_parts(found, i)]
    return parts


def _standing_parts(report: JoinedReport) -> list[Part]:
    """Return the place of a run among the plans found, and the best of them."""
    standing, lead = report.standing, "against the best plan:"
    if not isinstance(standing, JoinedStanding):
        return []
    if standing.ratio is None:
        return [Paragraph("no plan of this framework was found on these nodes", label=lead)]
    text = f"{standing.ratio:.2f} times its step"
    n = standing.n_fit
    if standing.rank is not None and n:
        place = f"rank {standing.rank} of" if standing.rank <= n else "behind all"
        text += f", {place} the {counted(n, 'plan')} found over these pools"
    if standing.stopped:
        text += f" (the search was stopped: {standing.stopped})"
    parts: list[Part] = [Paragraph(text, label=lead)]
    if best := standing.joined:
        layers = pipelines_text(best)
        shown = f"{best.plan_id} {layers}, {best.step_time_s:.3f} s"
        parts.append(Paragraph(shown, label="  best over these pools:"))
    if alone := standing.alone:
        shown = f"{alone.plan_id} {shown_layout(alone.layout)}, {alone.step_time_s:.3f} s"
        parts.append(Paragraph(shown, label=f"  best on {alone.pool} alone:"))
    name = report.run.framework
    text = f"planner solve MODEL CLUSTER --pools together --framework {name}"
    return [*parts, Paragraph(text, label="all of them:")]
