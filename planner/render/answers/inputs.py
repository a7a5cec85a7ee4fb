"""What was searched: the job and the cluster, what was assumed, which numbers priced it."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.documents import Bullets, Paragraph, Part
from planner.solver.answer.result import Result
from planner.specs.search.axis_values import NUMERICS, PRECISION
from planner.text_lines import ASSUMED, IMPORTED, REFERENCE

HOW_TO_ASSUME_ELSE = "--set PATH=VALUE changes one"


def assumed_parts(notes: Sequence[str], how_to_change: str = HOW_TO_ASSUME_ELSE) -> list[Part]:
    """Return what was assumed when the inputs were read, and how to take something else."""
    fields = [note.removeprefix(ASSUMED) for note in notes if note.startswith(ASSUMED)]
    if not fields:
        return []
    return [Paragraph("; ".join([*fields, how_to_change]), label="assumed")]


def note_parts(notes: Sequence[str]) -> list[Part]:
    """Return notes on pools left out, parts not modelled, samples, and a framework chosen."""
    known = ("pool ", "samples of ", "framework ", *IMPORTED)
    shown = [note for note in notes if note.startswith(known)]
    for beginning in IMPORTED:
        shown = [note.removeprefix(beginning) for note in shown]
    return [Paragraph(note, label="note:") for note in shown]


def calibration_parts(
    options: Mapping[str, Any], calibration: Mapping[str, Any], notes: Sequence[str] = ()
) -> list[Part]:
    """Return which numbers priced the plans, where they are not those that ship.

    With the measured runs that anchor them, and what `notes` say about those.
    """
    if "calibration" not in options:
        return []
    parts: list[Part] = [
        Paragraph(f"{calibration['name']} ({calibration['hash']})", label="priced with")
    ]
    factors = calibration.get("anchors") or {}
    shown = ", ".join(f"{name.replace('_', '-')} x{x:.3g}" for name, x in factors.items())
    if len(set(factors.values())) == 1:
        shown = f"all times x{next(iter(factors.values())):.3g}"
    if shown:
        runs = calibration["anchored_by"]
        parts.append(Paragraph(shown + (", by" if runs else ""), label="anchored:"))
        parts += [Bullets(tuple(runs), " ", 4)] if runs else []
    return parts + [
        Paragraph(note.removeprefix(REFERENCE), label="reference:")
        for note in notes
        if note.startswith(REFERENCE)
    ]


def job_text(result: Result) -> str:
    """Return the job in a sentence: the model, sequences, the batch, the precision."""
    model, job = result.inputs["model"]["model"], result.inputs["model"]["training"]
    return (
        f"{model['name']}: {model['layers']} layers, hidden {model['hidden']}, sequences of "
        f"{job['seq_len']}, global batch {job['global_batch']}, {searched_recipes(result)}"
        f"{task_text(job)}"
    )


BASE_TITLES = {"nf4": "NF4 base", "nf4-plain": "NF4 base, scales in fp32", "int8": "int8 base"}
"""How frozen weights are held, where they are quantized."""


def task_text(job: Mapping[str, Any]) -> str:
    """Return what is trained, after a comma; nothing for pretraining.

    >>> task_text({"task": "qlora", "lora": {"rank": 16, "base": "nf4"}})
    ', QLoRA rank 16, NF4 base'
    """
    parts = {"sft": ["all weights tuned"], "dpo": ["DPO"]}.get(job.get("task", ""), [])
    if lora := job.get("lora"):
        base = BASE_TITLES.get(lora["base"])
        parts = [f"{'QLoRA' if base else 'LoRA'} rank {lora['rank']}", *([base] if base else [])]
    if reference := job.get("reference"):
        parts.append(f"reference {reference}")
    return "".join(f", {part}" for part in parts)


def searched_recipes(result: Result) -> str:
    """Return the numeric recipes that were searched."""
    options = result.inputs["options"]
    job, named = result.inputs["model"]["training"], []
    for axis, words in NUMERICS.items():
        codes = options["only"].get(axis, [])
        codes = [options["pins"][axis]] if axis in options["pins"] else codes
        text = " or ".join(words[code] for code in codes) or str(job.get(axis, ""))
        if axis == PRECISION:
            named.append(text)
        elif text not in ("", "off", "False"):
            named.append(f"{axis} {text}")
    return ", ".join(named)


def job_parts(result: Result) -> list[Part]:
    """Return the job, what was assumed of it, the cluster, and what priced them."""
    pools = result.inputs["cluster"]["pools"]
    texts = [_pool_text(pool) for pool in pools]
    if len(pools) > 1:
        texts = [
            f"pool {i} ({pool['name']}): {text}"
            for i, (pool, text) in enumerate(zip(pools, texts, strict=True))
        ]
    options = result.inputs["options"]
    return [
        Paragraph(job_text(result)),
        *assumed_parts(result.notes),
        Paragraph(f"{', or '.join(texts)}, as {options['stack']} runs it", label="on"),
        *calibration_parts(options, result.calibration, result.notes),
    ]


def _pool_text(pool: Mapping[str, Any]) -> str:
    accelerator = pool["accelerator"]
    name = accelerator if isinstance(accelerator, str) else accelerator.get("name", "custom")
    devices = pool["nodes"] * pool["accelerators_per_node"]
    part = ""
    if pool.get("segment", pool["scale_up_domain"]) < pool["scale_up_domain"]:
        part = f", {pool['segment']} of every {pool['scale_up_domain']} in use"
    return f"{devices} x {name} in {pool['nodes']} node(s){part}"
