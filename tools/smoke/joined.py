"""Plans over several pools: the heterogeneous Slurm job is run as it was written.

`scontrol` and `srun` are stand-ins (`slurm/`): every node of the job is an address of this
machine's loopback network, on which `srun` starts one task. A task is the emitted script with
`--smoke`: it starts the ranks of its node, and those of all nodes meet at the first one.
"""

import json
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from planner.analyze.joined_files import layout_of
from planner.frameworks.launchers.node_types import NODE_LIST
from planner.solver.answer.result_store import joined_plan_of
from planner.solver.together.records import JoinedPlan
from planner.specs.importers.hostlist import expand_hosts
from planner.specs.loader import cluster_from_dict, model_from_dict
from tools.smoke.case import Case
from tools.smoke.emitted import EmittedJob, NotEmittedError, answer_of
from tools.smoke.expected import Facts, expected_facts

STAND_INS = Path(__file__).parent / "slurm"
"""Folder with the commands of Slurm that the job calls."""
TOP = "30"
"""Plans of the answer, among which that of the case is looked for."""


def joined_job(case: Case, planner: Sequence[str], folder: Path) -> EmittedJob:
    """Return the job of a case over several pools; raise `NotEmittedError` where there is none."""
    cluster = {"name": "tiny-pools", "pools": list(case.pools)}
    files = folder / "model.yaml", folder / "cluster.yaml"
    for file, content in zip(files, (case.model, cluster), strict=True):
        file.write_text(json.dumps(content, indent=1))
    command = [*planner, "solve", *map(str, files), "--pools", "together"]
    command += ["--pin", ",".join(f"{name}={value}" for name, value in case.pins.items())]
    command += ["--framework", case.framework, "--top", TOP, "--format", "json", "--no-cache"]
    data = json.loads(answer_of(command))
    answer = folder / "answer.json"
    answer.write_text(json.dumps(data))
    plan = chosen_plan(data, case)
    named, out = f"{answer}#t{plan.rank}", folder / "plans"
    emit = [*planner, "emit", named, "--for", case.framework, "--launcher", "slurm"]
    answer_of([*emit, "--out", str(out)])
    (place,) = out.iterdir()
    jobs = sorted(place.glob("*.sbatch"))
    if len(jobs) != 1:
        refusals = "".join(x.read_text() for x in place.glob("*.txt"))
        raise NotEmittedError(f"{place} has {len(jobs)} Slurm jobs: {refusals}")
    placed = json.loads(answer_of([*planner, "place", named, "--format", "json"]))
    nodes = (place / NODE_LIST).read_text()
    model, read = model_from_dict(case.model), cluster_from_dict(cluster).cluster
    layout = layout_of(plan, model, placed["rank_order"])
    first = read.pools[0]
    n_nodes = layout.n_devices // first.devices_per_node
    facts = expected_facts(
        layout, model.shape, model.job, replace(first, n_nodes=n_nodes), read.fabric
    )
    env = slurm_env(jobs[0].read_text()) | {"SLURM_SUBMIT_DIR": str(place)}
    return EmittedJob(
        ("bash", str(jobs[0]), "--smoke"),
        env,
        facts | {"nodes": nodes_of_ranks(placed, first.devices_per_node)},
        {**asdict(layout), "n_micro": layout.n_micro},
        STAND_INS,
        lambda found: pool_differences(plan, nodes, found),
    )


def chosen_plan(data: Mapping[str, Any], case: Case) -> JoinedPlan:
    """Return the first plan with the stages, pipelines and kinds of a case that is one grid.

    Of those with several stages one whose stages hold unlike numbers of layers.
    """
    for x in data["together"]["plans"]:
        kinds, stages = x["kinds"], x["kinds"][0]["stages"]
        sizes = len(stages), sum(kind["n_pipelines"] for kind in kinds), len(kinds)
        uneven = len({stage["layers"] for stage in stages}) > 1
        if x["runs_on"] and sizes == case.grid and (uneven or len(stages) == 1):
            return joined_plan_of(data, f"t{x['rank']}")
    raise NotEmittedError(f"no plan has {case.grid} stages, pipelines and kinds")


def slurm_env(script: str) -> dict[str, str]:
    """Return what Slurm sets for a heterogeneous job: its number, and the nodes of components."""
    option = "#SBATCH --nodelist="
    lists = [x.removeprefix(option) for x in script.splitlines() if x.startswith(option)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = [",".join(expand_hosts(x)) for x in lists]
    env = {f"SLURM_JOB_NODELIST_HET_GROUP_{i}": x for i, x in enumerate(names)}
    return {**env, "SLURM_JOB_ID": "4711", "MASTER_PORT": str(port), "SMOKE_PER_NODE": "1"}


def nodes_of_ranks(placed: Mapping[str, Any], per_node: int) -> list[list[object]]:
    """Return node rank and host of each rank, as `planner place` says them."""
    rows: list[list[object]] = []
    for group in placed["pools"]:
        first, last = group["ranks"]
        for rank in range(first, last + 1):
            place = rank // per_node
            rows.append([place, group["hosts"][place - group["nodes"][0]]])
    return rows


def pool_differences(plan: JoinedPlan, nodes: str, found: Facts) -> list[str]:
    """Return where pipelines of a running job lie on other pools than those of the plan.

    `nodes` is the list of nodes that was written; its hosts are those that ranks say they run on.
    """
    pools = {tuple(line.split()[::2]): line.split()[1] for line in nodes.splitlines()}
    of_ranks = [pools.get((str(node), host), f"none ({host})") for node, host in found["nodes"]]
    groups = found["groups"].get("pp") or [[rank] for rank in range(len(of_ranks))]
    has = Counter(tuple(of_ranks[rank] for rank in sorted(ranks)) for ranks in groups)
    wanted: Counter[tuple[str, ...]] = Counter()
    for kind in plan.kinds:
        stage = kind.stages[0]
        wanted[tuple(x.pool for x in kind.stages)] += kind.n_pipelines * stage.tp * stage.cp
    return [] if has == wanted else [f"pools of pipelines: the job has {has}, the plan {wanted}"]
