"""One plan: what its layout means, where its step goes, its memory, groups and traffic."""

from collections.abc import Sequence
from itertools import groupby

from costmodels.axes import AXES
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.shape_terms import host_bytes
from costmodels.step import offloaded_activation_bytes
from planner.documents import Blank, Grid, GridSpacing, Paragraph, Part
from planner.render.answers.inputs import assumed_parts, calibration_parts, job_text
from planner.render.answers.placement import tier_parts
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan, Result
from planner.solver.answer.utilization import utilization_words
from planner.solver.calibration.intervals import regime_words
from planner.text_lines import SPLIT_CHOSEN
from planner.units import GIB, format_percent, format_size, format_time


def evaluated_document(result: Result) -> list[Part]:
    """Return the answer of `evaluate`: the job, what was assumed, and the plan."""
    return [
        Paragraph(job_text(result)),
        *calibration_parts(result.inputs["options"], result.calibration, result.notes),
        *assumed_parts(result.notes),
        *(
            Paragraph(note.removeprefix(SPLIT_CHOSEN), label="split not named:")
            for note in result.notes
            if note.startswith(SPLIT_CHOSEN)
        ),
        Blank(),
        *plan_document(result.plans[0]),
    ]


def sample_parts(plan: Plan) -> list[Part]:
    """Return the images or videos a second of a diffusion transformer; nothing for others."""
    if plan.breakdown.rows is None:  # of a service, which sends figures alone
        return []
    latents = plan.breakdown.rows.problem.shape.diffusion
    if not latents:
        return []
    word = "videos" if latents.frames > 1 else "images"
    size = f"{latents.width} x {latents.height}" + f" x {latents.frames}" * (latents.frames > 1)
    rate = plan.layout.gbs / plan.step_time_s
    return [
        Paragraph(f"{word} of {size}: {rate:,.4g} a second over {plan.layout.n_devices} devices")
    ]


def plan_document(plan: Plan) -> list[Part]:
    """Return one plan as `show` prints it: layout, time, memory by stage, groups, traffic."""
    x, breakdown = plan.layout, plan.breakdown
    free, problem = plan.headroom_frac, breakdown.rows.problem
    used = (
        f"  {x.n_devices} devices, {x.n_micro} micro-batch(es) of {x.mbs} on each of {x.dp} ranks"
    )
    idle = f"; {plan.n_idle} devices idle" if plan.n_idle else ""
    cut = f"  sequences cut over {x.cp} ranks, keys and values exchanged by {x.cp_comm}"
    modes = f"  schedule {x.schedule}, sequence parallel {'on' if x.sp else 'off'}"
    step = (
        f"step {plan.step_time_s:.4f} s (80 %: {plan.step_time_p10_s:.2f} - "
        f"{plan.step_time_p90_s:.2f}), {plan.tokens_per_s_per_device:,.0f} tokens/s/device, "
        + utilization_words(plan)
    )
    memory = (
        f"memory: stage {breakdown.peak_stage} needs {breakdown.peak_bytes / GIB:.2f} of "
        f"{plan.usable_bytes / GIB:.2f} GiB usable "
        f"({format_percent(abs(free))} {'free' if free >= 0 else 'too much'})"
    )
    return [
        Paragraph(f"plan {plan.plan_id}: {shown_layout(x)}"),
        Paragraph(f"  precision {plan.precision}: {problem.job.recipe.name}"),
        Paragraph(used + idle),
        *([Paragraph(cut)] if x.cp > 1 else []),
        Paragraph(modes),
        Paragraph(f"  layers per virtual stage: {_folded(x.stage_layers)}"),
        Paragraph(_runs_on(plan), label="  runs on:"),
        Blank(),
        Paragraph(step),
        *sample_parts(plan),
        _time_grid(plan),
        Blank(),
        Paragraph(memory),
        _memory_grid(plan),
        Blank(),
        *tier_parts(x, problem.shape, problem.pool, problem.fabric),
        Blank(),
        *_traffic_parts(plan),
        *_run_parts(plan),
        *(Paragraph(w.text, label=f"warning {w.code}:") for w in plan.warnings),
    ]


def _run_parts(plan: Plan) -> list[Part]:
    """Return what the whole run takes, failures and checkpoints included."""
    run = plan.run
    if run is None:
        return []
    g = run.goodput
    text = (
        f"one failure every {format_time(g.mtbf_s, 1)}, a checkpoint of"
        f" {format_size(g.checkpoint_bytes)} every {format_time(g.interval_s, 1)};"
        f" {format_percent(g.goodput_frac)} of the time is productive"
    )
    if run.expected_s is not None:
        text += f", {run.expected_s / 86400:,.1f} days in all"
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
    return [Blank(), Paragraph("; ".join([text, *figures]), label="run:")]


def _runs_on(plan: Plan) -> str:
    """Return which frameworks run a plan, and which would with more memory."""
    if plan.runs_on:
        return ", ".join(plan.runs_on)
    if plan.too_large_for:
        return f"nothing within this memory ({', '.join(plan.too_large_for)} with more)"
    return "no framework that can be written"


def _folded(counts: Sequence[int]) -> str:
    """Return a list of layers per stage with repeats folded: `7, 14 x 8, 7`."""
    runs = [(count, len(list(same))) for count, same in groupby(counts)]
    return ", ".join(str(count) if n == 1 else f"{n} x {count}" for count, n in runs)


def _time_grid(plan: Plan) -> Grid:
    rows = [
        (term, f"{seconds * 1e3:.2f}", "ms", f"{seconds / plan.step_time_s * 100:.1f}", "%")
        for term, seconds in plan.breakdown.time_s.items()
        if seconds > 0.0
    ]
    spacing = GridSpacing((12, 12, 2, 6, 1), gaps=1, indent=2)
    return Grid(("",) * 5, tuple(rows), "Where the step goes", (1, 3), spacing=spacing)


def _memory_grid(plan: Plan) -> Grid:
    """Return memory by stage and term in GiB; equal neighbours are folded into one line."""
    stages = plan.breakdown.stages
    names = list(stages[0])
    short = {"fragmentation": "fragments"}
    rows: list[tuple[str, ...]] = []
    start = 0
    for stage, same in groupby(stages):
        stop = start + len(list(same)) - 1
        label = str(start) if start == stop else f"{start}-{stop}"
        values = (f"{stage[name] / GIB:.2f}" for name in names)
        rows.append((label, *values, f"{sum(stage.values()) / GIB:.2f}"))
        start = stop + 1
    return Grid(
        ("stage", *(short.get(name, name)[:12] for name in names), "total GiB"),
        tuple(rows),
        "Memory by stage, GiB",
        tuple(range(1, len(names) + 2)),
        spacing=GridSpacing((7, *[12] * len(names), 9), gaps=1, indent=2),
    )


_TRAFFIC_HEADS = (
    ("axis", 4),
    ("collective", 14),
    ("algorithm", 12),
    ("tier", 8),
    ("ranks", 5),
    ("calls", 7),
    ("message MB", 10),
    ("sent GB", 8),
    ("time ms", 9),
    ("waits ms", 9),
)
"""Columns of the traffic and their widths."""


def _traffic_parts(plan: Plan) -> list[Part]:
    lead = Paragraph("traffic of the busiest device, per step:")
    if not plan.breakdown.transfers:
        return [lead, Paragraph("  none")]
    rows = [
        (
            *(t.axis, t.collective, t.algorithm, t.tier, str(t.group_size), str(t.n_calls)),
            f"{t.message_bytes / 1e6:.2f}",
            f"{t.sent_bytes / 1e9:.2f}",
            f"{t.time_s * 1e3:.1f}",
            f"{t.exposed_s * 1e3:.1f}",
        )
        for t in plan.breakdown.transfers
    ]
    heads, widths = zip(*_TRAFFIC_HEADS, strict=True)
    spacing = GridSpacing(widths, gaps=1, indent=2)
    caption = "Traffic of the busiest device, per step"
    return [lead, Grid(heads, tuple(rows), caption, tuple(range(4, 10)), spacing=spacing)]


def _counted(n: int, one: str, more: str = "") -> str:
    """Return a number with its noun.

    >>> _counted(1, "node"), _counted(64, "node"), _counted(16, "copy", "copies")
    ('1 node', '64 nodes', '16 copies')
    """
    return f"{n} {one if n == 1 else more or one + 's'}"


_SHARDED = (
    "nothing is sharded",
    "optimizer states are sharded",
    "optimizer states and gradients are sharded",
    "weights, gradients and optimizer states are sharded",
)
"""By ZeRO stage."""


def layout_sentences(problem: Problem, plan: Plan) -> list[str]:
    """Return what the layout means on this cluster, a sentence an axis, then what it gives."""
    x = plan.layout
    nodes = max(1, x.n_devices // problem.pool.devices_per_node)
    noun = problem.pool.accelerator.noun
    return [
        f"{_counted(x.n_devices, noun.one)} in {_counted(nodes, 'node')} "
        f"{'runs' if x.n_devices == 1 else 'run'} {_counted(x.dp, 'replica')} of the model "
        f"({_counted(x.tp * x.pp * x.cp, noun.one)} each).",
        *_degree_sentences(problem, plan),
        f"ZeRO {x.zero}: {_SHARDED[x.zero]} over {x.dp_shard} ranks.",
        *_mode_sentences(problem, plan),
        f"{plan.tokens_per_s:,.0f} tokens/s, {utilization_words(plan)}.",
        f"80 % interval {plan.step_time_p10_s:.2f} to {plan.step_time_p90_s:.2f} s, calibrated on "
        f"{regime_words(plan.interval_regime, noun)}.",
    ]


def stage_range(layout: Layout) -> str:
    """Return how many layers a virtual stage holds: one number, or least to most."""
    low, high = min(layout.stage_layers), max(layout.stage_layers)
    return str(low) if low == high else f"{low} to {high}"


def _degree_sentences(problem: Problem, plan: Plan) -> list[str]:
    x, pool = plan.layout, problem.pool
    sentences = []
    if x.tp > 1:
        where = "inside" if x.tp <= pool.scale_up_domain else "beyond"
        sentences.append(
            f"tp {x.tp}: every layer is cut over {x.tp} neighbours {where} a scale-up domain."
        )
    if x.cp > 1:
        sentences.append(
            f"cp {x.cp} ({x.cp_comm}): every sequence is cut over {x.cp} ranks, "
            f"{problem.job.seq_len // x.cp:,} tokens each."
        )
    if x.ep > 1:
        n = problem.shape.n_experts // x.ep
        copies = x.tp * x.cp * x.dp // (x.ep * x.etp)
        sentences.append(
            f"ep {x.ep}, etp {x.etp}: {n} of {problem.shape.n_experts} experts on a rank, "
            f"{copies} copies of each."
        )
    if x.pp > 1:
        sentences.append(
            f"pp {x.pp}, vpp {x.vpp}: {x.pp * x.vpp} virtual stages of {stage_range(x)} layers, "
            f"{x.n_micro} micro-batches of {x.mbs} sequence(s); "
            f"idle {plan.breakdown.bubble_frac:.1%}."
        )
    return sentences


def _mode_sentences(problem: Problem, plan: Plan) -> list[str]:
    """Return what is off the usual: second copies, overlap, offload, recomputation."""
    x, rows = plan.layout, plan.breakdown.rows
    sentences = []
    if x.hpz > 1:
        sentences.append(
            f"hpz {x.hpz}: groups of {x.hpz} ranks keep a second copy of the weights; a step "
            "gathers once over all ranks, then in these groups."
        )
    if not x.dp_overlap:
        sentences.append("dp overlap off: all gathers and reductions are waited for.")
    if x.tp_overlap:
        sentences.append("tp overlap on: gathers and reductions of tp run in pieces beside GEMMs.")
    if x.optimizer_offload:
        on_host = host_bytes(problem, rows.table.shapes, rows.table.shardings).max()
        sentences.append(
            f"optimizer offload: master weights and Adam states are updated on the host, "
            f"{on_host / GIB:.1f} GiB of its memory for a device."
        )
    if x.activation_offload:
        on_host = offloaded_activation_bytes(rows).max()
        what = "inputs" if x.recompute == "full" else "activations"
        sentences.append(
            f"activation offload: the {what} of {x.activation_offload_layers} layers are on the "
            f"host between forward and backward, {on_host / GIB:.1f} GiB of its memory for a "
            "device."
        )
    if x.recompute == "full":
        sentences.append(
            f"recompute: {x.recompute_layers} layers of every virtual stage run forward twice."
        )
    if x.recompute == "selective":
        sentences.append(f"recompute: {', '.join(x.recompute_modules)} of every layer run twice.")
    for name, value in x.switches:
        axis = AXES[name]
        sentences.append(f"{axis.label or name} {axis.text(value)}: {axis.meaning or axis.title}.")
    return sentences
