"""The comparison itself: plans of Sailor, of what it ships and ours, under Sailor's simulator."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.sailor.checkout import BASELINES, NOT_RUN, Checkout
from tools.sailor.profiles import Data, data_from, extract
from tools.sailor.scenarios import CONFIGS, PARTS, PRICES_PER_H, SCENARIOS, Scenario
from tools.sailor.search import WIDTH, search
from tools.sailor.step import Plan as SailorPlan
from tools.sailor.step import Replica, Stage, score

COMMIT = "cf2c8e3"
"""Of github.com/eth-easl/sailor."""
FOLDER = Path(__file__).resolve().parent
KEPT = FOLDER / "kept.json"
PROFILES = FOLDER / "profiles.json"


def kept() -> dict[str, Any]:
    """Return the kept table."""
    result: dict[str, Any] = json.loads(KEPT.read_text())
    return result


def kept_data() -> Data:
    """Return the profiles that are kept beside it."""
    return data_from(json.loads(PROFILES.read_text()))


def write_profiles(checkout: Checkout) -> Data:
    """Read the profiles off a checkout and keep those of the scenarios."""
    document = extract(checkout.folder, CONFIGS, PARTS, PRICES_PER_H)
    PROFILES.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    return data_from(document)


def short(plan: SailorPlan) -> dict[str, Any]:
    """Return a plan in few words: micro-batch, and runs of like replicas by stage."""
    stages = []
    for stage in plan.stages:
        runs: list[list[Any]] = []
        for x in stage.replicas:
            own = [x.part, x.zone, x.tp]
            if runs and runs[-1][:3] == own:
                runs[-1][3] += 1
            else:
                runs.append([*own, 1])
        stages.append([stage.start, stage.end, runs])
    return {"mbs": plan.mbs, "stages": stages}


def long(document: dict[str, Any]) -> SailorPlan:
    """Return the plan that `short` wrote."""
    stages = []
    for start, end, runs in document["stages"]:
        replicas = [Replica(part, zone, tp) for part, zone, tp, n in runs for _ in range(n)]
        stages.append(Stage(start, end, tuple(replicas)))
    return SailorPlan(document["mbs"], tuple(stages))


def ours(scenario: Scenario, data: Data, width: int = WIDTH) -> dict[str, Any]:
    """Return our plan for a scenario, with what it took and what is proven."""
    start_s, cpu_s = time.monotonic(), time.process_time()
    profile = data.profiles[scenario.model]
    answer = search(data, profile, scenario.pools(), scenario.asked, width)
    result = {
        "width": width,
        "search_s": round(time.monotonic() - start_s, 2),
        "cpu_s": round(time.process_time() - cpu_s, 2),
    }
    if answer.plan is None or answer.score is None:
        return {**result, "reason": "no plan that fits and keeps limits"}
    return {
        **result,
        "gap_frac": round(answer.gap_frac(scenario.asked.objective), 5),
        "formula_s": answer.score.step_s,
        "plan": short(answer.plan),
    }


def compare(
    checkout: Checkout,
    runs: Path,
    planners: Sequence[str] = ("SAILOR", *BASELINES),
    only: str = "",
    limit_s: float = 600.0,
) -> dict[str, Any]:
    """Run every planner on every scenario, score all by Sailor's simulator, keep the table."""
    data = write_profiles(checkout)
    rows = {x["scenario"]: x for x in (kept()["rows"] if KEPT.is_file() else [])}
    for scenario in SCENARIOS:
        if only not in scenario.key:
            continue
        found = {name: checkout.plan(scenario, name, runs, limit_s) for name in planners}
        own = ours(scenario, data)
        if "plan" in own:
            asked = [{"plan": long(own["plan"]).to_sailor()}]
            (said,) = checkout.scores(scenario.config, asked)
            own |= {"step_s": said["step_s"], "cost": said["cost"], "fits": said["fits"]}
        for one in found.values():
            one.pop("plan", None)
        row = {
            "scenario": scenario.key,
            "objective": scenario.asked.objective,
            "planners": {"ours": own, **found},
        }
        rows[scenario.key] = row
        print(json.dumps({k: _figures(v) for k, v in row["planners"].items()}), flush=True)
        order = [x.key for x in SCENARIOS]
        document = {
            **(kept() if KEPT.is_file() else {}),
            "source": "github.com/eth-easl/sailor, MIT licence",
            "commit": COMMIT,
            "not_run": NOT_RUN,
            "rows": sorted(rows.values(), key=lambda x: order.index(x["scenario"])),
        }
        KEPT.write_text(json.dumps(document, indent=1) + "\n")
    return kept()


def _figures(one: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in one.items() if k in ("step_s", "cost", "search_s", "reason")}


def formula_error(row: dict[str, Any], scenario: Scenario, data: Data) -> float:
    """Return by what our writing of the formulas differs from the simulator on our plan."""
    own = row["planners"]["ours"]
    said = score(long(own["plan"]), data.profiles[scenario.model], data)
    return abs(said.step_s / float(own["step_s"]) - 1.0)
