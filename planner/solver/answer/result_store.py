"""Saved results and PLAN arguments: `RESULT.json#<plan id or rank>`, `last#<...>`."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.axes import CP_COMMS, RANK_ORDERS, RECOMPUTES, SCHEDULES
from costmodels.plans import SWITCHES, Layout
from costmodels.problem import Problem
from planner.errors import FileError, SearchError, UsageError
from planner.frameworks.registry import named_space
from planner.solver.answer.result import SCHEMA_VERSION, Plan, Result
from planner.solver.calibration.file import calibration_from_json
from planner.solver.options import MEMORY_MARGIN, SolveOptions
from planner.solver.recipes import with_asked_recipes, with_numerics
from planner.solver.together.records import JoinedPlan, Together
from planner.specs.inputs import ClusterInput, ModelInput
from planner.specs.loader import cluster_from_dict, model_from_dict
from planner.specs.search.axis_values import NUMERICS, layout_from_json
from planner.specs.search.objectives import WITHIN
from planner.specs.search.section import APART
from planner.units import GIB, shown_value

MAX_SAVED = 20
"""Results kept in the user's cache folder; older ones are dropped."""

Opened = tuple[ModelInput, ClusterInput, Problem, Plan]
"""A plan of a saved result, priced again, with its inputs; the cluster is its pool alone."""


def cache_folder() -> Path:
    """Return the folder of the last results (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "parallelism-planner"


def save_result(result: Result) -> None:
    """Keep a result for `last#...`; a folder that cannot be written is not an error."""
    save_text(result.result_id, result.dumps())


def save_text(result_id: str, text: str) -> None:
    """Keep the JSON text of a result, as `save_result`."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        previous = [p for p in folder.glob("*.json") if p.name != f"{result_id}.json"]
        part = folder / f"{result_id}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / f"{result_id}.json")
        (folder / "last").write_text(result_id, encoding="utf-8")
        previous.sort(key=lambda p: (p.stat().st_mtime, p.name))
        for old in previous[: -(MAX_SAVED - 1)]:
            old.unlink()
    except OSError:
        return


def _last_path() -> Path:
    marker = cache_folder() / "last"
    if not marker.is_file():
        raise FileError(
            "there is no last result", "run planner solve first, or name RESULT.json#1"
        )
    return cache_folder() / f"{marker.read_text(encoding='utf-8').strip()}.json"


def read_result(source: str) -> dict[str, Any]:
    """Return the saved result of a path, or `last`; `UsageError` where there is none."""
    path = _last_path() if source == "last" else Path(source)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileError(f"no result file {source}", "save one with --format json > FILE") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        fix = "name the output of planner solve --format json"
        raise FileError(f"{source} is not a result of planner: {error}", fix) from None
    return checked_result(data, source)


def checked_result(data: Any, source: str) -> dict[str, Any]:
    """Return the data of a result that messages call `source`; `UsageError` where it is none."""
    if not isinstance(data, dict) or "schema_version" not in data or "plans" not in data:
        raise FileError(
            f"{source} is not a result of planner",
            "expected the JSON of an answer of solve or evaluate",
            "result",
        )
    try:
        _ = data["inputs"]["model"], data["inputs"]["cluster"], data["inputs"]["options"]["top"]
        _ = [(p["rank"], p["plan_id"], p["pool"], p["layout"]["tp"]) for p in data["plans"]]
    except (KeyError, TypeError, IndexError) as error:
        fix = "give the whole JSON of an answer of solve or evaluate"
        message = f"{source} is not a whole result: {error} is missing"
        raise FileError(message, fix, "result") from None
    major = str(data["schema_version"]).split(".")[0]
    if major != SCHEMA_VERSION.split(".")[0]:
        raise FileError(
            f"{source} has schema {data['schema_version']}",
            f"this version reads {SCHEMA_VERSION}",
            "result",
        )
    return data


def read_options(data: Mapping[str, Any]) -> SolveOptions:
    """Return the options that a result was computed with."""
    own = data.get("calibration")
    return SolveOptions(
        top=data["top"],
        pins=data["pins"],
        only={axis: frozenset(values) for axis, values in data["only"].items()},
        at_most=data["max"],
        framework=named_space(data["framework"]),
        stack=data["stack"],
        allow=frozenset(data["allow"]),
        objective=data.get("objective", "step_time"),
        within=data.get("within", WITHIN),
        pools=data.get("pools", APART),
        memory_margin=data.get("memory_margin", MEMORY_MARGIN),
        deadline_s=data.get("deadline_s"),
        step_limit_s=data.get("step_limit_s"),
        budget_usd=data.get("budget_usd"),
        pareto=tuple(data.get("pareto", ())),
        own_calibration=calibration_from_json(own) if own else None,
    )


def plan_named(reference: str) -> tuple[str, str]:
    """Return the source of the result, and the plan in it, that a PLAN argument names."""
    source, mark, which = reference.rpartition("#")
    if reference == "last":
        return "last", "1"
    if not mark:
        is_path = Path(reference).is_file() or "/" in reference or reference.endswith(".json")
        return (reference, "1") if is_path else ("last", reference)
    return source, which


def read_plan_reference(reference: str) -> tuple[dict[str, Any], str]:
    """Return the result and the plan in it that a PLAN argument names; it may hold no plans."""
    source, which = plan_named(reference)
    return read_result(source), which


def options_of(reference: str) -> SolveOptions:
    """Return the options with which the plan of a PLAN argument was found."""
    return read_options(read_result(plan_named(reference)[0])["inputs"]["options"])


def open_plan(reference: str) -> Opened:
    """Return the inputs and the re-priced plan of a PLAN argument.

    The plan is priced again from the inputs that the result holds; a plan id that no longer
    comes out (another catalogue or version changes no id, an edited file does) is an error.
    """
    source, which = plan_named(reference)
    return plan_of_result(read_result(source), which, source)


def plan_of_result(data: Mapping[str, Any], which: str, source: str) -> Opened:
    """Return the inputs and the re-priced plan of a result that is read, as `open_plan`."""
    from planner.solver.answer.plans import plan_of_layout

    joined = joined_plan_of(data, which)
    if joined is not None:
        raise UsageError(
            f"plan {which} uses several pools: {', '.join(joined.devices)}",
            "show, explain, trace, diff, replan, emit and place take it; others a plan such as 1",
            "plan",
        )
    plan = pick_plan(data["plans"], which, source, _joined_names(data))
    inputs = data["inputs"]
    model, cluster = model_from_dict(inputs["model"]), cluster_from_dict(inputs["cluster"])
    cluster = cluster.pool(plan["pool"])
    options = read_options(inputs["options"])
    words = {axis: plan["layout"][axis] for axis in NUMERICS if axis in plan["layout"]}
    if "precision" in plan:
        words["precision"] = plan["precision"]
    model = with_numerics(with_asked_recipes(model, options), words)
    layout = layout_from_json(plan["layout"])
    wrong = layout_fault(layout, model, cluster)
    if wrong:
        raise SearchError(f"{source}#{which}: edited by hand? {wrong}", "solve again")
    problem, priced = plan_of_layout(model, cluster, options, layout, plan["rank"])
    if priced.plan_id != plan["plan_id"]:
        raise SearchError(
            f"{source}#{which}: edited by hand? Its inputs give plan {priced.plan_id}",
            "solve again",
        )
    listed = replace(
        priced,
        group=plan.get("group"),
        tie=bool(plan.get("tie", priced.tie)),
        n_variants=plan.get("n_variants", 1),
    )
    return model, cluster, problem, listed


def layout_fault(layout: Layout, model: ModelInput, cluster: ClusterInput) -> str:
    """Return why a layout cannot be one of this job on the first pool; empty where it can."""
    degrees = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "mbs", "gbs", "n_devices", "hpz")
    counts = (*degrees, "zero", "shard", "recompute_layers", "activation_offload_layers")
    for name in counts:
        value = getattr(layout, name)
        if type(value) is not int or value < (name in degrees):
            return f"{name} is {shown_value(value)}"
    choices = {
        "schedule": SCHEDULES,
        "recompute": RECOMPUTES,
        "cp_comm": CP_COMMS,
        "rank_order": RANK_ORDERS,
        "zero": range(4),
    }
    for name, names in choices.items():
        if getattr(layout, name) not in names:
            return f"{name} is {shown_value(getattr(layout, name))}"
    for name in ("sp", *SWITCHES):
        if type(getattr(layout, name)) is not bool:
            return f"{name} is {shown_value(getattr(layout, name))}"
    layers, job = layout.stage_layers, model.job
    if any(type(n) is not int or n < 0 for n in layers) or sum(layers) != model.shape.layers:
        return f"its stages do not hold the {model.shape.layers} layers of the model"
    if len(layers) != layout.pp * layout.vpp:
        return f"it has {len(layers)} virtual stages, and pp {layout.pp} x vpp {layout.vpp}"
    if layout.tp * layout.pp * layout.cp * layout.dp != layout.n_devices:
        return f"tp x pp x cp x dp is not {layout.n_devices}"
    if layout.gbs != job.global_batch or layout.gbs != layout.n_micro * layout.mbs * layout.dp:
        return f"its batch is not the {job.global_batch} sequences of the job"
    if (layout.dp * layout.cp) % layout.dp_shard or (layout.dp * layout.cp) % layout.hpz:
        return f"its ZeRO groups do not divide {layout.dp * layout.cp} ranks"
    pool = cluster.cluster.pools[0]
    try:
        pool.first_devices(layout.n_devices)
    except ValueError as error:
        return str(error)
    n_experts, inner = model.shape.n_experts, layout.ep * layout.etp
    if (layout.tp * layout.cp * layout.dp) % inner or (max(n_experts, 1) % layout.ep):
        return f"ep {layout.ep} x etp {layout.etp} do not divide its experts and ranks"
    return ""


def opened_plan(reference: str) -> Opened:
    """Return `open_plan` for a command: a note on stderr where the saved figures differ."""
    opened = open_plan(reference)
    note = repriced_note(reference, opened[3])
    if note:
        sys.stderr.write(f"note: {note}\n")
    return opened


def repriced_note(reference: str, plan: Plan) -> str:
    """Return how far a reopened plan is from what its result says; empty where it is not.

    Another calibration, catalogue or version than the one that wrote the result prices otherwise.
    """
    source, which = plan_named(reference)
    return repriced_note_of(read_result(source), which, source, plan)


def repriced_note_of(data: Mapping[str, Any], which: str, source: str, plan: Plan) -> str:
    """Return `repriced_note` for a result that is read."""
    saved = pick_plan(data["plans"], which, source)
    then = float(saved.get("step_time_s", plan.step_time_s))
    peak = float(saved.get("memory", {}).get("peak_bytes", plan.breakdown.peak_bytes))
    same_peak = abs(peak - plan.breakdown.peak_bytes) <= 1e-6 * peak
    if same_peak and abs(then - plan.step_time_s) <= 1e-9 * then:
        return ""
    by = data.get("calibration", {})
    name, version = by.get("name", "another calibration"), by.get("version", "?")
    return (
        f"{source} was priced with {name} by version {version}: step {then:.3f} s and"
        f" {peak / GIB:.1f} GiB there, {plan.step_time_s:.3f} s and"
        f" {plan.breakdown.peak_bytes / GIB:.1f} GiB now; solve again to rank with today's figures"
    )


JOINED = re.compile(r"t(\d{1,3})")
"""Ranks of plans over several pools: t1."""


def joined_plan_of(data: Mapping[str, Any], which: str) -> JoinedPlan | None:
    """Return the plan over several pools of a result that a rank (t1) or an id names, if any."""
    plans = Together.from_json(data["together"]).plans if data.get("together") else ()
    if named := JOINED.fullmatch(which):
        found = [plan for plan in plans if plan.rank == int(named.group(1))]
    else:
        of_ids = len(which) >= LEAST_ID
        found = [plan for plan in plans if of_ids and plan.plan_id.startswith(which)]
    return found[0] if len(found) == 1 else None


LEAST_ID = 4
"""Digits of an id that name a plan; fewer are ranks."""


def _joined_names(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the plans over several pools of a result are called."""
    together = data.get("together")
    return tuple(f"t{x.rank}" for x in Together.from_json(together).plans) if together else ()


def pick_plan(
    plans: list[dict[str, Any]], which: str, source: str, others: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the plan of a rank or of an id (a unique beginning is enough).

    `others` are what an error names besides: plans over several pools.
    """
    if not plans:
        fix = "nothing fitted; planner solve says why"
        raise UsageError(f"{source} holds no plans", fix, "result")
    if which.isdecimal() and len(which) < 4:
        results = [plan for plan in plans if plan["rank"] == int(which)]
    else:
        results = [plan for plan in plans if which and plan["plan_id"].startswith(which)]
    if len(results) != 1:
        known = (f"{plan['rank']} {plan['plan_id']}" for plan in plans[:5])
        choices = ", ".join((*known, *others))
        problem = "several plans" if results else "no plan"
        raise UsageError(f"{problem} {which!r} in {source}", f"ranks and ids: {choices}", "plan")
    return results[0]
