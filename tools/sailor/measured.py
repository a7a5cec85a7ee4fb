"""Plans that Sailor's authors measured, predicted by its simulator and by our schedule.

Both read the same profiles. Ours is the closed form of 1F1B with messages that are waited for,
as DeepSpeed's pipeline sends them (`runtime/pipe/p2p.py`: blocking):

    T = (m - 1) max_i ( t_i + 2 h_(i-1) + 2 h_i ) + sum t + 2 sum h + sync + update

t_i forward and backward of a stage, h_i one message over the boundary behind it, which both its
ends wait for with activations and with their gradients; sync the longest all-reduce of gradients.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

from tools.sailor.checkout import Checkout
from tools.sailor.profiles import BYTES_PER_VALUE, Data, Profile, data_from, extract
from tools.sailor.step import Plan, micro_batches, plan_from_sailor, sync_s

SETS = {
    "GH200, OPT-350M": ("clariden/OPT-350", "OPT-350"),
    "GH200, GPT-Neo 2.7B": ("clariden/GPT-NEO", "GPT-Neo-2.7"),
    "Titan RTX + RTX 2080 Ti + RTX 3090, OPT-350M": ("mit", "OPT-350"),
}
CONFIGS = {
    "OPT-350": "training_config_opt_350.json",
    "GPT-Neo-2.7": "training_config_gpt_neo27.json",
}
PARTS = ["GH-96", "Titan-RTX", "RTX-2080", "RTX-3090"]
DOUBTFUL = {
    "GPT-NEO/N4/D4": "its step is the gradient time of OPT-350 N4/D4, to the last digit",
    "mit/N3/D1": "its step is that of N6/D2, to the last digit",
    "mit/N6/D2": "its step is that of N3/D1, to the last digit",
}
"""Measured plans that stand in the table and not in the medians."""


def predicted_s(plan: Plan, batch: int, profile: Profile, data: Data) -> float:
    """Return the step that our schedule gives a plan."""
    m, pp = micro_batches(batch, plan.mbs, plan.n_replicas), len(plan.stages)
    times, hops, updates = [], [0.0], []
    for i, stage in enumerate(plan.stages):
        ways = {(x.part, x.tp, plan.mbs) for x in stage.replicas}
        times.append(max(float(profile.layer_s[w][stage.start : stage.end].sum()) for w in ways))
        updates.append(max(float(profile.update_s[w][stage.start]) for w in ways))
        if i < pp - 1:
            size = profile.outputs[stage.end - 1] * BYTES_PER_VALUE * plan.mbs
            slowest = 0.0
            for a, b in zip(stage.replicas, plan.stages[i + 1].replicas, strict=True):
                ends = (a.zone, a.part, a.tp), (b.zone, b.part, b.tp)
                slowest = max(slowest, float(data.links.message_s(size, *ends)))
            hops.append(slowest)
    hops.append(0.0)
    busy = [t + 2.0 * (a + b) for t, a, b in zip(times, hops, hops[1:], strict=False)]
    pipeline_s = (m - 1) * max(busy) + sum(times) + 2.0 * sum(hops)
    return pipeline_s + sync_s(plan, profile, data.links) + max(updates)


def compare_measured(checkout: Checkout) -> list[dict[str, Any]]:
    """Predict every measured plan; keep the table beside that of the plans; return it."""
    from tools.sailor.compare import KEPT

    data = data_from(extract(checkout.folder, CONFIGS, PARTS, {}))
    root = checkout.planner / "simulations" / "validation"
    rows: list[dict[str, Any]] = []
    for name, (folder, model) in SETS.items():
        files = sorted((root / folder).glob("N*/*.json"), key=_order)
        plans = [json.loads(x.read_text()) for x in files]
        asked = [
            {"plan": {k: x[k] for k in ("pipeline_list", "mbs")}, "batch": x["gbs"]} for x in plans
        ]
        said = checkout.scores(CONFIGS[model], asked)
        for file, one, its in zip(files, plans, said, strict=True):
            plan = plan_from_sailor(one)
            own_s = predicted_s(plan, one["gbs"], data.profiles[model], data)
            rows.append(
                {
                    "set": name,
                    "plan": _name(file, folder),
                    "pp": len(plan.stages),
                    "replicas": plan.n_replicas,
                    "mbs": plan.mbs,
                    "batch": one["gbs"],
                    "measured_s": one["real"],
                    "sailor_s": round(its["step_s"], 5),
                    "ours_s": round(own_s, 5),
                }
            )
    document = json.loads(KEPT.read_text())
    document["measured"] = rows
    KEPT.write_text(json.dumps(document, indent=1) + "\n")
    return rows


def _name(file: Path, folder: str) -> str:
    rest = file.stem.removeprefix("plan_config_").split("_", 1)[1].replace("_", "-")
    return f"{folder.removeprefix('clariden/')}/{file.parent.name}/{rest}"


def _order(file: Path) -> tuple[int, str]:
    return int(file.parent.name[1:]), file.name


def errors(rows: list[dict[str, Any]], of: str) -> dict[str, float]:
    """Return the median absolute error of each set and of all, doubtful plans left out."""
    sets: dict[str, list[float]] = {}
    for x in rows:
        if x["plan"] not in DOUBTFUL:
            error = abs(x[of] / x["measured_s"] - 1.0)
            sets.setdefault(x["set"], []).append(error)
            sets.setdefault("all", []).append(error)
    return {k: median(v) for k, v in sets.items()}
