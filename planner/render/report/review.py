"""The design review of a result: what was decided, why, what it costs otherwise, what is risky.

One document as Markdown or as a self-contained HTML file without scripts; the same result gives
the same bytes. Every figure is of the plan priced again with the numbers of its result.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodels.documentation.terms import ALL_TIME_TERMS, TERMS
from hardware.parts import Pool
from planner.analyze.bottleneck import MEANING
from planner.analyze.bottleneck_levers import Bound, bound_of
from planner.analyze.elasticities import FIGURES, elasticities
from planner.analyze.explain import run_stack
from planner.documents import Bullets, Code, Grid, Heading, Paragraph, Part
from planner.errors import PlannerError, UsageError
from planner.frameworks.registry import default_stack
from planner.render.answers.bottleneck import (
    bottleneck_headline,
    compute_sentence,
    lever_sentence,
    memory_sentence,
    next_sentence,
    percent_text,
    plain_text,
)
from planner.render.answers.plan import layout_sentences
from planner.render.card.answer import card_of_saved
from planner.render.card.part import card_part
from planner.render.html import html
from planner.render.markdown import markdown
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.solver.answer.result_store import (
    checked_result,
    plan_of_result,
    read_options,
    repriced_note_of,
)
from planner.solver.answer.uncertainty import HEADROOM_STEP
from planner.solver.answer.utilization import hfu
from planner.solver.calibration.intervals import regime_words
from planner.solver.options import SolveCommand, SolveOptions
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict
from planner.specs.search.axis_values import axis_text
from planner.units import GIB, format_link_speed, format_size

FORMATS = ("html", "markdown")
MOST_ALTERNATIVES = 8
MOST_LEVERS = 10
LEAST_SHARE = 0.002
"""Differences of terms below this share of the step are not named."""
MOST_INPUT_LINES = 400
"""Lines of an input that the appendix holds."""
LEAST_HEADROOM = 0.05
"""Share of the memory below which free memory is a risk."""
LEAST_ELASTICITY = 0.0005
Opened = tuple[ModelInput, ClusterInput, Any, Plan]


def review_document(data: Mapping[str, Any], which: str, source: str) -> list[Part]:
    """Return the review of one plan of a result, or of a result without plans."""
    checked = checked_result(data, source)
    options = read_options(checked["inputs"]["options"])
    model = checked["inputs"]["model"]["model"].get("name") or "the model"
    cluster = checked["inputs"]["cluster"].get("name") or "the cluster"
    title = Heading(1, f"Design review: {model} on {cluster}")
    if not checked["plans"]:
        return [title, *_nothing_fits(checked), *_question(checked), *_basis(checked, None)]
    opened = plan_of_result(checked, which, source)
    _, _, problem, plan = opened
    bound = bound_of(problem, plan, run_stack(options))
    note = repriced_note_of(checked, which, source, plan)
    return [
        title,
        card_part(card_of_saved(checked, plan.plan_id)),
        *_decision(plan, note),
        *_why(checked, plan, bound),
        *_question(checked),
        *_time_and_memory(plan, bound),
        *_alternatives(checked, opened, source),
        *_levers(bound),
        *_sensitivities(problem, plan),
        *_risks(checked, opened),
        *_commands(checked, options, plan),
        *_basis(checked, plan),
    ]


def review_text(parts: Sequence[Part], form: str) -> str:
    """Return a review as `html`, a whole page, or as `markdown`."""
    if form == "markdown":
        return markdown(parts)
    title = next(part.text for part in parts if isinstance(part, Heading))
    return _page(title, parts)


def _page(title: str, parts: Sequence[Part]) -> str:
    """Return the page: no script, nothing loaded, light, dark and print."""
    from html import escape
    from importlib.resources import files

    folder = files("planner.render.report") / "templates"
    style = "".join((folder / name).read_text("utf-8") for name in ("report.css", "review.css"))
    sections = [part.text for part in parts if isinstance(part, Heading) and part.level == 2]
    keys = [html([Heading(2, text)]).split('id="')[1].split('"')[0] for text in sections]
    nav = "\n".join(
        f'<a href="#{key}">{escape(text)}</a>' for key, text in zip(keys, sections, strict=True)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the review</a>
<header>
<nav aria-label="Sections">
{nav}
</nav>
</header>
<main id="main">
{html(parts)}</main>
</body>
</html>
"""  # noqa: E501  # the policy is one attribute


# ---- parts -------------------------------------------------------------------------------------


def _decision(plan: Plan, note: str) -> Iterator[Part]:
    result = plan.breakdown
    yield Paragraph(
        f"{shown_layout(plan.layout)} on {plan.layout.n_devices:,} devices: "
        f"{plan.step_time_s:.3f} s a step, {result.peak_bytes / GIB:.1f} of "
        f"{plan.usable_bytes / GIB:.1f} GiB",
        True,
    )
    if note:
        yield Paragraph(f"Priced anew: {note}.")
    rows = [
        ("plan", f"{plan.plan_id} (rank {plan.rank})"),
        ("step time", f"{plan.step_time_s:.4f} s"),
        (
            "80 % prediction interval",
            f"{plan.step_time_p10_s:.2f} to {plan.step_time_p90_s:.2f} s",
        ),
        (
            "tokens a second",
            f"{plan.tokens_per_s:,.0f} ({plan.tokens_per_s_per_device:,.0f} a device)",
        ),
        ("MFU", f"{plan.mfu:.1%} (Megatron's model FLOPs over the dense peak)"),
        *([("MFU over bf16", f"{over:.1%}")] if (over := plan.mfu_over_bf16) is not None else []),
        *([("HFU", f"{hfu(plan):.1%} (with recomputed FLOPs)")] if hfu(plan) > plan.mfu else []),
        (
            "memory of the fullest device",
            f"{result.peak_bytes / GIB:.1f} GiB of {plan.usable_bytes / GIB:.1f} usable",
        ),
        ("devices", f"{plan.layout.n_devices:,} in use, {plan.n_idle:,} idle"),
        ("numbers", plan.precision),
        ("frameworks that run it", ", ".join(plan.runs_on) or "none that planner writes for"),
    ]
    run = plan.run
    if run is not None and run.expected_s is not None:
        rows.append(("whole run, failures included", f"{run.expected_s / 86400:.1f} days"))
    if run is not None and run.cost_usd is not None:
        rows.append(("price of the run", f"{run.cost_usd:,.0f} US dollars"))
    if run is not None and run.energy_j is not None:
        rows.append(("electricity of the run", f"{run.energy_j / 3.6e9:,.1f} MWh"))
    yield Grid(("figure", "value"), tuple(rows), "The chosen plan")


def _why(data: Mapping[str, Any], plan: Plan, bound: Bound) -> Iterator[Part]:
    yield Heading(2, "Why this plan")
    problem = plan.breakdown.rows.problem
    yield Bullets(tuple(layout_sentences(problem, plan)))
    if plan.rank == 1 and data.get("why_first"):
        yield Heading(3, "Against the others")
        yield Bullets(tuple(str(line) for line in data["why_first"]))
    proof = data.get("certificate")
    if plan.rank == 1 and proof:
        counts = data["counts"]
        yield Paragraph(
            f"Of {counts['space']:,} legal plans none is faster than {proof['fastest_s']:.3f} s: "
            f"{proof['simulated']} were simulated, the rest do not fit or have a lower bound above"
            f"{'' if proof['proven'] else '; the search was not complete, so this is not proven'}."
        )
    yield Heading(3, "Bottleneck")
    messages = [
        bottleneck_headline(bound),
        plain_text(compute_sentence(bound)),
        plain_text(next_sentence(bound)),
        plain_text(memory_sentence(bound)),
    ]
    yield Bullets(tuple(f"{text}." for text in messages if text))


def _question(data: Mapping[str, Any]) -> Iterator[Part]:
    inputs = data["inputs"]
    model, job, options = inputs["model"]["model"], inputs["model"]["training"], inputs["options"]
    yield Heading(2, "The job")
    rows = [
        (
            "model",
            f"{model.get('name', '-')}: {model['layers']} layers, hidden {model['hidden']}, "
            f"{model['heads']} heads ({model.get('kv_heads', model['heads'])} KV)",
        ),
        ("batch", f"{job['global_batch']:,} sequences of {job['seq_len']:,} tokens a step"),
        ("numbers", str(job.get("precision", "-"))),
    ]
    if job.get("tokens"):
        rows.append(("tokens of the run", f"{job['tokens']:.4g}"))
    for key in ("moe", "mla"):
        if model.get(key):
            text = ", ".join(f"{name} {value}" for name, value in model[key].items())
            rows.append((key, text))
    yield Grid(("", "value"), tuple(rows), "The job")
    yield Heading(2, "The cluster")
    yield Grid(
        ("pool", "accelerators", "node", "domain", "network"),
        tuple(_pool_row(pool) for pool in cluster_from_dict(inputs["cluster"]).cluster.pools),
        "Pools",
    )
    yield Heading(2, "Assumptions")
    requested = [f"{axis} {axis_text(axis, value)}" for axis, value in options["pins"].items()]
    items = [
        f"software: {options['stack']}"
        + ("" if options["framework"] == "default" else f", as {options['framework']} runs it"),
        f"pinned: {', '.join(requested)}" if requested else "no axis is pinned",
    ]
    items += [
        f"only {axis} {', '.join(axis_text(axis, v) for v in values)}"
        for axis, values in options["only"].items()
    ]
    items += [f"at most {axis} {value}" for axis, value in options["max"].items()]
    items += [str(note) for note in data["notes"]]
    yield Bullets(tuple(items))


def _pool_row(pool: Pool) -> tuple[str, ...]:
    return (
        pool.name,
        f"{pool.n_devices:,} x {pool.accelerator.name}",
        f"{pool.n_nodes:,} nodes of {pool.devices_per_node}",
        f"{pool.scale_up_domain} devices",
        f"{pool.nics_per_node} x {pool.nic.name} a node, "
        f"{format_link_speed(pool.nic.bytes_per_s)} each",
    )


def _time_and_memory(plan: Plan, bound: Bound) -> Iterator[Part]:
    result = plan.breakdown
    yield Heading(2, "Where the step goes")
    parts = [p for p in bound.ordered if bound.now.parts[p] > 0]
    yield Grid(
        ("part", "s", "%", "what it is"),
        tuple(
            (p, f"{bound.now.parts[p]:.4f}", f"{bound.now.share(p) * 100:.1f}", MEANING[p])
            for p in parts
        ),
        "Parts of the step",
        (1, 2),
        tuple(bound.now.share(p) for p in parts),
    )
    yield Heading(2, "Memory")
    stage = result.stages[result.peak_stage]
    terms = [(t, b) for t, b in stage.items() if b > 0]
    yield Grid(
        ("term", "GiB", "what it is"),
        tuple((t, f"{b / GIB:.2f}", TERMS[t].title) for t, b in terms),
        f"The fullest device, stage {result.peak_stage}",
        (1,),
        tuple(b / plan.usable_bytes for _, b in terms),
    )
    if len(result.stages) > 1:
        totals = [sum(stage.values()) for stage in result.stages]
        yield Grid(
            ("stage", "GiB", "free GiB"),
            tuple(
                (str(i), f"{b / GIB:.2f}", f"{(plan.usable_bytes - b) / GIB:+.2f}")
                for i, b in enumerate(totals)
            ),
            f"Every pipeline stage against {plan.usable_bytes / GIB:.2f} GiB usable",
            (0, 1, 2),
            tuple(b / plan.usable_bytes for b in totals),
        )


def _alternatives(data: Mapping[str, Any], opened: Opened, source: str) -> Iterator[Part]:
    plan = opened[3]
    yield Heading(2, "Alternatives and what they cost")
    others = [p for p in data["plans"] if p["plan_id"] != plan.plan_id][:MOST_ALTERNATIVES]
    if not others:
        yield Paragraph("The result holds no other plan: solve with --top 10 to compare.")
        return
    rows = []
    for saved in others:
        other = plan_of_result(data, str(saved["rank"]), source)[3]
        share = other.step_time_s / plan.step_time_s - 1.0
        free = (other.usable_bytes - other.breakdown.peak_bytes) / GIB
        rows.append(
            (
                shown_layout(other.layout),
                f"{other.step_time_s:.3f}",
                percent_text(share, True),
                f"{free:.1f}",
                _difference(plan, other),
            )
        )
    yield Grid(
        ("layout", "s", "against it", "GiB free", "where the difference is"),
        tuple(rows),
        "The next plans of the ranking",
        (1, 2, 3),
    )
    ties = [p for p in data["plans"] if p.get("tie")]
    if len(ties) > 1:
        yield Paragraph(
            f"{len(ties)} plans of the list cannot be told from the fastest: among them memory "
            f"headroom decides, in steps of {HEADROOM_STEP:.0%}, then simplicity."
        )


def _difference(plan: Plan, other: Plan) -> str:
    a, b = plan.breakdown.time_s, other.breakdown.time_s
    gaps = sorted(
        ((b[t] - a[t], t) for t in ALL_TIME_TERMS if t in a), key=lambda x: (-abs(x[0]), x[1])
    )
    least = LEAST_SHARE * plan.step_time_s
    messages = [f"{term} {gap:+.3f} s" for gap, term in gaps if abs(gap) >= least]
    return ", ".join(messages[:4]) or "many small differences"


def _levers(bound: Bound) -> Iterator[Part]:
    yield Heading(2, "What would make it faster")
    yield Paragraph("Each change is evaluated separately; the rest of the layout stays.")
    shown = [x for x in bound.levers if x.gain_frac > 0][:MOST_LEVERS]
    if not shown:
        yield Paragraph("Nothing that was tried makes this plan faster.")
        return
    yield Grid(
        ("change", "relaxes", "s", "against it", "what moves"),
        tuple(
            (
                x.change,
                x.relaxes,
                f"{x.after.step_s:.3f}",
                percent_text(-x.gain_frac, True),
                plain_text(lever_sentence(bound, x)),
            )
            for x in shown
        ),
        "Changes, the largest gain first",
        (2, 3),
    )


def _sensitivities(problem: Any, plan: Plan) -> Iterator[Part]:
    yield Heading(2, "Sensitivities")
    yield Paragraph("Change of the step time in per cent per one per cent of a figure.")
    result = elasticities(problem, plan.layout)
    rows = sorted(
        (f for f in FIGURES if abs(result[f.name]) >= LEAST_ELASTICITY),
        key=lambda f: (-abs(result[f.name]), f.name),
    )
    yield Grid(
        ("figure", "%", "meaning"),
        tuple((f.name, f"{result[f.name]:+.3f}", f.meaning) for f in rows),
        "d log t / d log x",
        (1,),
        tuple(abs(result[f.name]) for f in rows),
    )


def _risks(data: Mapping[str, Any], opened: Opened) -> Iterator[Part]:
    _, cluster, problem, plan = opened
    yield Heading(2, "Risks")
    noun = problem.pool.accelerator.noun
    low, high = (x / plan.step_time_s - 1 for x in (plan.step_time_p10_s, plan.step_time_p90_s))
    items = [
        f"Step time: between {low:+.0%} and {high:+.0%} (80 % prediction interval), calibrated on "
        f"{regime_words(plan.interval_regime, noun)}; a trial (planner trial) narrows it.",
    ]
    free = plan.headroom_frac
    if free < 0:
        items.append(f"Memory: it needs {-free:.1%} more than there is.")
    elif free < LEAST_HEADROOM:
        items.append(
            f"Memory: {free:.1%} free; a longer sequence or more fragmentation may not fit."
        )
    items += [f"{w.code}: {w.text}." for w in plan.warnings]
    if not data.get("complete", True):
        items.append(f"The search was stopped ({data.get('stopped')}): a better plan may exist.")
    if cluster.announced:
        items.append(f"Announced, measured by nobody: {', '.join(cluster.announced)}.")
    yield Bullets(tuple(items))
    rows = tuple(_assumed_rows(cluster, problem))
    if rows:
        yield Grid(
            ("figure", "source", "date"),
            rows,
            "Figures of the catalogue in use without a second source",
        )


def _assumed_rows(cluster: ClusterInput, problem: Any) -> Iterator[tuple[str, str, str]]:
    pool = problem.pool
    parts = {part.name: part for part in (pool.accelerator, pool.nic, pool.scale_up)}
    for name in cluster.assumed:
        owner = next((key for key in parts if name.startswith(f"{key}.")), "")
        figure = name.removeprefix(f"{owner}.")
        origin = parts[owner].provenance.get(figure) if owner else None
        yield (
            name,
            origin.source if origin else "stated by the cluster file",
            origin.date if origin else "-",
        )


def _commands(data: Mapping[str, Any], options: SolveOptions, plan: Plan) -> Iterator[Part]:
    yield Heading(2, "Commands")
    inputs = data["inputs"]
    own = options.stack == default_stack(options.framework)
    command = SolveCommand(_name_of(inputs, "model"), _name_of(inputs, "cluster"))
    solve = command.text(replace(options, stack="") if own else options, {})
    target = next((name for name in plan.runs_on), "megatron")
    yield Code(
        (
            f"{solve} --format json > result.json",
            f"planner explain result.json#{plan.plan_id}",
            f"planner emit result.json#{plan.plan_id} --for {target} --out plan",
            f"planner place result.json#{plan.plan_id}",
            f"planner trace result.json#{plan.plan_id} -o step.json",
            f"planner neighbours result.json#{plan.plan_id}",
        )
    )


def _name_of(inputs: Mapping[str, Any], kind: str) -> str:
    """Return the packaged example that an input is, or the name of its file in the appendix."""
    from planner.solver.sources import read_inputs

    name = str(inputs[f"{kind}_source"])
    value = (name, "h100-x8") if kind == "model" else ("llama3-8b", name)
    try:
        result = read_inputs(*value)[0 if kind == "model" else 1]
    except PlannerError:
        return f"{kind}.yaml"
    return name if result.document == inputs[kind] else f"{kind}.yaml"


def _basis(data: Mapping[str, Any], plan: Plan | None) -> Iterator[Part]:
    yield Heading(2, "Reproducibility")
    by, inputs = data["calibration"], data["inputs"]
    rows = [
        ("result", str(data["result_id"])),
        *([("plan", plan.plan_id)] if plan else []),
        ("version that solved", str(by.get("version", "-"))),
        ("version of this review", _version()),
        ("calibration", f"{by.get('name', '-')} ({by.get('hash', '-')})"),
        ("catalogue", str(by.get("catalogue", "-"))),
    ]
    for run in by.get("anchored_by") or ():
        rows.append(("anchored by", str(run)))
    yield Grid(("", "value"), tuple(rows), "Versions and hashes")
    yield Paragraph("The inputs as they were read; saved under these names they give the same.")
    for kind in ("model", "cluster"):
        lines = json.dumps(inputs[kind], indent=1).splitlines()
        yield Heading(3, f"{kind}.yaml")
        if len(lines) > MOST_INPUT_LINES:
            yield Paragraph(f"{len(lines):,} lines, left out: they stand in the result.")
        else:
            yield Code(tuple(lines))


def _version() -> str:
    from planner import __version__

    return __version__


def _nothing_fits(data: Mapping[str, Any]) -> Iterator[Part]:
    yield Paragraph("Nothing fits", True)
    counts = data["counts"]
    items = [
        f"{counts['space']:,} legal plans, none of which fits into memory"
        if counts["space"]
        else "no layout is legal"
    ]
    for conflict in data.get("conflicts", ()):
        items.append("cannot all hold: " + "; ".join(f"{c['code']} {c['text']}" for c in conflict))
    closest = data.get("closest")
    if closest:
        over = closest["peak_bytes"] - closest["usable_bytes"]
        items.append(f"the closest needs {format_size(over)} more than there is")
    yield Bullets(tuple(items))
    relaxed = data.get("relaxations", ())
    if relaxed:
        yield Heading(2, "What would help")
        yield Grid(
            ("change", "step s", "command"),
            tuple(
                (
                    r["change"],
                    "-" if r["step_time_s"] is None else f"{r['step_time_s']:.3f}",
                    r["command"],
                )
                for r in relaxed
            ),
            "The smallest change first",
            (1,),
        )


# ---- entry points ------------------------------------------------------------------------------


def review(result: Any, plan: str | int = 1, form: str = "markdown") -> str:
    """Return the design review of a plan of a result, by rank or plan id, as text.

    `result` is what `planner.solve` returns, or its JSON as a mapping. `form` is `markdown` or
    `html`. Raises `UsageError` for another form or a plan that the result does not hold.
    """
    if form not in FORMATS:
        raise UsageError(f"--format: unknown {form!r}", " or ".join(FORMATS))
    data = result if isinstance(result, Mapping) else result.to_json()
    return review_text(
        review_document(json.loads(json.dumps(data)), str(plan), "the result"), form
    )
