"""Sharded replicas over two pools with unequal batches: started, and weighed against equal ones.

The same sequences are trained on twice: by replicas on two pools of which one takes twice the
micro-batch of the other, and by one replica whose ranks take equal ones. Losses and norms of
gradients are those of one global batch, so they must be the same but for rounding.
"""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.smoke.cases_fsdp2 import DENSE
from tools.smoke.cases_torchtitan import model as torchtitan_model
from tools.smoke.expected import reported_facts
from tools.smoke.run import TAIL_CHARS, run_launcher

BATCH, RANKS = 12, 2
"""Sequences of a step; ranks of one replica."""
TOLERANCES = {"torchtitan": 1e-5, "fsdp2": 5e-4}
"""Relative, by framework: sums in another order, in fp32 and in bf16."""
OPTIONS = {
    "torchtitan": ("--debug.seed", "7", "--training.mixed_precision_param", "float32"),
    "fsdp2": (),
}
"""Words of the launcher: the same initial weights, and no rounding, as far as options say so."""
MODELS: Mapping[str, dict[str, Any]] = {
    "torchtitan": torchtitan_model("tiny", batch=BATCH),
    "fsdp2": {
        "model": {"name": "tiny", **DENSE},
        "training": {
            "seq_len": 128,
            "global_batch": BATCH,
            "precision": "bf16",
            "optimizer": "adam",
        },
    },
}
"""A tiny job by framework."""
UNEQUAL = ("--pools", "together", "--max", "mbs=2", "--pin", "recompute=none")
"""Two accumulation steps, of 2 and 1 sequences a rank."""
EQUAL = (
    "--pool",
    "new",
    "--pin",
    f"devices={RANKS},dp={RANKS},mbs=3,tp=1,pp=1,cp=1,zero=3,recompute=none",
)


def two_pools() -> dict[str, Any]:
    """Return a cluster of two nodes that are unlike."""
    parts = (("new", "h100-sxm-80gb", "ib-ndr-400"), ("old", "a100-sxm-80gb", "ib-hdr-200"))
    pools = [
        {
            "name": name,
            "accelerator": part,
            "nodes": 1,
            "accelerators_per_node": RANKS,
            "scale_up_domain": RANKS,
            "nics_per_node": RANKS,
            "nic": nic,
        }
        for name, part, nic in parts
    ]
    return {"name": "tiny", "pools": pools, "fabric": {"rail_optimized": True}}


def replica_problems(
    framework: str, planner: Sequence[str], env: Mapping[str, str], folder: Path, limit_s: float
) -> list[str]:
    """Return what of such a job is not as planned; `env` is that of the framework."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(json.dumps(MODELS[framework]))
    (folder / "cluster.yaml").write_text(json.dumps(two_pools()))
    found = []
    for name, words in (("unequal", UNEQUAL), ("equal", EQUAL)):
        plan, launcher = _emitted(framework, planner, folder / name, words)
        code, output = run_launcher(
            ["bash", str(launcher), "--smoke", *OPTIONS[framework]], env, limit_s
        )
        (folder / f"{name}.txt").write_text(output)
        facts = reported_facts(output)
        if code or facts is None:
            return [f"{name} batches: exit {code}: {output[-TAIL_CHARS:]}"]
        found.append((plan, facts))
    (plan, unequal), (_, equal) = found
    problems = []
    if len({kind["mbs"] for kind in plan["kinds"]}) < 2:
        problems.append("the plan has equal batches: nothing is shown")
    wanted = {
        "world_size": sum(plan["devices"].values()),
        "n_micro": plan["kinds"][0]["n_micro"],
        "gbs": sum(kind["n_sequences"] for kind in plan["kinds"]),
        "mbs": plan["kinds"][0]["mbs"],
    }
    problems += [
        f"{name}: the job has {unequal.get(name)}, the plan {want}"
        for name, want in wanted.items()
        if unequal.get(name) != want
    ]
    for name in ("losses", "gradient_norms"):
        pairs = list(zip(unequal[name], equal[name], strict=True))
        if not all(math.isclose(a, b, rel_tol=TOLERANCES[framework]) for a, b in pairs):
            problems.append(f"{name}: {unequal[name]} with unequal batches, {equal[name]} else")
    return problems


def _emitted(
    framework: str, planner: Sequence[str], folder: Path, words: Sequence[str]
) -> tuple[dict[str, Any], Path]:
    """Return a plan's JSON, over several pools where the answer has one, and its launcher."""
    files = folder.parent
    command = [*planner, "solve", str(files / "model.yaml"), str(files / "cluster.yaml"), *words]
    command += ["--framework", framework, "--emit", framework, "--top", "1", "--no-cache"]
    command += ["--out", str(folder), "--format", "json"]
    data = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    together = data.get("together")
    plan: dict[str, Any] = together["plans"][0] if together else data["plans"][0]
    place = folder / f"{'t' * bool(together)}1-{plan['plan_id']}"
    (launcher,) = place.glob("*.sh")
    return plan, launcher
