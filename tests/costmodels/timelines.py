"""Plans of every schedule and axis, for tests of the step in time."""

from collections.abc import Mapping
from dataclasses import replace

from costmodels.examples import GPT3_175B, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.plans import Layout
from costmodels.problem import Problem
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import TrainingJob
from costmodels.stacks import STACKS
from planner.specs.loader import cluster_from_dict

DENSE: dict[str, object] = {
    "shape": LLAMA3_8B,
    "tp": 2,
    "pp": 4,
    "dp": 8,
    "vpp": 1,
    "split": "even",
    "mbs": 1,
    "n_micro": 16,
    "zero": 1,
    "sp": True,
    "schedule": "1f1b",
    "recompute": "none",
    "recompute_layers": 0,
    "stack": "megatron-core",
}
SCHEDULES = {
    "gpipe": 1,
    "1f1b": 1,
    "interleaved": 2,
    "zb-h1": 1,
    "zb-v": 2,
    "dualpipe": 1,
    "dualpipe-v": 2,
}
CHANGES: Mapping[str, dict[str, object]] = {
    "none": {"pp": 1, "dp": 32, "schedule": "none"},
    **{name: {"schedule": name, "vpp": vpp} for name, vpp in SCHEDULES.items()},
    **{
        f"{name} recompute": {
            "schedule": name,
            "vpp": vpp,
            "recompute": "full",
            "recompute_layers": 3,
        }
        for name, vpp in SCHEDULES.items()
    },
    "few micro-batches": {"n_micro": 2},
    "many micro-batches": {"n_micro": 90, "vpp": 1},
    "many chunks": {"schedule": "interleaved", "vpp": 8, "n_micro": 8},
    "ends": {"split": "ends", "pp": 2, "dp": 16, "schedule": "interleaved", "vpp": 2},
    "spelled": {"split": "7-9-9-7"},
    "tied": {"shape": replace(LLAMA3_8B, tied=True)},
    "no sp": {"sp": False, "tp": 4, "dp": 4},
    "selective": {"shape": replace(GPT3_175B, flash_attention=False), "recompute": "selective"},
    "zero 3": {"pp": 1, "dp": 32, "schedule": "none", "zero": 3},
    "ring": {"cp": 2, "dp": 4, "cp_comm": "p2p", "recompute": "full", "recompute_layers": 2},
    "ulysses": {"cp": 2, "dp": 4, "cp_comm": "a2a"},
    "experts": {
        "shape": MIXTRAL_8X7B,
        "ep": 4,
        "etp": 2,
        "recompute": "full",
        "recompute_layers": 3,
    },
    "mtp": {"shape": replace(MIXTRAL_8X7B, mtp_layers=1), "ep": 8},
    "blocking": {"stack": "nanotron", "zero": 1},
}
CASES = tuple(CHANGES)


def case(name: str) -> tuple[Problem, Layout]:
    """Return a plan on 64 H100 by its name in `CASES`."""
    x = DENSE | CHANGES[name]
    shape, stack, n_micro = x.pop("shape"), x.pop("stack"), x.pop("n_micro")
    gbs = n_micro * x["mbs"] * x["dp"]
    counts = stage_layers(shape.layers, x["pp"], x["vpp"], x["split"])
    cluster = cluster_from_dict(
        {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": 8}], "fabric": {}}
    ).cluster
    problem = Problem(
        shape, TrainingJob(4096, gbs), cluster.pools[0], cluster.fabric, STACKS[stack]
    )
    return problem, Layout(n_devices=64, gbs=gbs, stage_layers=counts, **x)
