"""The card of an answer: made of what its JSON holds alone, so that a service's says the same."""

from collections.abc import Mapping
from typing import Any

from planner.documents import Bullets, Paragraph
from planner.frameworks.finetuning.tuners import ENGINES, TUNERS
from planner.render.answers.inputs import (
    calibration_parts,
    note_parts,
    searched_recipes,
    task_text,
)
from planner.render.card import sentences
from planner.render.card.card import AnswerCard, CardCounts, NextCommand
from planner.render.card.choice import choice_words, goals_of, proof_words
from planner.render.card.drawing import drawing_of
from planner.render.card.figures import figures_of, memory_bar, step_bar
from planner.render.nouns import noun_of, noun_of_plan, noun_of_pool
from planner.solver.answer.result import Plan, Result
from planner.units import GIB

STOPPED = {"time limit": "the time limit", "interrupted": "an interrupt"}
"""What stops a search, in words."""
MAX_HELP = 3
"""Changes that are named where nothing fits."""


def card_of(result: Result, rank: int = 1, source: str = "last") -> AnswerCard:
    """Return the card of an answer for its plan of a rank.

    `source` is the name by which commands find the result. Where nothing fits the card says so;
    `IndexError` where the answer has plans, but none of this rank.
    """
    if not result.plans:
        return _card_without_plan(result)
    plan = result.plans[rank - 1]
    pool = _pool_of(result, plan.pool)
    step = step_bar(plan)
    return AnswerCard(
        sentence=_sentence(result, plan),
        job=job_words(result),
        cluster=gpus_text(result, plan),
        plan_id=plan.plan_id,
        figures=figures_of(plan, noun_of_pool(pool), goals_of(result)),
        why=f"Bottleneck: {sentences.bottleneck_words(step)}.",
        choice=choice_words(result, plan) if is_search(result) else "",
        proof=proof_words(result) if is_search(result) else "",
        counts=_counts(result),
        closed=sentences.closed_axes(result) if rank == 1 else (),
        assumptions=sentences.assumptions_of(result),
        notes=_notes(result),
        warnings=tuple(f"{w.code}: {w.text}" for w in plan.warnings),
        drawing=drawing_of(plan, pool),
        step=step,
        memory=memory_bar(plan),
        commands=_commands(result, plan, source),
    )


def card_of_saved(data: Mapping[str, Any], plan_id: str, source: str = "last") -> AnswerCard:
    """Return the card of one plan of a saved answer's JSON."""
    result = Result.from_json(data)
    place = [plan.plan_id for plan in result.plans].index(plan_id)
    return card_of(result, place + 1, source)


def card_of_plan(plan: Plan) -> AnswerCard:
    """Return the card of a plan alone: without what only its answer knows.

    Where it is of another process, job and cluster are not known either.
    """
    step = step_bar(plan)
    job, cluster, pool = _known_inputs(plan)
    noun = noun_of_plan(plan)
    words = sentences.layout_words(plan.layout, noun)
    return AnswerCard(
        sentence=words if plan.headroom_frac >= 0 else f"Does not fit: {words}",
        job=job,
        cluster=cluster,
        plan_id=plan.plan_id,
        figures=figures_of(plan, noun),
        why=f"Bottleneck: {sentences.bottleneck_words(step)}.",
        choice="",
        proof="",
        counts=CardCounts(0, 0, 0, 0),
        closed=(),
        assumptions=(),
        notes=(),
        warnings=tuple(f"{w.code}: {w.text}" for w in plan.warnings),
        drawing=drawing_of(plan, pool) if pool else None,
        step=step,
        memory=memory_bar(plan),
        commands=(),
    )


def _known_inputs(plan: Plan) -> tuple[str, str, Mapping[str, Any]]:
    """Return job, cluster and pool as far as a plan knows them by itself."""
    devices = f"{plan.layout.n_devices:,} {noun_of_plan(plan).many} of pool {plan.pool}"
    if plan.breakdown.rows is None:
        return plan.precision, devices, {}
    problem = plan.breakdown.rows.problem
    pool, job = problem.pool, problem.job
    document = {
        "accelerator": pool.accelerator.name,
        "nodes": pool.n_nodes,
        "accelerators_per_node": pool.devices_per_node,
        "scale_up_domain": pool.scale_up_domain,
    }
    words = f"{problem.shape.name}, sequences of {job.seq_len:,} tokens, {plan.recipe_label}"
    return words, f"{plan.layout.n_devices:,} x {pool.accelerator.name}", document


def is_search(result: Result) -> bool:
    """Tell whether plans were searched for; not where one layout was evaluated."""
    return result.certificate is not None


def _sentence(result: Result, plan: Plan) -> str:
    """Return the layout as an advice, with its recipe where several were searched."""
    words = sentences.layout_words(plan.layout, noun_of_pool(_pool_of(result, plan.pool)))
    if " or " in searched_recipes(result):
        words += f", {plan.recipe_label}"
    if plan.headroom_frac < 0:
        return f"Does not fit: {words}"
    if not is_search(result):
        return f"Fits: {words}"
    return f"Use {words}" if plan.rank == 1 else f"Plan {plan.rank}: {words}"


def _card_without_plan(result: Result) -> AnswerCard:
    helps = tuple(NextCommand(x.change, x.command) for x in result.relaxations[:MAX_HELP])
    return AnswerCard(
        sentence=_no_plan_sentence(result),
        job=job_words(result),
        cluster=gpus_text(result, None),
        plan_id="",
        figures=(),
        why=_conflict_words(result),
        choice="",
        proof="",
        counts=_counts(result),
        closed=(),
        assumptions=sentences.assumptions_of(result),
        notes=_notes(result),
        warnings=(),
        drawing=None,
        step=None,
        memory=None,
        commands=helps,
    )


def _notes(result: Result) -> tuple[str, ...]:
    """Return notes on the inputs, and which calibration priced the plans where it is not ours."""
    options, texts = result.inputs["options"], []
    parts = calibration_parts(options, result.calibration, result.notes) + note_parts(result.notes)
    for part in parts:
        if isinstance(part, Paragraph):
            texts.append(f"{part.label} {part.text}".removeprefix("note: ").strip())
        elif isinstance(part, Bullets):
            texts += part.items
    return tuple(texts)


def _conflict_words(result: Result) -> str:
    """Return what cannot hold together, with the codes of the rules; empty where unknown."""
    parts = dict.fromkeys(f"{p.text} ({p.code})" for c in result.conflicts for p in c.parts)
    return f"What cannot all hold: {'; '.join(parts)}." if parts else ""


def _no_plan_sentence(result: Result) -> str:
    if result.stopped:
        return f"No plan so far: {STOPPED[result.stopped]} stopped the search"
    miss = result.closest
    if miss is None:
        no_layout = "no layout is legal" if not result.counts.space else "no plan keeps the limits"
        return f"Nothing fits: {no_layout}"
    degrees = sentences.degrees_words(miss.layout, noun_of(result))
    return (
        f"Nothing fits: the closest, {degrees}, needs"
        f" {miss.peak_bytes / GIB:.1f} GiB of {miss.usable_bytes / GIB:.1f} usable"
    )


def _counts(result: Result) -> CardCounts:
    c = result.counts
    return CardCounts(c.space, c.fit, c.pruned, c.excluded)


def _pool_of(result: Result, name: str) -> Mapping[str, Any]:
    pools = result.inputs["cluster"]["pools"]
    pool: Mapping[str, Any] = next((p for p in pools if p["name"] == name), pools[0])
    return pool


def job_words(result: Result) -> str:
    """Return the job: `llama3-70b, sequences of 8,192 tokens, batch 1,024, bf16`."""
    model, job = result.inputs["model"]["model"], result.inputs["model"]["training"]
    words = [
        str(model["name"]),
        f"sequences of {job['seq_len']:,} tokens",
        f"batch {job['global_batch']:,}",
        searched_recipes(result),
    ]
    return f"{', '.join(words)}{task_text(job)}"


def gpus_text(result: Result, plan: Plan | None) -> str:
    """Return the devices in use, and those that stay idle, and the software."""
    pools = result.inputs["cluster"]["pools"] if plan is None else [_pool_of(result, plan.pool)]
    texts = []
    for pool in pools:
        name = accelerator_name(pool)
        nodes, each = pool["nodes"], pool["accelerators_per_node"]
        total = nodes * each
        plural = "s" if nodes > 1 else ""
        text = f"{total:,} x {name}, {nodes:,} node{plural} of {each}"
        if plan and plan.layout.n_devices < total:
            text = f"{plan.layout.n_devices:,} of {text}"
        texts.append(text)
    return f"{', or '.join(texts)}, as {result.inputs['options']['stack']} runs it"


def accelerator_name(pool: Mapping[str, Any]) -> str:
    """Return the name of the accelerator of a pool."""
    accelerator = pool["accelerator"]
    return str(accelerator if isinstance(accelerator, str) else accelerator.get("name", "custom"))


def runner_of(result: Result, plan: Plan) -> str:
    """Return the framework that was asked for, else the first that runs a plan.

    Of one whose files of adapters are those of tools that fine-tune, the first such tool.
    """
    requested, runs_on = result.inputs["options"]["framework"], plan.runs_on
    runner = requested if requested in runs_on else runs_on[0]
    has_adapters = "lora" in result.inputs["model"].get("training", {})
    return next(iter(TUNERS)) if has_adapters and runner.partition("@")[0] in ENGINES else runner


def _commands(result: Result, plan: Plan, source: str) -> tuple[NextCommand, ...]:
    which = f"{source}#{plan.rank}"
    commands = []
    if plan.runs_on:
        line = f"planner emit {which} --for {runner_of(result, plan)} --launcher slurm --out run"
        commands.append(NextCommand("launch script", line))
    commands.append(NextCommand("every number", f"planner show {which}"))
    commands.append(NextCommand("what would help", f"planner explain {which}"))
    return tuple(commands)
