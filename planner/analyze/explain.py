"""A plan in words and as a tree; a term down to its formula, numbers and source."""

from typing import Any

from costmodels.problem import Problem
from costmodels.shape_terms import host_bytes
from costmodels.step import offloaded_activation_bytes
from costmodels.terms import ALIASES, RUN_TERMS, TERMS, groups
from planner.analyze.bottleneck_levers import Bound, bound_of
from planner.analyze.bottleneck_text import binding_text
from planner.analyze.elasticities import elasticities, percent_words
from planner.analyze.run_terms import RUN_NUMBERS
from planner.analyze.terms import term_numbers
from planner.errors import UsageError
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Plan
from planner.solver.answer.utilization import utilization_words
from planner.solver.calibration.file import Calibration
from planner.solver.calibration.intervals import regime_words
from planner.solver.options import SolveOptions
from planner.specs.yaml.document import close_names
from planner.text_lines import wrapped
from planner.units import GIB


def explanation(
    problem: Problem, plan: Plan, options: SolveOptions, term: str = ""
) -> dict[str, Any]:
    """Return the explanation of a plan, or of one term of it, as plain data.

    `plan_id`, `term`, `text` as the terminal shows it, `plan`, and `binding`: what binds the plan
    (`planner.analyze.bottleneck_levers.Bound`); None where a term is opened.
    """
    bound = None if term else bound_of(problem, plan, run_stack(options))
    if bound is None:
        text = explain_term(problem, plan, term)
    else:
        text = explain_plan(problem, plan, options.calibration, bound)
    return {
        "plan_id": plan.plan_id,
        "term": term,
        "text": text,
        "plan": plan.to_json(),
        "binding": bound.to_json() if bound else None,
    }


def run_stack(options: SolveOptions) -> str:
    """Return the framework whose rules changes of a plan must keep; `any` where none is named."""
    return "any" if options.framework == "default" else options.framework


def explain_plan(
    problem: Problem,
    plan: Plan,
    calibration: Calibration | None = None,
    bound: Bound | None = None,
) -> str:
    """Return the plan in words, what binds it, then step time and memory as trees.

    `calibration` is what priced it: measured runs that anchor it are named. `bound` is
    `bound_of` the plan, if it is known.
    """
    lines = [f"plan {plan.plan_id}: {shown_layout(plan.layout)}"]
    lines += [line for words in plan_words(problem, plan) for line in wrapped(" ", words)]
    for w in plan.warnings:
        lines += wrapped(f"  warning {w.code}:", w.text)
    if calibration and calibration.anchored_by:
        n = len(calibration.anchored_by)
        lines.append(f"  anchored by {n} measured step{'s' * (n > 1)}:")
        lines += [f"    {run}" for run in calibration.anchored_by]
    lines += ["", *binding_text(bound or bound_of(problem, plan)).splitlines(), ""]
    lines.append(f"step time {plan.step_time_s:.4f} s")
    by_group = list(groups().items())
    for i, (name, terms) in enumerate(by_group):
        total = sum(plan.breakdown.time_s[t] for t in terms)
        last = i == len(by_group) - 1
        lines.append(f"{'└─' if last else '├─'} {name:<9} {_seconds(total, plan)}")
        shown = [t for t in terms if plan.breakdown.time_s[t] > 0]
        for j, term in enumerate(shown):
            branch = "└─" if j == len(shown) - 1 else "├─"
            value = _seconds(plan.breakdown.time_s[term], plan)
            lines.append(
                f"{'  ' if last else '│ '} {branch} {term:<12} {value}  {TERMS[term].title}"
            )
    result = elasticities(problem, plan.layout)
    lines += [line for words in percent_words(result) for line in wrapped(*words)]
    lines += ["", *_memory_tree(plan), ""]
    lines += wrapped("open a term: planner explain PLAN --term", ", ".join([*TERMS, *RUN_TERMS]))
    return "\n".join(lines) + "\n"


def _seconds(value: float, plan: Plan) -> str:
    return f"{value:>9.4f} s {value / plan.step_time_s * 100:>5.1f} %"


def _memory_tree(plan: Plan) -> list[str]:
    result = plan.breakdown
    stage = result.stages[result.peak_stage]
    lines = [
        f"memory {result.peak_bytes / GIB:.2f} GiB on stage {result.peak_stage}, "
        f"{plan.usable_bytes / GIB:.2f} usable"
    ]
    shown = [name for name, value in stage.items() if value > 0]
    for i, name in enumerate(shown):
        branch = "└─" if i == len(shown) - 1 else "├─"
        lines.append(f"{branch} {name:<13} {stage[name] / GIB:>8.2f} GiB  {TERMS[name].title}")
    return lines


def _counted(n: int, one: str, more: str = "") -> str:
    """Return a number with its noun.

    >>> _counted(1, "node"), _counted(64, "node"), _counted(16, "copy", "copies")
    ('1 node', '64 nodes', '16 copies')
    """
    return f"{n} {one if n == 1 else more or one + 's'}"


def plan_words(problem: Problem, plan: Plan) -> list[str]:
    """Return what the layout means on this cluster, an item an axis."""
    x, pool = plan.layout, problem.pool
    nodes = max(1, x.n_devices // pool.devices_per_node)
    lines = [
        f"{_counted(x.n_devices, 'device')} in {_counted(nodes, 'node')} "
        f"{'runs' if x.n_devices == 1 else 'run'} {_counted(x.dp, 'copy', 'copies')} of the model "
        f"({_counted(x.tp * x.pp * x.cp, 'device')} each)."
    ]
    if x.tp > 1:
        where = "inside" if x.tp <= pool.scale_up_domain else "beyond"
        lines.append(
            f"tp {x.tp}: every layer is cut over {x.tp} neighbours {where} a scale-up domain."
        )
    if x.cp > 1:
        lines.append(
            f"cp {x.cp} ({x.cp_comm}): every sequence is cut over {x.cp} ranks, "
            f"{problem.job.seq_len // x.cp:,} tokens each."
        )
    if x.ep > 1:
        n = problem.shape.n_experts // x.ep
        copies = x.tp * x.cp * x.dp // (x.ep * x.etp)
        lines.append(
            f"ep {x.ep}, etp {x.etp}: {n} of {problem.shape.n_experts} experts on a rank, "
            f"{copies} copies of each."
        )
    if x.pp > 1:
        low, high = min(x.stage_layers), max(x.stage_layers)
        held = str(low) if low == high else f"{low} to {high}"
        lines.append(
            f"pp {x.pp}, vpp {x.vpp}: {x.pp * x.vpp} virtual stages of {held} layers, "
            f"{x.n_micro} micro-batches of {x.mbs} sequence(s); "
            f"idle {plan.breakdown.bubble_frac:.1%}."
        )
    sharded = {
        0: "nothing is sharded",
        1: "optimizer states are sharded",
        2: "optimizer states and gradients are sharded",
        3: "weights, gradients and optimizer states are sharded",
    }[x.zero]
    lines.append(f"ZeRO {x.zero}: {sharded} over {x.dp_shard} ranks.")
    if x.hpz > 1:
        lines.append(
            f"hpz {x.hpz}: groups of {x.hpz} ranks keep a second copy of the weights; a step "
            "gathers once over all ranks, then in these groups."
        )
    if not x.dp_overlap:
        lines.append("dp overlap off: all gathers and reductions are waited for.")
    if x.tp_overlap:
        lines.append("tp overlap on: gathers and reductions of tp run in pieces beside GEMMs.")
    if x.optimizer_offload:
        table = plan.breakdown.rows.table
        on_host = host_bytes(problem, table.shapes, table.shardings).max()
        lines.append(
            f"optimizer offload: master weights and Adam states are updated on the host, "
            f"{on_host / GIB:.1f} GiB of its memory for a device."
        )
    if x.activation_offload:
        on_host = offloaded_activation_bytes(plan.breakdown.rows).max()
        what = "inputs" if x.recompute == "full" else "activations"
        lines.append(
            f"activation offload: the {what} of {x.activation_offload_layers} layers are on the "
            f"host between forward and backward, {on_host / GIB:.1f} GiB of its memory for a "
            "device."
        )
    if x.recompute == "full":
        lines.append(
            f"recompute: {x.recompute_layers} layers of every virtual stage run forward twice."
        )
    if x.recompute == "selective":
        lines.append(f"recompute: {', '.join(x.recompute_modules)} of every layer run twice.")
    lines.append(f"{plan.tokens_per_s:,.0f} tokens/s, {utilization_words(plan)}.")
    lines.append(
        f"Between {plan.step_time_p10_s:.2f} and {plan.step_time_p90_s:.2f} s in 8 of 10 cases, "
        f"learnt from measured plans {regime_words(plan.interval_regime)}."
    )
    return lines


def explain_term(problem: Problem, plan: Plan, name: str) -> str:
    """Return one term's formula with its source, and this plan's numbers."""
    terms = {**TERMS, **RUN_TERMS}
    term = terms.get(ALIASES.get(name, name))
    if term is None:
        near = close_names(name, [*terms, *ALIASES])
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"no term {name!r}", f"{hint}terms: {', '.join(terms)}", "term")
    lines = [f"{term.name} ({term.kind}): {term.title}, plan {plan.plan_id}", ""]
    for part in term.texts:
        lines += [part.home, *(f"  {line}".rstrip() for line in part.text.splitlines()), ""]
    lines.append("with this plan's numbers:")
    if term.kind == "run":
        rows = RUN_NUMBERS[term.name](problem, plan)
    else:
        rows = term_numbers(term, problem, plan)
    width = max(len(label) for label, _ in rows)
    lines += [f"  {label:<{width}}  {value}" for label, value in rows]
    return "\n".join(lines) + "\n"
