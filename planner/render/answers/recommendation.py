"""The answer to an inverse question: in a sentence, with the walk or the links behind it."""

from collections.abc import Mapping
from typing import Any

from planner.analyze.recommend.answer import Recommendation
from planner.documents import Blank, Code, Grid, GridSpacing, Paragraph, Part
from planner.render.answers.inputs import assumed_parts, calibration_parts
from planner.render.answers.plan_table import plan_grid
from planner.render.nouns import noun_of_inputs
from planner.solver.answer.uncertainty import TIE_FRAC
from planner.units import GIB, format_bandwidth, format_count, format_link_speed, format_time

TOKENS_PER_ROW, SECONDS_PER_HOUR = 1e6, 3600
"""Device time is shown in hours for a million tokens."""
Data = Mapping[str, Any]
"""A walk or a step of it as `planner.analyze.recommend.walk` writes them."""


def recommendation_document(recommendation: Recommendation) -> list[Part]:
    """Return the answer, what was searched, and the best plan at the answer."""
    answer = recommendation.answer
    parts: list[Part] = []
    if recommendation.question == "layout" and answer is not None:
        parts += [*walk_parts(answer), Blank()]
    label, _, text = headline(recommendation).partition(" ")
    parts += [Paragraph(text, label=label), *_bandwidth_parts(answer or {})]
    parts += _hardware_parts(answer or {})
    options, notes = recommendation.inputs["options"], recommendation.notes
    parts += [
        Paragraph(recommendation.scope, label=" "),
        *calibration_parts(options, recommendation.calibration, notes),
        *assumed_parts(notes),
    ]
    if recommendation.plan:
        parts += [
            Blank(),
            plan_grid([recommendation.plan], noun=noun_of_inputs(recommendation.inputs)),
        ]
    if recommendation.command:
        parts.append(Code((f"next: {recommendation.command}",)))
    return parts


def headline(recommendation: Recommendation) -> str:
    """Return the answer in one sentence."""
    a, question = recommendation.answer, recommendation.question
    if a is None:
        return "No answer: nothing fits in the range searched."
    if question == "devices":
        return f"Fewest devices on which the job fits: {a['n_devices']}, in {a['nodes']} node(s)"
    if question == "size":
        return (
            f"Largest model of the family that fits: {format_count(a['params'])} parameters "
            f"({a['scale']:g} of the {a['by']}): {a['layers']} layers, hidden {a['hidden']}, "
            f"{a['heads']} heads ({a['kv_heads']} kv), ffn {a['ffn']}"
        )
    if question == "sequence":
        return f"Longest sequence that fits: {a['seq_len']} tokens"
    if question == "micro-batch":
        return f"Largest micro-batch that fits: {a['mbs']} sequence(s)"
    if question == "rank":
        return f"Largest rank of adapters that fits: {a['rank']}"
    if question == "hardware":
        return f"Best of {len(a['clusters'])} that do the job: {a['clusters'][0]['cluster']}"
    if question == "layout":
        return f"{walk_end(a)}."
    return f"Least bandwidth at which waiting is within {a['tolerance_frac']:.1%} of the compute"


def _bandwidth_parts(answer: Data) -> list[Part]:
    """Return of each axis its link, what that has, what it needs, what it waits."""
    if "axes" not in answer:
        return []
    parts: list[Part] = []
    for row in answer["axes"]:
        show = format_bandwidth if row["link"] == "scale-up" else format_link_speed
        least, floor = row["least_bytes_per_s"], format_time(row["floor_s"])
        need = (
            f"at least {show(least)}"
            if least is not None
            else f"no bandwidth hides it: {floor} are left at any"
        )
        text = (
            f"{need}; has {show(row['bytes_per_s'])} and waits {format_time(row['wait_s'])} "
            f"a step ({format_time(row['allowed_s'])} allowed)"
        )
        parts.append(Paragraph(text, label=f"  {row['axis']} over {row['link']}:"))
    return parts or [Paragraph("  this plan sends nothing")]


def _hardware_parts(answer: Data) -> list[Part]:
    """Return a table of the clusters, the best first, and those that were refused."""
    if "clusters" not in answer:
        return []
    has_cost = all(row["cost_usd"] is not None for row in answer["clusters"])
    rows = [
        (
            row["cluster"],
            f"{row['step_time_s']:.3f}",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['peak_bytes'] / GIB:.1f}/{row['usable_bytes'] / GIB:.1f}",
            format_time(row["expected_s"]) if row["expected_s"] else "-",
            f"{row['device_s_per_token'] * TOKENS_PER_ROW / SECONDS_PER_HOUR:,.2f}",
            f"{row['cost_usd']:,.2f}" if has_cost else "-",
        )
        for row in answer["clusters"]
    ]
    heads = ("cluster", "step s", "tokens/s", "GiB", "run", "h/Mtok", "USD")
    widths = tuple(max(map(len, column)) for column in zip(heads, *rows, strict=True))
    spacing = GridSpacing(widths, gaps=2, indent=2, hang=4)
    refused = [f"{name}: {why.splitlines()[0]}" for name, why in answer["refused"].items()]
    title = "hardware that does the job, the best first"
    table = Grid(heads, tuple(rows), title, tuple(range(1, 7)), spacing=spacing)
    return [Blank(), table, *(Paragraph(text, label="refused") for text in refused)]


def walk_parts(walk: Data) -> list[Part]:
    """Return the steps to a layout, each with its values, what is decided and what that costs."""
    parts: list[Part] = []
    for number, step in enumerate(walk["steps"], start=1):
        parts += [*([Blank()] if parts else []), Paragraph(f"{number}. {step['question']}")]
        if step["choices"]:
            parts.append(_choice_grid(step, walk["usable_bytes"]))
        parts.append(Paragraph(conclusion(step), label="   ", indent=4))
    return parts


def _choice_grid(step: Data, usable_bytes: float) -> Grid:
    name = step["step"].split(" ")[0]
    rows = []
    for choice in step["choices"]:
        peak, time_s = choice["peak_bytes"], choice["step_time_s"]
        rows.append(
            (
                "*" if choice["value"] == step["chosen"] else "",
                "one device" if name == "one" else f"{name} {choice['value']}",
                "-  " if time_s is None else f"{time_s:.3f} s",
                "" if peak is None else f"{peak / GIB:>8,.1f} of {usable_bytes / GIB:.1f} GiB",
                choice["why_not"] or choice["layout"],
            )
        )
    longest = max(*(len(row[1]) for row in rows), len(f"{name} 1"))
    widths = (1, longest, 10, 21, 0)
    spacing = GridSpacing(widths, gaps=1, indent=2, hang=sum(widths) + 6)
    heads = ("",) * 5
    return Grid(heads, tuple(rows), step["question"], (2,), spacing=spacing)


def conclusion(step: Data) -> str:
    """Return what a step decides, why, and what the decision costs."""
    chosen = step["chosen"]
    lead = "" if chosen is None else f"{step['step']} {chosen}: "
    costs, best_s = step["costs_s"], step["best_step_time_s"]
    price = ""
    if best_s is None:
        price = "; no plan keeps all decisions so far"
    elif costs > TIE_FRAC / 10 * best_s:
        price = f"; the best plan that keeps the decisions so far: {best_s:.3f} s, +{costs:.3f} s"
    return f"{lead}{step['why']}{price}"


def walk_end(walk: Data) -> str:
    """Return where the walk ends, where `solve` ends, and the difference, in a sentence."""
    end, best, costs = walk["end"], walk["best"], walk["costs_frac"]
    text = f"the fastest of all plans takes {best['step_time_s']:.3f} s"
    if end is None:
        return f"Greedy result: no plan fits; {text}, and {best['shown']} is recommended"
    where = f"Greedy result: {end['shown']}"
    if walk["same"]:
        return f"{where}, which is recommended of all plans, too; {text}"
    tie = ", within model error" if abs(costs) <= TIE_FRAC else ""
    blamed = [s for s in walk["steps"] if s["costs_s"] > TIE_FRAC / 10 * best["step_time_s"]]
    blamed.sort(key=lambda s: -s["costs_s"])
    parts = [f"{s['step']} {s['chosen']} +{s['costs_s']:.3f} s" for s in blamed]
    because = f" ({', '.join(parts)})" if parts else ""
    return (
        f"{where}; best plan under these choices: {end['step_time_s']:.3f} s a "
        f"step. Of all plans {best['shown']} is recommended, and the fastest takes "
        f"{best['step_time_s']:.3f} s: the walk costs {costs:+.1%}{tie}{because}"
    )
