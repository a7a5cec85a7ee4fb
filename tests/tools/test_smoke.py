"""The comparison of a running job with its plan, without a framework."""

import copy
import json
import math
import os
import subprocess
from dataclasses import replace

import pytest

from planner.analyze.joined_files import joined_files, joined_placement
from planner.solver.solve import solve
from planner.specs.loader import cluster_from_dict, model_from_dict
from tools.smoke.case import Case
from tools.smoke.emitted import NotEmittedError
from tools.smoke.expected import LINE, differences, expected_facts, reported_facts
from tools.smoke.joined import (
    STAND_INS,
    chosen_plan,
    nodes_of_ranks,
    pool_differences,
    slurm_env,
)
from tools.smoke.run import Outcome, cluster_of
from tools.smoke.table import write_table

MODEL = {
    "model": {
        "name": "tiny-experts",
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "gated": True,
        "vocab": 256,
        "tied": False,
        "moe": {"experts": 4, "topk": 2, "moe_ffn": 64, "imbalance": 1.0},
    },
    "training": {"seq_len": 64, "global_batch": 16, "precision": "bf16", "optimizer": "adam"},
}
PINS = {"tp": 1, "pp": 2, "ep": 2, "zero": 1, "mbs": 1, "vpp": 1, "cp": 1, "devices": 8}


@pytest.fixture(scope="module")
def expected():
    model, cluster = model_from_dict(MODEL), cluster_from_dict(cluster_of(8)).cluster
    (plan,) = solve(MODEL, cluster_of(8), pins=PINS, framework="megatron", top=1).plans
    return expected_facts(plan.layout, model.shape, model.job, cluster.pools[0], cluster.fabric)


def told(expected):
    """Return what a job that is the plan's reports."""
    losses = [expected["first_loss"] + 0.1, expected["first_loss"]]
    facts = {name: value for name, value in expected.items() if name != "first_loss"}
    return copy.deepcopy(facts | {"losses": losses, "release": "1.0"})


def test_the_plan_in_the_words_of_a_job(expected):
    # 8 ranks as pp 2 x dp 4: stages are ranks 0-3 and 4-7, experts alternate in each stage.
    assert expected["groups"]["pp"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert expected["groups"]["dp"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert expected["groups"]["ep"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert expected["experts"] == [[0, 1], [2, 3]] * 4
    assert expected["sharding"] == {"parameters": 1, "gradients": 1, "optimizer": 4}
    assert (expected["n_micro"], expected["stage_layers"]) == (4, [2, 2])
    attention, experts, router = 64 * 16 * (4 + 2 + 2) + 64 * 64, 4 * 3 * 64 * 64, 64 * 4
    layer = attention + experts + router + 2 * 64
    assert expected["parameters"] == 4 * layer + 2 * 256 * 64 + 64
    assert expected["first_loss"] == pytest.approx(math.log(256))


def test_a_job_as_planned_has_no_differences(expected):
    assert differences(expected, told(expected)) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_micro", 3),
        ("stage_layers", [1, 3]),
        ("groups", {}),
        ("sharding", {"parameters": 1, "gradients": 1, "optimizer": 1}),
        ("experts", [[0, 1, 2, 3]] * 8),
        ("parameters", 1000),
        ("losses", [9.0, 8.0]),
        ("losses", [5.5]),
        ("losses", [5.5, math.nan]),
    ],
)
def test_every_difference_is_noticed(expected, name, value):
    assert differences(expected, told(expected) | {name: value})


def test_the_line_is_found_in_the_output_of_a_job():
    output = f"warning\n[rank0]: {LINE}{json.dumps({'release': '1'})}\nbye"
    assert reported_facts(output) == {"release": "1"}
    assert reported_facts("nothing") is None


def test_the_table_keeps_the_rows_of_other_releases(tmp_path):
    case = Case("dense", "megatron", MODEL, PINS, "dense")
    layout = {"tp": 2, "pp": 1, "recompute": "full"}
    path = tmp_path / "table.md"
    write_table(path, [Outcome(case, "0.17.0", (), 1.0, layout)])
    write_table(path, [Outcome(case, "0.19.2", ("no line of facts: x",), 1.0, layout)])
    rows = [line for line in path.read_text().splitlines() if line.startswith("| megatron")]
    assert rows == [
        "| megatron | 0.17.0 | dense | tp2 recompute full | ran as planned |",
        "| megatron | 0.19.2 | dense | tp2 recompute full | did not: no line of facts: x |",
    ]


POOLS = tuple(
    {
        "name": name,
        "accelerator": part,
        "nodes": 1,
        "hosts": host,
        "accelerators_per_node": 2,
        "nic": nic,
    }
    for name, part, host, nic in (
        ("new", "h100-sxm-80gb", "127.0.0.1", "ib-ndr-400"),
        ("old", "a100-sxm-80gb", "127.0.0.2", "ib-hdr-200"),
    )
)
DENSE = {**MODEL["model"], "layers": 5, "ffn": 128}
del DENSE["moe"]


@pytest.fixture(scope="module")
def over_pools():
    """An answer over two pools, and a case that wants two uneven stages of two pipelines."""
    model = {"model": DENSE, "training": MODEL["training"]}
    pins = {"tp": 1, "cp": 1, "mbs": 1, "recompute": "none"}
    case = Case("pools", "megatron", model, pins, "pools", pools=POOLS, grid=(2, 2, 1))
    cluster = {"name": "pools", "pools": list(POOLS)}
    result = solve(model, cluster, pins=pins, framework="megatron", top=9, pools="together")
    return case, result.to_json()


def test_the_plan_of_a_case_has_its_grid_and_uneven_stages(over_pools):
    case, data = over_pools
    plan = chosen_plan(data, case)
    (kind,) = plan.kinds
    assert (len(kind.stages), kind.n_pipelines) == (2, 2)
    assert len({x.layers for x in kind.stages}) == 2
    with pytest.raises(NotEmittedError, match="no plan has"):
        chosen_plan(data, replace(case, grid=(3, 7, 1)))


def test_pipelines_on_other_pools_are_noticed(over_pools):
    case, data = over_pools
    plan = chosen_plan(data, case)
    placed = joined_placement(data, plan).to_json()
    nodes = nodes_of_ranks(placed, 2)
    hosts = {x["pool"]: x["hosts"][0] for x in placed["pools"]}
    first, second = (x.pool for x in plan.kinds[0].stages)
    assert nodes == [[0, hosts[first]]] * 2 + [[1, hosts[second]]] * 2
    listed = joined_files(data, plan, ["megatron"], ["slurm"])["nodes.txt"]
    found = {"nodes": nodes, "groups": {"pp": [[0, 2], [1, 3]]}}
    assert pool_differences(plan, listed, found) == []
    assert pool_differences(plan, listed, {**found, "groups": {"pp": [[0, 1], [2, 3]]}})
    swapped = [[node, nodes[-1 - rank][1]] for rank, (node, _) in enumerate(nodes)]
    assert pool_differences(plan, listed, {**found, "nodes": swapped})


def test_the_job_starts_a_task_on_each_node_in_the_order_of_ranks(over_pools, tmp_path):
    """The Slurm job with its stand-ins; what it starts says its node rank."""
    case, data = over_pools
    files = joined_files(data, chosen_plan(data, case), ["megatron"], ["slurm"])
    job = tmp_path / "job.sbatch"
    job.write_text(files["slurm-megatron.sbatch"])
    told = 'echo "${NODE_RANK} ${SLURMD_NODENAME} ${MASTER_ADDR} $*"'
    (tmp_path / "megatron.sh").write_text(f"{told} >> {tmp_path}/told-${{NODE_RANK}}\n")
    env = {**os.environ, **slurm_env(job.read_text()), "SLURM_SUBMIT_DIR": str(tmp_path)}
    env["PATH"] = f"{STAND_INS}:{env['PATH']}"
    subprocess.run(["bash", str(job), "--smoke"], env=env, check=True)
    lines = [(tmp_path / f"told-{i}").read_text().split() for i in range(2)]
    names = [line.split()[2] for line in files["nodes.txt"].splitlines()]
    assert lines == [[str(i), names[i], names[0], "--smoke"] for i in range(2)]
    (tmp_path / "megatron.sh").write_text("exit $NODE_RANK\n")
    assert subprocess.run(["bash", str(job)], env=env, check=False).returncode == 1
