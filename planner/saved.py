"""Saved results and PLAN arguments: `RESULT.json#<plan id or rank>`, `last#<...>`."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.problem import Problem
from planner.calibration.file import calibration_from_json
from planner.errors import SearchError, UsageError
from planner.inputs import ClusterInput, ModelInput, cluster_from_dict, model_from_dict
from planner.layouts import layout_from_json
from planner.objectives import WITHIN
from planner.options import SolveOptions
from planner.recipes import with_asked_recipes, with_recipe
from planner.result import SCHEMA_VERSION, Plan, Result
from planner.units import GIB

MAX_SAVED = 20
"""Results kept in the user's cache folder; older ones are dropped."""


def cache_folder() -> Path:
    """Return the folder of the last results (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "parallelism-planner"


def save_result(result: Result) -> None:
    """Keep a result for `last#...`; a folder that cannot be written is not an error."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        previous = [p for p in folder.glob("*.json") if p.name != f"{result.result_id}.json"]
        part = folder / f"{result.result_id}.part"
        part.write_text(result.dumps(), encoding="utf-8")
        part.replace(folder / f"{result.result_id}.json")
        (folder / "last").write_text(result.result_id, encoding="utf-8")
        previous.sort(key=lambda p: (p.stat().st_mtime, p.name))
        for old in previous[: -(MAX_SAVED - 1)]:
            old.unlink()
    except OSError:
        return


def _last_path() -> Path:
    marker = cache_folder() / "last"
    if not marker.is_file():
        raise UsageError(
            "there is no last result", "run planner solve first, or name RESULT.json#1"
        )
    return cache_folder() / f"{marker.read_text(encoding='utf-8').strip()}.json"


def _read(source: str) -> dict[str, Any]:
    path = _last_path() if source == "last" else Path(source)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"no result file {source}", "save one with --format json > FILE"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{source} is not a result of planner: {error}", "") from None
    if not isinstance(data, dict) or "schema_version" not in data or "plans" not in data:
        raise UsageError(
            f"{source} is not a result of planner", "expected the output of --format json"
        )
    try:
        _ = data["inputs"]["model"], data["inputs"]["cluster"], data["inputs"]["options"]["top"]
        _ = [(p["rank"], p["plan_id"], p["pool"], p["layout"]["tp"]) for p in data["plans"]]
    except (KeyError, TypeError, IndexError) as error:
        fix = "save the whole output of --format json"
        raise UsageError(f"{source} is not a whole result: {error} is missing", fix) from None
    major = str(data["schema_version"]).split(".")[0]
    if major != SCHEMA_VERSION.split(".")[0]:
        raise UsageError(
            f"{source} has schema {data['schema_version']}", f"this version reads {SCHEMA_VERSION}"
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
        framework=data["framework"],
        stack=data["stack"],
        allow=frozenset(data["allow"]),
        objective=data.get("objective", "step_time"),
        within=data.get("within", WITHIN),
        deadline_s=data.get("deadline_s"),
        step_limit_s=data.get("step_limit_s"),
        pareto=tuple(data.get("pareto", ())),
        own_calibration=calibration_from_json(own) if own else None,
    )


def _parts(reference: str) -> tuple[str, str]:
    """Return the result and the plan in it that a PLAN argument names."""
    source, mark, which = reference.rpartition("#")
    if reference == "last":
        return "last", "1"
    if not mark:
        return (reference, "1") if Path(reference).is_file() else ("last", reference)
    return source, which


def options_of(reference: str) -> SolveOptions:
    """Return the options with which the plan of a PLAN argument was found."""
    return read_options(_read(_parts(reference)[0])["inputs"]["options"])


def open_plan(reference: str) -> tuple[ModelInput, ClusterInput, Problem, Plan]:
    """Return the inputs and the re-priced plan of a PLAN argument.

    The plan is priced again from the inputs that the result holds; a plan id that no longer
    comes out (another catalogue or version changes no id, an edited file does) is an error.
    """
    from planner.solving import plan_of_layout

    source, which = _parts(reference)
    data = _read(source)
    plan = _pick(data["plans"], which, source)
    inputs = data["inputs"]
    model, cluster = model_from_dict(inputs["model"]), cluster_from_dict(inputs["cluster"])
    cluster = cluster.pool(plan["pool"])
    options = read_options(inputs["options"])
    model = with_recipe(with_asked_recipes(model, options), plan.get("precision", ""))
    problem, priced = plan_of_layout(
        model, cluster, options, layout_from_json(plan["layout"]), plan["rank"]
    )
    if priced.plan_id != plan["plan_id"]:
        raise SearchError(f"{reference}: edited by hand? Its inputs give plan {priced.plan_id}",
                          "solve again")  # fmt: skip
    return model, cluster, problem, replace(priced, group=plan.get("group"))


def opened(reference: str) -> tuple[ModelInput, ClusterInput, Problem, Plan]:
    """Return `open_plan` for a command: a note on stderr where the saved figures differ."""
    found = open_plan(reference)
    note = repriced_note(reference, found[3])
    if note:
        sys.stderr.write(f"note: {note}\n")
    return found


def repriced_note(reference: str, plan: Plan) -> str:
    """Return how far a reopened plan is from what its result says; empty where it is not.

    Another calibration, catalogue or version than the one that wrote the result prices otherwise.
    """
    source, which = _parts(reference)
    data = _read(source)
    saved = _pick(data["plans"], which, source)
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


def _pick(plans: list[dict[str, Any]], which: str, source: str) -> dict[str, Any]:
    """Return the plan of a rank or of an id (a unique beginning is enough)."""
    if not plans:
        raise UsageError(f"{source} holds no plans", "nothing fitted; planner solve says why")
    if which.isdigit() and len(which) < 4:
        found = [plan for plan in plans if plan["rank"] == int(which)]
    else:
        found = [plan for plan in plans if which and plan["plan_id"].startswith(which)]
    if len(found) != 1:
        known = ", ".join(f"{plan['rank']} {plan['plan_id']}" for plan in plans[:5])
        problem = "several plans" if found else "no plan"
        raise UsageError(f"{problem} {which!r} in {source}", f"ranks and ids: {known}")
    return found[0]
