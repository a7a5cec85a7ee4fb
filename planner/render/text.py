"""Results as text: a table of at most 100 columns, CSV, Markdown."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from costmodels.axes import AXES
from costmodels.plans import Layout
from costmodels.precision import PRECISIONS
from costmodels.schedule.stages import SPLITS
from planner.analyze.placement.text import tier_lines
from planner.solver.answer.reasons import shown_layout, stage_words
from planner.solver.answer.result import Certificate, Counts, Plan, Relaxation, Result, UnevenTried
from planner.solver.answer.uncertainty import TIE_FRAC
from planner.solver.answer.utilization import utilization_words
from planner.solver.calibration.intervals import regime_words
from planner.specs.search.axis_values import PRECISION
from planner.specs.search.objectives import BEST, NONE_BETTER
from planner.specs.search.objectives import COLUMNS as GOAL_COLUMNS
from planner.text_lines import REFERENCE, assumed_lines, note_lines, wrapped
from planner.units import GIB, format_gib, format_percent, format_size
from searches.rules import RULES

MAX_WIDTH = 100
DISPENSABLE = ("bubl", "comm", "sp", "MFU", "split")
"""Columns that give way, in this order, where the table would be wider than `MAX_WIDTH`."""
MAX_REJECTIONS = 4
"""Rules named under the table; the JSON has all of them."""
DUPLICATES = ("SP001", "ZER002", "REC001", "SCH001")
"""Rules that only keep a plan from being counted twice: never the reason why nothing fits."""


class Column(NamedTuple):
    """One column of the table."""

    title: str
    unit: str
    text: Callable[[Plan], str]


def _days(plan: Plan) -> str:
    return f"{plan.training_s / 86400:.1f}" if plan.training_s is not None else "-"


SHORT_MODULES = {
    "core_attn": "core",
    "moe_act": "act",
    "layernorm": "norm",
    "mla_up_proj": "up",
    "shared_experts": "shared",
}
"""Recomputed modules in a column; `mlp` and `moe` are short enough."""


def _recompute(plan: Plan) -> str:
    x = plan.layout
    if x.recompute_text != x.recompute:
        return "+".join(SHORT_MODULES.get(name, name) for name in x.recompute_modules)
    if x.recompute != "full":
        return x.recompute
    return "full" if x.recompute_layers >= max(x.stage_layers) else f"full:{x.recompute_layers}"


def _split(layout: Layout) -> str:
    if layout.pp == 1:
        return "-"
    return layout.split if layout.split in SPLITS else "uneven"


COLUMNS = (
    Column("plan", "", lambda p: p.plan_id),
    Column("tp", "", lambda p: str(p.layout.tp)),
    Column("pp", "", lambda p: str(p.layout.pp)),
    Column("dp", "", lambda p: str(p.layout.dp)),
    Column("vpp", "", lambda p: str(p.layout.vpp)),
    Column("zero", "", lambda p: str(p.layout.zero)),
    Column("mbs", "", lambda p: str(p.layout.mbs)),
    Column("sp", "", lambda p: "y" if p.layout.sp else "-"),
    Column("split", "", lambda p: _split(p.layout)),
    Column("recomp", "", _recompute),
    Column("step", "s", lambda p: f"{p.step_time_s:.3f}"),
    Column("tok/s", "/dev", lambda p: f"{p.tokens_per_s_per_device:,.0f}"),
    Column("MFU", "%", lambda p: f"{p.mfu * 100:.1f}"),
    Column("mem", "GiB", lambda p: format_gib(p.breakdown.peak_bytes)),
    Column("bubl", "%", lambda p: f"{p.breakdown.bubble_frac * 100:.1f}"),
    Column("comm", "%", lambda p: f"{p.breakdown.exposed_comm_frac * 100:.1f}"),
    Column("days", "", _days),
)


def _context(plan: Plan) -> str:
    """Return the degree with the first letter of the exchange: 2p, 4g (all-gather), 8a."""
    letters = {"": "", "p2p": "p", "all-gather": "g", "a2a": "a"}
    return f"{plan.layout.cp}{letters[plan.layout.cp_comm]}"


def _inside(plan: Plan) -> str:
    return "y" if plan.layout.pipelines_inside else "-"


PLAIN_SCHEDULES = ("none", "1f1b", "interleaved")
"""Schedules that vpp tells apart."""


def _schedule(plan: Plan) -> str:
    return "int" if plan.layout.schedule == "interleaved" else plan.layout.schedule


def _optimizer(plan: Plan) -> str:
    return "y" if plan.layout.optimizer_offload else "-"


OPTIONAL: tuple[tuple[Column, Callable[[Layout], bool]], ...] = (
    (Column("cp", "pga", _context), lambda x: x.cp > 1),
    (Column("ep", "", lambda p: str(p.layout.ep)), lambda x: x.ep > 1),
    (Column("etp", "", lambda p: str(p.layout.etp)), lambda x: x.etp > 1),
    (Column("pp", "in dp", _inside), lambda x: x.pipelines_inside),
    (Column("tp", "ovl", lambda p: "y" if p.layout.tp_overlap else "-"), lambda x: x.tp_overlap),
    (
        Column("dp", "ovl", lambda p: "y" if p.layout.dp_overlap else "-"),
        lambda x: not x.dp_overlap,
    ),
    (Column("zero", "over", lambda p: str(p.layout.dp_shard)), lambda x: x.shard > 0),
    (
        Column("hpz", "", lambda p: str(p.layout.hpz) if p.layout.hpz > 1 else "-"),
        lambda x: x.hpz > 1,
    ),
    (Column("sched", "", _schedule), lambda x: x.schedule not in PLAIN_SCHEDULES),
    (Column("opt", "host", _optimizer), lambda x: x.optimizer_offload),
    (
        Column("act", "host", lambda p: str(p.layout.activation_offload_layers or "-")),
        lambda x: x.activation_offload,
    ),
)
"""Columns of axes that are off in most answers, shown where some plan uses them."""


def _mark(plan: Plan, many_ties: bool) -> str:
    if plan.rank == 1:
        return "*"
    if plan.tie and many_ties:
        return "="
    return "~" if plan.group == 1 else " "


def used_axes(plans: Sequence[Plan]) -> list[Column]:
    """Return the optional columns of axes that some plan uses."""
    return [column for column, on in OPTIONAL if any(on(plan.layout) for plan in plans)]


def columns_of(result: Result) -> tuple[Column, ...]:
    """Return the columns of the table: the pool too where there are several, axes that are used.

    The heading says which name belongs to which number; names would not fit into 100 columns.
    """
    names = [pool["name"] for pool in result.inputs["cluster"]["pools"]]
    first, tp, pp, *others = COLUMNS
    used = used_axes(result.plans)
    if any(plan.n_idle for plan in result.plans):
        used = [Column("dev", "", lambda p: str(p.layout.n_devices)), *used]
    options = result.inputs["options"]
    goals = options.get("pareto") or [options.get("objective", "step_time")]
    others = [*others, *(Column(*x) for goal in goals for x in GOAL_COLUMNS.get(goal, ()))]
    pool = Column("pool", "", lambda p: str(names.index(p.pool)))
    columns = [first, *[pool] * (len(names) > 1), tp, pp, *used, *others]
    if len({plan.precision for plan in result.plans}) > 1:
        columns.insert(1, Column("recipe", "", lambda p: p.precision))
    widths = [_column_width(column, result.plans) for column in columns]
    for title in DISPENSABLE:
        # A mark before them, and a space before each.
        if 1 + len(columns) + sum(widths) > MAX_WIDTH:
            kept = [i for i, column in enumerate(columns) if column.title != title]
            columns, widths = [columns[i] for i in kept], [widths[i] for i in kept]
    return tuple(columns)


def _column_width(column: Column, plans: Sequence[Plan]) -> int:
    """Return the characters of the widest cell of a column, its heading included."""
    return max(len(text) for text in (column.title, column.unit, *map(column.text, plans)))


def plan_rows(plans: Sequence[Plan], columns: Sequence[Column] = ()) -> list[str]:
    """Return the aligned lines of the plan table, header first.

    Without `columns` the usual ones, with those of axes that the plans use.
    """
    columns = columns or (*COLUMNS[:3], *used_axes(plans), *COLUMNS[3:])
    many_ties = sum(plan.tie for plan in plans) > 1
    cells = [[column.text(plan) for column in columns] for plan in plans]
    titles = [column.title for column in columns]
    units = [column.unit for column in columns]
    widths = [max(len(row[i]) for row in [titles, units, *cells]) for i in range(len(columns))]

    def line(mark: str, row: Sequence[str]) -> str:
        texts = [
            text.ljust(width) if column.title == "plan" else text.rjust(width)
            for column, text, width in zip(columns, row, widths, strict=True)
        ]
        return f"{mark} {' '.join(texts)}".rstrip()

    rows = [line(" ", titles), line(" ", units)]
    return rows + [
        line(_mark(plan, many_ties), row) for plan, row in zip(plans, cells, strict=True)
    ]


def stage_lines(plans: Sequence[Plan]) -> list[str]:
    """Return the layers of the virtual stages of the plans whose split has no name."""
    entries: dict[str, list[str]] = {}
    for plan in plans:
        if plan.layout.split not in SPLITS:
            entries.setdefault(stage_words(plan.layout.stage_layers), []).append(plan.plan_id)
    rows = [f"{words} in {', '.join(ids)}" for words, ids in entries.items()]
    return wrapped("layers of uneven stages:", "; ".join(rows)) if rows else []


def calibration_lines(
    options: Mapping[str, Any], calibration: Mapping[str, Any], notes: Sequence[str] = ()
) -> list[str]:
    """Return which numbers priced the plans, where they are not those that ship.

    With the measured runs that anchor them, and what `notes` say about those.
    """
    if "calibration" not in options:
        return []
    lines = wrapped("priced with", f"{calibration['name']} ({calibration['hash']})")
    factors = calibration.get("anchors") or {}
    shown = ", ".join(f"{name.replace('_', '-')} x{x:.3g}" for name, x in factors.items())
    if len(set(factors.values())) == 1:
        shown = f"all times x{next(iter(factors.values())):.3g}"
    if shown:
        lines += wrapped("anchored:", shown + (", by" if calibration["anchored_by"] else ""))
        lines += [f"  {run}" for run in calibration["anchored_by"]]
    for note in notes:
        if note.startswith(REFERENCE):
            lines += wrapped("reference:", note.removeprefix(REFERENCE))
    return lines


def result_heading(result: Result) -> list[str]:
    """Return the lines above the table: the job, the cluster (a line a pool), the space.

    What an imported file left open and was assumed stands under the job.
    """
    model, job = result.inputs["model"]["model"], result.inputs["model"]["training"]
    pools, c = result.inputs["cluster"]["pools"], result.counts
    parts = [_pool_words(pool) for pool in pools]
    if len(pools) > 1:
        parts = [
            f"pool {i} ({pool['name']}): {part}"
            for i, (pool, part) in enumerate(zip(pools, parts, strict=True))
        ]
    return [
        *wrapped(
            "",
            f"{model['name']}: {model['layers']} layers, hidden {model['hidden']}, sequences of "
            f"{job['seq_len']}, global batch {job['global_batch']}, {_recipes(result)}",
        ),
        *assumed_lines(result.notes),
        *wrapped("on", f"{', or '.join(parts)}, as {result.inputs['options']['stack']} runs it"),
        *calibration_lines(result.inputs["options"], result.calibration, result.notes),
        *_space_lines(c),
        *_count_lines(result),
    ]


def _recipes(result: Result) -> str:
    """Return the numeric recipes that were asked for, in words."""
    options = result.inputs["options"]
    named = options["only"].get(PRECISION, [])
    if PRECISION in options["pins"]:
        named = [options["pins"][PRECISION]]
    words = [PRECISIONS[i] for i in named]
    return " or ".join(words) or str(result.inputs["model"]["training"][PRECISION])


def _space_lines(counts: Counts) -> list[str]:
    """Return how large the space is, and what became of the legal plans."""
    shapes = f"{counts.candidate_shapes:,} shapes -> {counts.shapes:,} legal"
    if not counts.excluded:
        return [f"{shapes} -> {counts.space:,} plans -> {counts.fit:,} fit"]
    return [
        f"{shapes} -> {counts.space:,} plans:",
        f"{counts.fit:,} fit, {counts.pruned:,} do not, {counts.excluded:,} are too slow by a "
        "lower bound",
    ]


BY_STEP_TIME = ("step_time", "tokens_per_s")
"""Objectives of which the proof speaks, on one number of devices."""


def proof_line(result: Result) -> str:
    """Return what is proven about the best plan, and what is not."""
    outcome = result.certificate
    assert outcome is not None  # asked for answers with plans
    if outcome.only_uneven:
        return _uneven_only(result, outcome)
    over = outcome.bound_s is not None and result.counts.excluded
    rest = f", {result.counts.excluded:,} take more than {outcome.bound_s:.2f} s" if over else ""
    line = (
        f"{_proven_words(result)}none of "
        f"{result.counts.space:,} plans is faster than {outcome.fastest_s:.3f} s; "
        f"{outcome.simulated:,} were simulated{rest}"
    )
    if not outcome.uneven_shapes:
        return line
    gap = f", the others to {outcome.uneven_gap_frac:.2%}" if outcome.uneven_gap_frac else ""
    return (
        f"{line}. Besides them layers of {outcome.uneven_shapes} shapes were split unevenly, "
        f"{outcome.uneven_proven} as well as can be{gap}"
    )


def _proven_words(result: Result) -> str:
    """Return how the proof begins: by step time, or in the words of the objective asked for.

    Every number of devices was searched, or its bound is worse than the best by the objective; the
    first plan is within the ties of that. Memory comes from the front of closed-form times.
    """
    objective, pareto = _objective(result), result.inputs["options"].get("pareto")
    if not pareto and objective in BY_STEP_TIME:
        return "proven: "
    is_whole = result.complete and not any(d.n_left for d in result.devices)
    if pareto or not is_whole or objective not in NONE_BETTER:
        requested = ", ".join(pareto or [objective])
        return f"proven of the step time alone, not of {requested}: "
    better = NONE_BETTER[objective].format(margin=f" over {TIE_FRAC:.0%}")
    return f"proven: no plan {better} than the first; "


def _uneven_only(result: Result, found: Certificate) -> str:
    """Return what is known where every plan has an uneven split."""
    gap = f", the others to {found.uneven_gap_frac:.2%}" if found.uneven_gap_frac else ""
    return (
        f"not proven to be {BEST[_objective(result)]}: none of {result.counts.space:,} plans with "
        f"an even split or one of ends fits. Of the shapes that need least memory, layers of "
        f"{found.uneven_shapes} were split so that they fit, {found.uneven_proven} as well as can "
        f"be{gap}; other shapes, and another mbs, ZeRO stage or set of recomputed modules, were "
        "not tried with an uneven split"
    )


def _objective(result: Result) -> str:
    return str(result.inputs["options"].get("objective", BY_STEP_TIME[0]))


def _count_lines(result: Result) -> list[str]:
    """Return what became of the other numbers of devices."""
    n_whole = len(result.devices)
    if result.inputs["options"].get("objective") == "devices" and result.plans:
        n_whole = 0
    numbers = (
        (sum(len(d.searched) for d in result.devices) - n_whole, "searched"),
        (sum(d.n_excluded for d in result.devices), "excluded by a bound"),
        (sum(d.n_without_layout for d in result.devices), "without a layout"),
        (sum(d.n_left for d in result.devices), "not looked at"),
    )
    parts = [f"{n:,} {what}" for n, what in numbers if n > 0]
    return wrapped("numbers of devices besides:", ", ".join(parts)) if parts else []


def _pool_words(pool: Mapping[str, Any]) -> str:
    accelerator = pool["accelerator"]
    name = accelerator if isinstance(accelerator, str) else accelerator.get("name", "custom")
    devices = pool["nodes"] * pool["accelerators_per_node"]
    part = ""
    if pool.get("segment", pool["scale_up_domain"]) < pool["scale_up_domain"]:
        part = f", {pool['segment']} of every {pool['scale_up_domain']} in use"
    return f"{devices} x {name} in {pool['nodes']} node(s){part}"


def rejection_line(result: Result) -> str:
    """Return the most frequent rejections in one line."""
    counted = sorted(
        (r for r in result.rejected if r.code not in DUPLICATES), key=lambda r: (-r.n, r.code)
    )
    parts = [f"{r.code} {RULES[r.code].title} {r.n:,}" for r in counted[:MAX_REJECTIONS]]
    more = len(result.rejected) - len(parts)
    return " | ".join(parts) + (f" | {more} more rules in --format json" if more > 0 else "")


def _days_line(result: Result) -> str:
    """Return what the days of the table count, where others of the answer count more."""
    options = result.inputs["options"]
    goals = options.get("pareto") or [options.get("objective", "step_time")]
    counted = [goal for goal in ("cost", "energy") if goal in goals]
    more = f"; {' and '.join(counted)}: with them" if counted else ""
    return (
        f"days: training alone, without failures and checkpoints (planner show: with them){more}"
    )


def solve_table(result: Result, source: str = "last") -> str:
    """Return the whole answer of `solve` as text."""
    lines = result_heading(result)
    if result.stopped:
        gap = "" if result.gap is None else f", at most {result.gap:.1%} from the best there is"
        outcome = f"best so far{gap}" if result.plans else "no plan was found so far"
        lines.append(f"stopped ({result.stopped}): {outcome}")
    lines.append("")
    if result.stopped and not result.plans:
        looked_at = f"None of the {result.counts.space:,} legal plans that were looked at is one."
        more = "The others were not: a longer --time-limit, or --pin, --only or --max, finds more."
        return "\n".join(lines + wrapped("", f"{looked_at} {more}")) + "\n"
    if not result.plans:
        return "\n".join(lines + nothing_fits(result)) + "\n"
    lines += [*plan_rows(result.plans, columns_of(result)), *stage_lines(result.plans)]
    if sum(plan.tie for plan in result.plans) > 1:
        lines.append(f"= within model error of {BEST[_objective(result)]}")
    first = result.plans[0]
    if any(plan.group == 1 and not plan.tie for plan in result.plans[1:]):
        lines.append(f"~ told apart from {first.plan_id} in fewer than four of five cases")
    lines.append(
        "MFU: Megatron's model FLOPs (causal attention halved, no recompute) over dense peak"
    )
    if first.training_s is not None:
        lines.append(_days_line(result))
    if pareto := result.inputs["options"].get("pareto"):
        lines.append(f"the front of {', '.join(pareto)}: no plan beats another in all of them")
    lines.append("")
    for i, reason in enumerate(result.why_first):
        lines += wrapped(f"why {first.plan_id}:" if i == 0 else " ", reason)
    low, high = first.step_time_p10_s, first.step_time_p90_s
    lines += wrapped(
        "  step time",
        f"between {low:.2f} and {high:.2f} s in 8 of 10 cases, learnt from measured plans "
        f"{regime_words(first.interval_regime)}",
    )
    known = result.certificate
    if known and (known.proven or (known.only_uneven and result.complete)):
        lines += wrapped(" ", proof_line(result))
    lines += note_lines(result.notes)
    for warning in first.warnings:
        lines += wrapped(f"warning {warning.code}:", warning.text)
    if result.rejected:
        lines += wrapped("rejected:", rejection_line(result))
    lines.append(
        f"next: planner explain {source}#1 | planner show {source}#1"
        + (f" | planner emit {source}#1 --for {_runner(result)}" if first.runs_on else "")
    )
    return "\n".join(lines) + "\n"


def _runner(result: Result) -> str:
    """Return the framework that was asked for, else the first that runs the first plan."""
    requested, runs_on = result.inputs["options"]["framework"], result.plans[0].runs_on
    return requested if requested in runs_on else runs_on[0]


def nothing_fits(result: Result) -> list[str]:
    """Return the answer when there is no plan: reasons, the closest miss, what would help."""
    lines = []
    late = [note.removeprefix("limit: ") for note in result.notes if note.startswith("limit: ")]
    if late:
        lines.append("No plan keeps the limits.")
        return [*lines, *(line for note in late for line in wrapped(" ", note))]
    if result.counts.space == 0:
        lines.append("No layout is legal: every combination breaks a rule.")
    else:
        lines.append(f"Nothing fits: all {result.counts.space:,} legal plans exceed the memory.")
    for conflict in result.conflicts:
        what = "These cannot all hold" if len(conflict.parts) > 1 else "This cannot hold"
        lines.append(f"{what} on {_n_devices(result)} devices (tp * pp * cp * dp):")
        for part in conflict.parts:
            lines += wrapped(f"  {part.code}", part.text)
    lines.append("Rejected:")
    for r in sorted(result.rejected, key=lambda r: (*_weight(r.code), -r.n)):
        rule = RULES[r.code]
        if r.code not in DUPLICATES:
            lines += wrapped(f"  {r.code} {rule.title}: {r.n:,} {r.of}.", rule.why)
    if result.closest:
        miss = result.closest
        over = miss.peak_bytes - miss.usable_bytes
        lines += wrapped(
            "closest:",
            f"{shown_layout(miss.layout)} needs {miss.peak_bytes / GIB:.1f} GiB, "
            f"{miss.usable_bytes / GIB:.1f} usable ({over / GIB:.1f} too many)",
        )
    if result.uneven_tried:
        lines += wrapped("uneven splits:", _tried_words(result.uneven_tried))
    if result.relaxations:
        lines.append("What would help, the smallest change first:")
        lines += [line for r in result.relaxations for line in _relaxation_lines(r)]
    else:
        lines.append(
            "No single change that was tried helps: more devices, precision, sequence, pins."
        )
    return lines


def _tried_words(tried: UnevenTried) -> str:
    """Return what came of uneven splits where nothing fits."""
    shapes = "the shape" if tried.shapes == 1 else f"the {tried.shapes} shapes"
    need = "needs" if tried.shapes == 1 else "need"
    if tried.hopeless == tried.shapes:
        of = "its" if tried.shapes == 1 else "their"
        return (
            f"tried on {shapes} that {need} least memory: proven that no split of {of} layers fits"
        )
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


def _relaxation_lines(relaxation: Relaxation) -> list[str]:
    best = ""
    if relaxation.layout and relaxation.step_time_s:
        best = f" ({shown_layout(relaxation.layout)}, {relaxation.step_time_s:.2f} s a step)"
    return [*wrapped(" ", relaxation.change + best), f"    {relaxation.command}"]


FIGURES = (
    "step_time_s",
    "step_time_p10_s",
    "step_time_p90_s",
    "tokens_per_s",
    "mfu",
    "peak_bytes",
    "usable_bytes",
    "tie",
    "group",
    "runs_on",
    "idle_devices",
    "goodput_frac",
    "expected_s",
    "energy_j",
    "cost_usd",
    "usd_per_million_tokens",
)
"""Figures of a plan in CSV."""


def plans_csv(result: Result) -> str:
    """Return the plans as CSV in base units (seconds, bytes, fractions)."""
    out = io.StringIO()
    axes = [axis for axis in AXES.values() if axis.table != "derived"]
    fields = ["rank", "plan_id", "pool", "precision", "n_devices"]
    fields += [*(axis.name for axis in axes), "n_micro", *FIGURES]
    writer = csv.DictWriter(out, fields, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for plan in result.plans:
        values = {x.name: plan.layout.value(x.name) for x in axes}
        row = {**values, **plan.row_json(), "runs_on": " ".join(plan.runs_on)}
        row["recompute_modules"] = "+".join(plan.layout.recompute_modules)
        writer.writerow(row)
    return out.getvalue()


def plans_markdown(result: Result) -> str:
    """Return the plans as a Markdown table."""
    columns = columns_of(result)
    titles = [f"{c.title} {c.unit}".strip() for c in columns]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for plan in result.plans:
        lines.append("| " + " | ".join(column.text(plan) for column in columns) + " |")
    return "\n".join(lines) + "\n"


def plan_details(plan: Plan) -> str:
    """Return one plan as `show` prints it: layout, time, memory by stage, groups, traffic."""
    x, b = plan.layout, plan.breakdown
    stages = _folded(x.stage_layers)
    free, problem = plan.headroom_frac, b.rows.problem
    lines = [
        f"plan {plan.plan_id}: {shown_layout(x)}",
        f"  precision {plan.precision}: {problem.job.recipe.name}",
        f"  {x.n_devices} devices, {x.n_micro} micro-batch(es) of {x.mbs} on each of {x.dp} ranks"
        + (f"; {plan.n_idle} devices idle" if plan.n_idle else ""),
        *_context_line(plan),
        f"  schedule {x.schedule}, sequence parallel {'on' if x.sp else 'off'}",
        f"  layers per virtual stage: {stages}",
        *wrapped("  runs on:", _where(plan)),
        "",
        f"step {plan.step_time_s:.4f} s (80 %: {plan.step_time_p10_s:.2f} - "
        f"{plan.step_time_p90_s:.2f}), {plan.tokens_per_s_per_device:,.0f} tokens/s/device, "
        + utilization_words(plan),
        *_time_lines(plan),
        "",
        f"memory: stage {b.peak_stage} needs {b.peak_bytes / GIB:.2f} of "
        f"{plan.usable_bytes / GIB:.2f} GiB usable "
        f"({format_percent(abs(free))} {'free' if free >= 0 else 'too much'})",
        *_memory_lines(plan),
        "",
        *tier_lines(x, problem.shape, problem.pool, problem.fabric),
        "",
        "traffic of the busiest device, per step:",
        *_traffic_lines(plan),
        *_run_lines(plan),
        *(line for w in plan.warnings for line in wrapped(f"warning {w.code}:", w.text)),
    ]
    return "\n".join(lines) + "\n"


def _run_lines(plan: Plan) -> list[str]:
    """Return what the whole run takes, failures and checkpoints included."""
    run = plan.run
    if run is None:
        return []
    g = run.goodput
    text = (
        f"a failure every {g.mtbf_s / 3600:.1f} h, a checkpoint of"
        f" {format_size(g.checkpoint_bytes)} every {g.interval_s / 60:.0f} min:"
        f" {format_percent(g.goodput_frac)} of the time trains"
    )
    if run.expected_s is not None:
        text += f", {run.expected_s / 86400:.1f} days in all"
    figures = [
        f"{value * scale:,.{digits}f} {unit}"
        for value, scale, digits, unit in (
            (run.energy_j, 1 / 3.6e9, 1, "MWh"),
            (run.energy_j_per_token, 1.0, 2, "J a token"),
            (run.cost_usd, 1.0, 0, "US dollars"),
            (run.usd_per_million_tokens, 1.0, 3, "US dollars a million tokens"),
        )
        if value is not None
    ]
    return ["", *wrapped("run:", "; ".join([text, *figures]))]


def _where(plan: Plan) -> str:
    """Return which frameworks run a plan, and which would with more memory."""
    if plan.runs_on:
        return ", ".join(plan.runs_on)
    if plan.too_large_for:
        return f"nothing within this memory ({', '.join(plan.too_large_for)} with more)"
    return "no framework that can be written"


def _context_line(plan: Plan) -> list[str]:
    x = plan.layout
    if x.cp == 1:
        return []
    return [f"  sequences cut over {x.cp} ranks, keys and values exchanged by {x.cp_comm}"]


def _folded(counts: Sequence[int]) -> str:
    """Return a list of layers per stage with repeats folded: `7, 14 x 8, 7`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][1] == count:
            runs[-1][0] += 1
        else:
            runs.append([1, count])
    return ", ".join(str(count) if n == 1 else f"{n} x {count}" for n, count in runs)


def _time_lines(plan: Plan) -> list[str]:
    return [
        f"  {term:<12} {seconds * 1e3:>12.2f} ms {seconds / plan.step_time_s * 100:>6.1f} %"
        for term, seconds in plan.breakdown.time_s.items()
        if seconds > 0.0
    ]


def _memory_lines(plan: Plan) -> list[str]:
    """Return memory by stage and term in GiB; equal neighbours are folded into one line."""
    stages = plan.breakdown.stages
    names = list(stages[0])
    shown = {"fragmentation": "fragments"}
    heads = [shown.get(name, name)[:12] for name in names]
    lines = ["  stage   " + " ".join(f"{name:>12}" for name in heads) + " total GiB"]
    start = 0
    while start < len(stages):
        stop = start
        while stop + 1 < len(stages) and stages[stop + 1] == stages[start]:
            stop += 1
        label = str(start) if start == stop else f"{start}-{stop}"
        values = " ".join(f"{stages[start][name] / GIB:>12.2f}" for name in names)
        lines.append(f"  {label:<7} {values} {sum(stages[start].values()) / GIB:>9.2f}")
        start = stop + 1
    return lines


def _traffic_lines(plan: Plan) -> list[str]:
    if not plan.breakdown.transfers:
        return ["  none"]
    head = f"  {'axis':<4} {'collective':<14} {'algorithm':<12} {'tier':<8} {'ranks':>5}"
    lines = [
        f"{head} {'calls':>7} {'message MB':>10} {'sent GB':>8} {'time ms':>9} {'waits ms':>9}"
    ]
    for t in plan.breakdown.transfers:
        left = f"  {t.axis:<4} {t.collective:<14} {t.algorithm:<12} {t.tier:<8} {t.group_size:>5}"
        lines.append(
            f"{left} {t.n_calls:>7} {t.message_bytes / 1e6:>10.2f} {t.sent_bytes / 1e9:>8.2f} "
            f"{t.time_s * 1e3:>9.1f} {t.exposed_s * 1e3:>9.1f}"
        )
    return lines
