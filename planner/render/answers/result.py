"""What a search found: the plans, why the first is first, what is proven; or why nothing fits."""

from planner.documents import Blank, Bullets, Code, Paragraph, Part
from planner.render.answers.inputs import job_parts, note_parts
from planner.render.answers.plan import sample_parts
from planner.render.answers.plan_table import columns_of, has_no_length, plan_grid, stage_parts
from planner.render.answers.together import together_document
from planner.render.nouns import noun_of
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import (
    Certificate,
    Counts,
    Relaxation,
    Result,
    UnevenTried,
)
from planner.solver.answer.uncertainty import MARGIN_COST_FRAC, TIE_FRAC
from planner.solver.calibration.intervals import regime_words
from planner.solver.margins import tie_words
from planner.specs.search.objectives import BEST, NONE_BETTER
from planner.units import GIB
from searches.rules import RULES

MAX_REJECTIONS = 4
"""Rules named under the table; the JSON has all of them."""
DUPLICATES = ("SP001", "ZER002", "REC001", "SCH001")
"""Rules that only keep a plan from being counted twice: never the reason why nothing fits."""


def heading_parts(result: Result) -> list[Part]:
    """Return what stands above the table: the job, the cluster, the space.

    What an imported file left open and was assumed stands under the job.
    """
    return [*job_parts(result), *_space_parts(result.counts), *_count_parts(result)]


def _space_parts(counts: Counts) -> list[Part]:
    """Return how large the space is, and what became of the legal plans."""
    shapes = f"{counts.candidate_shapes:,} shapes -> {counts.shapes:,} legal"
    if not counts.excluded:
        return [Paragraph(f"{shapes} -> {counts.space:,} plans -> {counts.fit:,} fit")]
    return [
        Paragraph(f"{shapes} -> {counts.space:,} plans:"),
        Paragraph(
            f"{counts.fit:,} fit, {counts.pruned:,} do not, {counts.excluded:,} are too slow by a "
            "lower bound"
        ),
    ]


BY_STEP_TIME = ("step_time", "tokens_per_s")
"""Objectives of which the proof speaks, on one number of devices."""


def proof_text(result: Result) -> str:
    """Return what is proven about the best plan, and what is not."""
    outcome = result.certificate
    assert outcome is not None  # asked for answers with plans
    if outcome.only_uneven:
        return _uneven_only(result, outcome)
    over = outcome.bound_s is not None and result.counts.excluded
    rest = f", {result.counts.excluded:,} take more than {outcome.bound_s:.2f} s" if over else ""
    line = (
        f"{proof_lead(result)}none of "
        f"{result.counts.space:,} plans is faster than {outcome.fastest_s:.3f} s; "
        f"{outcome.simulated:,} were simulated{rest}"
    )
    if not outcome.uneven_shapes:
        return line
    gap = f", the others to {outcome.uneven_gap_frac:.2%}" if outcome.uneven_gap_frac else ""
    shapes = f"{outcome.uneven_shapes} shape{'s' * (outcome.uneven_shapes > 1)}"
    return (
        f"{line}. Besides them layers of {shapes} were split unevenly, "
        f"{outcome.uneven_proven} as well as can be{gap}"
    )


def proof_lead(result: Result) -> str:
    """Return how a proof begins: by step time, or in the words of the objective asked for.

    Every number of devices was searched, or its bound is worse than the best by the objective; the
    first plan is within the ties of that, and further behind by what the memory margin may cost
    where better plans fill the memory. Memory comes from the front of closed-form times.
    """
    objective, pareto = _objective(result), result.inputs["options"].get("pareto")
    if not pareto and objective in BY_STEP_TIME:
        return "proven: "
    is_complete = result.complete and not any(d.n_left for d in result.devices)
    if pareto:
        return f"proven of the step time alone, not of the front of {', '.join(pareto)}: "
    if not is_complete or objective not in NONE_BETTER:
        return f"proven of the step time alone, not of {objective}: "
    margin = result.margin
    behind = TIE_FRAC + MARGIN_COST_FRAC * (margin is not None and margin.fastest is not None)
    better = NONE_BETTER[objective].format(margin=f" over {behind:.0%}")
    return f"proven: no plan {better} than the first; "


def _uneven_only(result: Result, certificate: Certificate) -> str:
    """Return what is known where every plan has an uneven split."""
    gap = (
        f", the others to {certificate.uneven_gap_frac:.2%}" if certificate.uneven_gap_frac else ""
    )
    return (
        f"not proven to be {BEST[_objective(result)]}: none of {result.counts.space:,} plans with "
        f"an even split or one of ends fits. Of the shapes that need least memory, layers of "
        f"{certificate.uneven_shapes} were split so that they fit, "
        f"{certificate.uneven_proven} as well as can be{gap}; other shapes, and another mbs, "
        "ZeRO stage or set of recomputed modules, were not tried with an uneven split"
    )


def _objective(result: Result) -> str:
    return str(result.inputs["options"].get("objective", BY_STEP_TIME[0]))


def _count_parts(result: Result) -> list[Part]:
    """Return what became of the other numbers of devices."""
    n_named = len(result.devices)
    if result.inputs["options"].get("objective") == "devices" and result.plans:
        n_named = 0
    numbers = (
        (sum(len(d.searched) for d in result.devices) - n_named, "searched"),
        (sum(d.n_excluded for d in result.devices), "excluded by a bound"),
        (sum(d.n_without_layout for d in result.devices), "without a layout"),
        (sum(d.n_left for d in result.devices), "not looked at"),
    )
    parts = [f"{n:,} {what}" for n, what in numbers if n > 0]
    if not parts:
        return []
    return [Paragraph(", ".join(parts), label="numbers of devices besides:")]


def rejection_text(result: Result) -> str:
    """Return the most frequent rejections in one line."""
    counted = sorted(
        (r for r in result.rejected if r.code not in DUPLICATES), key=lambda r: (-r.n, r.code)
    )
    parts = [f"{r.code} {RULES[r.code].title} {r.n:,}" for r in counted[:MAX_REJECTIONS]]
    more = len(result.rejected) - len(parts)
    return " | ".join(parts) + (f" | {more} more rules in --format json" if more > 0 else "")


def _days_text(result: Result) -> str:
    """Return what the days of the table count, where others of the answer count more."""
    options = result.inputs["options"]
    goals = options.get("pareto") or [options.get("objective", "step_time")]
    counted = [goal for goal in ("cost", "energy") if goal in goals]
    more = f"; {' and '.join(counted)}: with them" if counted else ""
    return (
        f"days: training alone, without failures and checkpoints (planner show: with them){more}"
    )


def result_document(result: Result) -> list[Part]:
    """Return the whole answer of a search besides its card: the table, and all details."""
    lead = [*heading_parts(result), *stopped_parts(result), Blank()]
    if result.together is not None:
        lead = [*together_document(result.together), Blank(), *lead]
    if not result.plans:
        return [*lead, *infeasible_parts(result)]
    grid = plan_grid(result.plans, columns_of(result))
    legend = [*mark_parts(result), *_legend_parts(result), Blank()]
    return [*lead, grid, *legend, *_reason_parts(result)]


def detail_parts(result: Result) -> list[Part]:
    """Return counts, what columns mean, why the first plan is first, and rejections."""
    parts = [*heading_parts(result), Blank(), *_legend_parts(result), Blank()]
    return [*parts, *_reason_parts(result)]


def stopped_parts(result: Result) -> list[Part]:
    """Return that the search was stopped, and how far from the best its plans may be."""
    if not result.stopped:
        return []
    gap = "" if result.gap is None else f", at most {result.gap:.1%} from the best there is"
    outcome = f"best so far{gap}" if result.plans else "no plan was found so far"
    return [Paragraph(f"stopped ({result.stopped}): {outcome}")]


def mark_parts(result: Result) -> list[Part]:
    """Return what the marks before plans mean, and what no framework runs."""
    plans = result.plans
    parts: list[Part] = []
    if sum(plan.tie for plan in plans) > 1:
        parts.append(Paragraph(f"= within model error of {_best_words(result)}"))
    if any(plan.group == 1 and not plan.tie for plan in plans[1:]):
        parts.append(
            Paragraph("~ the model tells it from the first plan in fewer than 4 of 5 cases")
        )
    if not any(plan.runs_on for plan in plans):
        text = "no framework that plans are written for runs these plans: prices, no launch files"
        parts.append(Paragraph(text))
    return parts


def _legend_parts(result: Result) -> list[Part]:
    """Return what the columns mean, and which plans a row stands for."""
    plans, first = result.plans, result.plans[0]
    parts = stage_parts(plans)
    if any(plan.n_variants > 1 for plan in plans):
        counts = ", ".join(str(plan.n_variants) for plan in plans)
        text = f"each is the best of its tp, pp, cp, ep; they stand for {counts} plans"
        parts.append(Paragraph(f"{text} (--all-variants lists them)"))
    mfu = f"MFU: Megatron's model FLOPs ({_attention_words(result)}, no recompute) over dense peak"
    if result.inputs["model"].get("model", {}).get("diffusion"):
        mfu = "MFU: model FLOPs (all pairs of tokens, no recompute) over dense peak"
    if "lora" in result.inputs["model"].get("training", {}):
        counted = f"4 FLOPs a frozen weight ({_attention_words(result)}, no recompute)"
        mfu = f"MFU: {counted} over dense peak"
    if any(plan.mfu_over_bf16 is not None for plan in plans):
        mfu += " of the matrix products; bf16%: over that of bf16, as papers print it"
    parts.append(Paragraph(mfu))
    parts += sample_parts(first)
    if first.training_s is not None:
        parts.append(Paragraph(_days_text(result)))
    elif has_no_length(result):
        text = "min/Mtok: minutes of a million tokens; with --tokens of the run its days are shown"
        parts.append(Paragraph(text))
    if pareto := result.inputs["options"].get("pareto"):
        text = f"the front of {', '.join(pareto)}: no plan beats another in all of them"
        parts.append(Paragraph(text))
    return parts


def _attention_words(result: Result) -> str:
    """Return how the FLOPs of MFU count attention: in full where layers see both sides."""
    runs = result.inputs["model"]["model"].get("layer_kinds") or ()
    if any(str(run["kind"]).startswith("bidirectional") for run in runs):
        return "attention to both sides counted in full"
    return "causal attention halved"


def _best_words(result: Result) -> str:
    return tie_words(_objective(result), result.margin, result.plans[0].step_time_s)


def _reason_parts(result: Result) -> list[Part]:
    """Return why the first plan is first, how sure that is, and what was rejected."""
    first, certificate = result.plans[0], result.certificate
    parts: list[Part] = [
        Paragraph(reason, label=f"why {first.plan_id}:" if i == 0 else " ")
        for i, reason in enumerate(result.why_first)
    ]
    low, high = first.step_time_p10_s, first.step_time_p90_s
    interval = (
        f"80 % interval {low:.2f} to {high:.2f} s, calibrated on "
        f"{regime_words(first.interval_regime, noun_of(result))}"
    )
    parts.append(Paragraph(interval, label="  step time"))
    if certificate and (certificate.proven or (certificate.only_uneven and result.complete)):
        parts.append(Paragraph(proof_text(result), label=" "))
    if any(x.changes == "numerics" for x in result.alternatives):
        parts.append(Paragraph(_alternatives_text(result), label="other precisions:"))
    parts += note_parts(result.notes)
    parts += [Paragraph(x.text, label=f"warning {x.code}:") for x in first.warnings]
    if result.rejected:
        parts.append(Paragraph(rejection_text(result), label="rejected:"))
    return parts


def infeasible_parts(result: Result) -> list[Part]:
    """Return the answer when there is no plan: reasons, the closest miss, what would help."""
    changes = (
        part
        for change in result.relaxations
        for part in (relaxation_part(change), Code((f"    {change.command}",)))
    )
    return [*cause_parts(result), *help_parts(result), *changes]


def cause_parts(result: Result) -> list[Part]:
    """Return why there is no plan: conflicts, rejections, the closest miss."""
    if result.stopped:
        text = f"None of the {result.counts.space:,} legal plans that were looked at is one."
        return [Paragraph(text)]
    if _limits(result):
        return [Paragraph("No plan keeps the limits.")]
    lead = f"Nothing fits: all {result.counts.space:,} legal plans exceed the memory."
    if result.counts.space == 0:
        lead = "No layout is legal: every combination breaks a rule."
    parts: list[Part] = [Paragraph(lead)]
    for conflict in result.conflicts:
        what = "These cannot all hold" if len(conflict.parts) > 1 else "This cannot hold"
        parts.append(Paragraph(f"{what} on {_n_devices(result)} devices (tp * pp * cp * dp):"))
        parts += [Paragraph(part.text, label=f"  {part.code}") for part in conflict.parts]
    parts.append(Paragraph("Rejected:"))
    for r in sorted(result.rejected, key=lambda r: (*_weight(r.code), -r.n)):
        rule = RULES[r.code]
        if r.code not in DUPLICATES:
            label = f"  {r.code} {rule.title}: {r.n:,} {r.of}."
            parts.append(Paragraph(rule.why, label=label))
    if result.closest:
        miss = result.closest
        over = miss.peak_bytes - miss.usable_bytes
        text = (
            f"{shown_layout(miss.layout)} needs {miss.peak_bytes / GIB:.1f} GiB, "
            f"{miss.usable_bytes / GIB:.1f} usable ({over / GIB:.1f} too many)"
        )
        parts.append(Paragraph(text, label="closest:"))
    if result.uneven_tried:
        parts.append(Paragraph(_tried_text(result.uneven_tried), label="uneven splits:"))
    return parts


def help_parts(result: Result) -> list[Part]:
    """Return what would help where there is no plan: the lead of a list of changes."""
    if result.stopped:
        return [Paragraph("A longer --time-limit, or --pin, --only or --max, finds more.")]
    limits = _limits(result)
    if limits:
        return [Bullets(limits, " ")]
    if not result.relaxations:
        many = noun_of(result).many
        none = f"No single change that was tried helps: more {many}, precision, sequence, pins."
        return [Paragraph(none)]
    return [Paragraph("What would help, the smallest change first:")]


def _limits(result: Result) -> tuple[str, ...]:
    """Return the limits that no plan keeps, as notes say them."""
    return tuple(x.removeprefix("limit: ") for x in result.notes if x.startswith("limit: "))


def _alternatives_text(result: Result) -> str:
    """Return what other numbers of the job bring to the first plan."""
    first = result.plans[0]
    parts = []
    numeric = [x for x in result.alternatives if x.changes == "numerics"]
    for x in numeric:
        gain = f"{first.step_time_s:.2f} -> {x.step_time_s:.2f} s"
        if x.step_time_s > first.step_time_s * 0.99:
            gain = f"{first.breakdown.peak_bytes / GIB:.1f} -> {x.peak_bytes / GIB:.1f} GiB"
        over = "" if x.fits else f" (in {x.peak_bytes / GIB:.1f} GiB: not in this layout)"
        parts.append(f"{x.pin} {gain}{over}")
    pin = numeric[0].pin
    return (
        f"{' | '.join(parts)}; off by default since they change"
        f" the numerics; enable with --pin {pin}"
    )


def _tried_text(tried: UnevenTried) -> str:
    """Return what came of uneven splits where nothing fits."""
    shapes = "the shape" if tried.shapes == 1 else f"the {tried.shapes} shapes"
    need = "needs" if tried.shapes == 1 else "need"
    if tried.hopeless == tried.shapes:
        whose = "its" if tried.shapes == 1 else "their"
        proof = f"proven that no split of {whose} layers fits"
        return f"tried on {shapes} that {need} least memory: {proof}"
    return (
        f"tried on {shapes} that {need} least memory: none found that fits, and for "
        f"{tried.hopeless} of them proven that there is none"
    )


def _n_devices(result: Result) -> int:
    pinned = result.inputs["options"].get("pins", {}).get("devices")
    pool = result.inputs["cluster"]["pools"][0]
    return int(pinned or pool["nodes"] * pool["accelerators_per_node"])


def _weight(code: str) -> tuple[int, str]:
    """Return the place of a rule among the reasons: the user's own limits first, then memory."""
    first = ("PIN001", "MEM001", "MEM000", "FRM001", "BAT001", "BAT002", "DP001")
    return (first.index(code), "") if code in first else (len(first), code)


def relaxation_part(relaxation: Relaxation) -> Paragraph:
    """Return one change that would help, with the layout that then is best."""
    best = ""
    if relaxation.layout and relaxation.step_time_s:
        best = f" ({shown_layout(relaxation.layout)}, {relaxation.step_time_s:.2f} s a step)"
    return Paragraph(relaxation.change + best, label=" ")
