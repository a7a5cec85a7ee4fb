"""Tools that answer with plans, or are about one: solve, evaluate, explain and what follows."""

import json
from collections.abc import Sequence
from typing import Any

from planner.analyze.replan.gained import gained_of_text
from planner.analyze.single_changes import SingleChanges, plan_changes
from planner.frameworks.programs import is_program
from planner.render.answers.together import proof_text, together_sentence
from planner.render.card.answer import card_of, runner_of
from planner.render.card.text import card_lines
from planner.solver.answer.reasons import shown_layout
from planner.solver.answer.result import Result
from planner.units import GIB
from service.agents import arguments as args
from service.agents import short_answers as short
from service.agents.requests import (
    call_of_command,
    job_arguments,
    job_request,
    pins_of,
    plan_calls,
)
from service.agents.tool import Answered, Data, Desk
from service.handlers.plan_calls import open_request_plan
from service.handlers.schemas import EmitBody

MOST_HELP = 3
"""Changes that are named where a layout does not fit."""
MOST_CHANGES = 12
"""Changes of a plan that are listed unless all are asked for."""
LEAST_CHANGE_FRAC = 5e-4
"""Of the step: what changes less is listed with details=full alone."""
MOST_SHOWN_CHARS = 20_000
"""Texts of files that an answer shows; longer ones are named, and shown with details=full."""


def solve_tool(arguments: args.SolveArguments, desk: Desk) -> Answered:
    """Return ranked plans."""
    data = desk.ask("solve", job_request(arguments, desk))
    return plans_answered(data, arguments, desk)


def evaluate_tool(arguments: args.EvaluateArguments, desk: Desk) -> Answered:
    """Return one plan, whether or not it fits."""
    data = desk.ask("evaluate", {"pins": {}, **job_request(arguments, desk)})
    memory = data["plans"][0]["memory"]
    if memory["peak_bytes"] <= memory["usable_bytes"]:
        return plans_answered(data, arguments, desk)
    return plans_answered(data, arguments, desk, _fitting_changes(data, arguments, desk))


def plans_answered(
    data: Data, arguments: args.Job, desk: Desk, fitting: Sequence[short.Change] = ()
) -> Answered:
    """Return the answer of a search as tools give it, and keep it for later calls.

    `fitting` are changes after which a layout that was priced fits.
    """
    result = Result.from_json(data)
    result_id = desk.results.keep(data)
    card = card_of(result, source=result_id)
    plans = [short.short_plan(p, f"{result_id}#{p['rank']}") for p in data["plans"]]
    changes = [*fitting, *_would_help(data, arguments)]
    calls = plan_calls(plans[0].ref, _runner(result)) if plans else [x.call for x in changes]
    joined = _joined_plans(result, result_id)
    answer = short.SolveAnswer(
        result_id=result_id,
        sentence=card.sentence,
        fits=bool(plans) and plans[0].fits,
        complete=data["complete"],
        plans=plans,
        bottleneck=card.why if plans else "",
        proof=card.proof,
        counts=data["counts"],
        closest=_closest(data),
        conflicts=[short.Coded(**part) for parts in data["conflicts"] for part in parts],
        would_help=changes,
        faster_if_allowed=_faster(data),
        assumptions=[f"{x.text} [{x.option}]" if x.option else x.text for x in card.assumptions],
        notes=list(card.notes),
        together=joined,
        next=calls,
    )
    text = (
        (_joined_lines(joined) if joined else "")
        + "\n".join(card_lines(card))
        + "\n"
        + _plan_lines(result, result_id)
        + _change_lines(changes)
    )
    return Answered(text, answer, data)


def _joined_plans(result: Result, result_id: str) -> Data | None:
    """Return the plans over several pools of a result, named for later calls; None without."""
    together = result.together
    if together is None:
        return None
    return {
        "sentence": together_sentence(together),
        "pays": together.pays,
        "proof": proof_text(together),
        "plans": [
            {
                "ref": f"{result_id}#t{plan.rank}",
                "step_time_s": plan.step_time_s,
                "tokens_per_s": plan.tokens_per_s,
                "devices": dict(plan.devices),
                "runs_on": list(plan.runs_on),
            }
            for plan in together.plans
        ],
    }


def _joined_lines(joined: Data) -> str:
    """Return what one job over several pools reaches, a line a plan."""
    lines = []
    for plan in joined["plans"]:
        devices = ", ".join(f"{n} of {pool}" for pool, n in plan["devices"].items())
        lines.append(f"{plan['ref']}  {devices}: {plan['step_time_s']:.3f} s\n")
    return f"{joined['sentence']}\n{''.join(lines)}\nOn one pool alone:\n"


def _runner(result: Result) -> str:
    """Return the framework whose files run the first plan; empty where none does."""
    plan = result.plans[0]
    return runner_of(result, plan).partition("@")[0] if plan.runs_on else ""


def _closest(data: Data) -> Data | None:
    """Return the plan that comes closest to fitting, and what it lacks."""
    if data["closest"] is None:
        return None
    missing = data["closest"]["peak_bytes"] - data["closest"]["usable_bytes"]
    return {**data["closest"], "missing_bytes": missing}


def _would_help(data: Data, arguments: args.Job) -> list[short.Change]:
    return [
        short.Change(
            change=x["change"],
            call=call_of_command(x["command"], x["change"], arguments),
            step_time_s=x["step_time_s"],
            layout=x["layout"],
        )
        for x in data["relaxations"]
    ]


def _fitting_changes(
    data: Data, arguments: args.EvaluateArguments, desk: Desk
) -> list[short.Change]:
    """Return the single changes of a layout after which it fits, the fastest first."""
    rows = _changes_of({"result": data, "plan": 1}, "any", desk).to_json()["changes"]
    rows = sorted((row for row in rows if row.get("fits")), key=_order)
    changes: list[short.Change] = []
    for row in rows:
        pins = _pins_after(row)
        words = f"{row['axis']} {row['old']} -> {row['new']}"
        if pins and len(changes) < MOST_HELP:
            call = job_arguments(arguments) | {"pins": {**arguments.pins, **pins}}
            changes.append(
                short.Change(
                    change=words,
                    call=short.NextCall(purpose=words, tool="evaluate", arguments=call),
                    step_time_s=row["step_time_s"],
                    layout=row["layout"],
                )
            )
    return changes


def _pins_after(row: Data) -> Data:
    """Return the pins of a change; empty where they are more than a value."""
    axis, value = row["axis"], row["new"]
    if not isinstance(value, str) or ":" not in value:
        return {axis: value}
    word, _, count = value.partition(":")
    return {axis: word, f"{axis}_layers": int(count)} if count.isdigit() else {}


def _faster(data: Data) -> list[Data]:
    """Return the choices that are off by default and would make the first plan faster."""
    if not data["plans"]:
        return []
    step_s = data["plans"][0]["step_time_s"]
    return [
        {
            "pins": pins_of([x["pin"]]),
            "step_time_s": x["step_time_s"],
            "change_frac": x["step_time_s"] / step_s - 1.0,
            "peak_bytes": x["peak_bytes"],
            "fits": x["fits"],
        }
        for x in sorted(data["alternatives"], key=lambda x: x["step_time_s"])
        if x["step_time_s"] < step_s
    ]


def _plan_lines(result: Result, result_id: str) -> str:
    """Return a line a plan: its name for other tools, its layout, step and memory."""
    lines = [
        f"{result_id}#{plan.rank}  {shown_layout(plan.layout)}: {plan.step_time_s:.3f} s,"
        f" {plan.breakdown.peak_bytes / GIB:.1f} GiB{', a tie' * (plan.tie and plan.rank > 1)}\n"
        for plan in result.plans
    ]
    return "\nPlans:\n" + "".join(lines) if lines else ""


def _change_lines(changes: list[short.Change]) -> str:
    """Return what would help where nothing fits, each with the arguments that differ."""
    lines = []
    for change in changes:
        stated = {k: v for k, v in change.call.arguments.items() if k not in ("model", "cluster")}
        step = "" if change.step_time_s is None else f", {change.step_time_s:.2f} s a step"
        lines.append(f"  {change.change}{step}: {change.call.tool} with {stated}\n")
    return "\nWhat would help, the smallest change first:\n" + "".join(lines) if lines else ""


def explain_tool(arguments: args.ExplainArguments, desk: Desk) -> Answered:
    """Return what binds a plan and what would relax it, or one term opened."""
    data = desk.ask("explain", {**desk.results.plan(arguments.plan), "term": arguments.term})
    if "together" in data:
        return _joined_explained(data, arguments)
    binding = data.get("binding") or {"parts": [], "changes": [], "binds": "", "next": None}
    answer = short.ExplainAnswer(
        plan_id=data["plan_id"],
        term=data["term"],
        binds=binding["binds"],
        parts=short.picked(binding["parts"], "part", "time_s", "share", "meaning"),
        changes=short.picked(
            binding["changes"], "kind", "change", "step_time_s", "gain_frac", "peak_bytes", "fits"
        ),
        next_bottleneck=binding["next"],
    )
    whole = data["text"]
    is_long = not arguments.term and arguments.details == "short"
    return Answered(_above_tree(whole) if is_long else whole, answer, data)


def _joined_explained(data: Data, arguments: args.ExplainArguments) -> Answered:
    """Return what binds a plan over several pools: terms of the pipelines that others wait for."""
    found = data["together"]
    binding = found.get("binding", {})
    time = found["kinds"][binding["kind"] - 1]["time"] if binding else {}
    step_s = found.get("step_time_s", 0.0)
    answer = short.ExplainAnswer(
        plan_id=data["plan_id"],
        term=data["term"],
        binds=max(time, key=lambda x: time[x]) if time else "",
        parts=[{"part": x, "time_s": y, "share": y / step_s} for x, y in time.items()],
        changes=[],
        next_bottleneck=None,
    )
    is_long = not arguments.term and arguments.details == "short"
    return Answered(_above_tree(data["text"]) if is_long else data["text"], answer, data)


def _above_tree(text: str) -> str:
    """Return an explanation without its trees of numbers, which are in the figures."""
    return text.partition("\nstep time ")[0].rstrip() + "\n"


def neighbours_tool(arguments: args.ChangesArguments, desk: Desk) -> Answered:
    """Return what each single change of a plan does, the fastest that fits first."""
    from planner.render.document import text_of

    changes = _changes_of(desk.results.plan(arguments.plan), arguments.framework, desk)
    data = changes.to_json()
    rows = sorted(data["changes"], key=_order)
    if arguments.details == "short":
        rows = [x for x in rows if _is_notable(x)][:MOST_CHANGES]
    names = ("axis", "old", "new", "legal", "step_time_s", "delta_frac", "peak_bytes", "fits")
    answer = short.ChangesAnswer(
        plan_id=data["plan_id"],
        step_time_s=data["step_time_s"],
        changes=short.picked(rows, *names, "code", "codes", "reason"),
        next=plan_calls(arguments.plan, ""),
    )
    lines = [_changed_text(row) for row in rows]
    text = f"{data['step_time_s']:.3f} s a step; one change at a time:\n" + "".join(lines)
    return Answered(str(text_of(changes)) if arguments.details == "full" else text, answer, data)


def _changes_of(named: Data, framework: str, desk: Desk) -> SingleChanges:
    """Return every single change of a plan that is named as requests name it."""
    request = EmitBody.model_validate(named)
    model, _, problem, plan = open_request_plan(request, desk.running).opened
    return plan_changes(problem, plan, _framework(framework), model.precisions)


def _framework(name: str) -> str:
    from planner.frameworks.registry import named_framework

    return name if name == "any" else named_framework(name, "framework")


def _is_notable(row: Data) -> bool:
    """Tell whether a change is legal and moves the step by more than the model can tell."""
    change_frac = row.get("delta_frac") or 0.0
    return bool(row.get("legal", True)) and abs(change_frac) >= LEAST_CHANGE_FRAC


def _order(row: Data) -> tuple[bool, bool, float]:
    step_s = row.get("step_time_s")
    return not row.get("fits"), step_s is None, step_s or 0.0


def _changed_text(row: Data) -> str:
    change = f"  {row['axis']} {row['old']} -> {row['new']}"
    if row.get("step_time_s") is None:
        return f"{change}: not legal\n"
    fit = "" if row["fits"] else ", does not fit"
    return (
        f"{change}: {row['step_time_s']:.3f} s ({row['delta_frac']:+.1%}),"
        f" {row['peak_bytes'] / GIB:.1f} GiB{fit}\n"
    )


def compare_tool(arguments: args.CompareArguments, desk: Desk) -> Answered:
    """Return why one plan beats another."""
    a, b = (desk.results.plan(ref) for ref in (arguments.a, arguments.b))
    data = desk.ask("diff", {"a": a, "b": b, "with_text": True})
    text = data.pop("text")
    answer = short.CompareAnswer(
        winner=data["winner"].lower(),
        tokens_per_s_ratio=data["tokens_per_s_ratio"],
        a=data["a"],
        b=data["b"],
        layout=data["layout"],
        time=_differences(data["time"]),
        memory=_differences(data["memory"]),
        turns=data["turns"],
    )
    shown = text if arguments.details == "full" else text.partition("\ntime by term")[0] + "\n"
    return Answered(shown, answer, data)


def _differences(terms: Data) -> dict[str, float]:
    return {name: x["difference"] for name, x in terms.items() if x["difference"]}


def replan_tool(arguments: args.ReplanArguments, desk: Desk) -> Answered:
    """Return what to do with a running plan after nodes were lost or gained."""
    gained = gained_of_text(str(arguments.gained))
    counts = {"gained": gained} if isinstance(gained, int) else {"gained_by_pool": gained}
    more = {"lost": arguments.lost, **counts, "via": arguments.via}
    body = {**desk.results.plan(arguments.plan), **more, "with_text": True}
    data = desk.ask("replan", body)
    text = data.pop("text")
    result = data["result"]
    result_id = desk.results.keep(result)
    first = result["plans"][0] if result["plans"] and "together" not in data else None
    answer = short.ReplanAnswer(
        verdict=data["verdict"],
        break_even_s=data["break_even_s"],
        nodes=data["nodes"],
        batch={k: v for k, v in data["batch"].items() if k != "nearest"},
        plan=short.short_plan(first, f"{result_id}#1") if first else None,
        notes=data["notes"],
    )
    return Answered(text, answer, data)


def place_tool(arguments: args.PlaceArguments, desk: Desk) -> Answered:
    """Return which nodes hold which ranks; every rank where all is asked."""
    body = {**desk.results.plan(arguments.plan), "with_text": True}
    if arguments.hosts:
        body["hosts"] = arguments.hosts
    data = desk.ask("place", body)
    text = data.pop("text")
    names = ("n_members", "n_groups", "stride", "n_nodes", "tier")
    answer = short.PlaceAnswer(
        plan_id=data["plan_id"],
        n_ranks=data["n_ranks"],
        rank_order=data["rank_order"],
        pools=data.get("pools", []),
        groups=[
            {"group": name, **{key: group[key] for key in names}}
            for name, group in data["groups"].items()
        ],
    )
    return Answered(text, answer, data)


def trace_tool(arguments: args.TraceArguments, desk: Desk) -> Answered:
    """Return what the trace file of a step holds; its text where all is asked."""
    more = {"micro_batches": arguments.micro_batches}
    data = desk.ask("trace", {**desk.results.plan(arguments.plan), **more})
    trace = json.loads(data["trace"])
    about = trace["otherData"]
    answer = short.TraceAnswer(
        plan_id=data["plan_id"],
        n_events=len(trace["traceEvents"]),
        trace_end_s=about["trace_end_s"],
        predicted_step_s=about["predicted_step_s"],
        notes=about["notes"],
    )
    text = f"{answer.n_events:,} events, {answer.trace_end_s:.3f} s; the file with details=full\n"
    return Answered(text + "".join(f"- {note}\n" for note in answer.notes), answer, data)


def emit_tool(arguments: args.EmitArguments, desk: Desk) -> Answered:
    """Return the files that run a plan; programs and long files by name, unless all is asked."""
    from planner.analyze.plan_files import chosen_targets

    body: dict[str, Any] = {
        **desk.results.plan(arguments.plan),
        "for": chosen_targets(arguments.for_),
        "launcher": list(arguments.launcher),
    }
    if arguments.hosts:
        body["hosts"] = arguments.hosts
    data = desk.ask("emit", body)
    files = {name: text for name, text in data["files"].items() if _is_shown(name, text)}
    left_out = [name for name in data["files"] if name not in files]
    answer = short.EmitAnswer(
        plan_id=data["plan_id"], files=files, left_out=left_out, refused=data["refused"]
    )
    texts = [f"# ---- {name}\n{text}" for name, text in files.items()]
    more = f"not shown (details=full): {', '.join(left_out)}\n" if left_out else ""
    return Answered("".join(texts) + more, answer, data)


def _is_shown(name: str, text: str) -> bool:
    return not is_program(name) and len(text) <= MOST_SHOWN_CHARS
