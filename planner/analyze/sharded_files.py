"""The files that run sharded replicas over several pools: a folder a kind of replica, a start.

Every kind has the files of a plan on nodes of its pool alone; they differ in the batch, and in
recomputation where the plan does. A script above them starts the right one on each node.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from costmodels.mixed.sharded_plans import ReplicaDegrees
from costmodels.mixed.sharded_tables import ReplicaKey, replica_layout
from costmodels.plans import Layout
from costmodels.shapes import TrainingJob
from planner.frameworks.emit import emit_plan, refusal_file
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import train_steps
from planner.frameworks.launchers.launch import job_name
from planner.frameworks.launchers.node_types import NODE_LIST, NodeGroup, hetjob_script, node_list
from planner.solver.together.records import JoinedKind, JoinedPlan
from planner.solver.together.sharded_job import sequence_parallel, too_old
from planner.specs.inputs import ClusterInput, ModelInput
from searches.frameworks.registry import framework_rules

NOT_PLAIN = re.compile(r"[^A-Za-z0-9._+-]")
"""What of a pool's name is not written in that of a folder."""
OF_OLDER = ("torchtitan.toml", "torchtitan-toml.txt")
"""Files for releases that do not weigh unequal batches."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What one kind of replica runs."""

    folder: str
    kind: JoinedKind
    layout: Layout
    job: TrainingJob
    nodes: range
    """Its node ranks."""


def sharded_files(
    plan: JoinedPlan,
    model: ModelInput,
    cluster: ClusterInput,
    target: str,
    groups: Sequence[NodeGroup],
    launchers: Sequence[str],
    header: Sequence[str],
) -> dict[str, str]:
    """Return the files of a framework for a plan of sharded replicas.

    `groups` are the nodes in the order of ranks, all of one size.
    """
    if least := too_old(target):
        reason = f"{target} does not weigh unequal batches; closest: release {least} or later"
        return {refusal_file(target): "\n".join([*header, f"- {reason}"]) + "\n"}
    per_node = groups[0].per_node
    parts = _parts(plan, model, framework_rules(target).name, per_node)
    pools = {pool.name: pool for pool in cluster.cluster.pools}
    n_nodes = sum(group.n_nodes for group in groups)
    files: dict[str, str] = {}
    script = ""
    for part in parts:
        pool = replace(pools[part.kind.pools[0]], n_nodes=n_nodes)
        lines = (*header, *_part_lines(part, plan))
        request = EmitRequest(part.layout, model.shape, part.job, pool, lines, model.details)
        own = {
            name: text for name, text in emit_plan(target, request).items() if name not in OF_OLDER
        }
        script = next((name for name in own if name.endswith(".sh")), "")
        if not script:
            return {refusal_file(target): own[refusal_file(target)]}
        files |= {f"{part.folder}/{name}": text for name, text in own.items()}
    files[script] = _start(parts, script, framework_rules(target).name, header)
    files[NODE_LIST] = node_list(groups)
    if "slurm" in launchers:
        name = job_name(f"{model.shape.name}-{plan.plan_id}")
        stem = script.removesuffix(".sh")
        files[f"slurm-{stem}.sbatch"] = hetjob_script(groups, script, name, header)
    return files


def kind_layout(plan: JoinedPlan, kind: JoinedKind, framework: str) -> Layout:
    """Return the layout of a plan whose replicas are all as those of one kind."""
    stage = kind.stages[0]
    degrees = ReplicaDegrees(plan.shard, stage.tp, stage.cp)
    return replica_layout(
        ReplicaKey(degrees, kind.mbs, stage.recompute),
        stage.layers,
        n_replicas=sum(x.n_pipelines for x in plan.kinds) // plan.shard,
        n_micro=kind.n_micro,
        sp=sequence_parallel(framework),
    )


def _parts(plan: JoinedPlan, model: ModelInput, framework: str, per_node: int) -> list[_Part]:
    """Return the kinds of replicas with what each runs, in the order of ranks."""
    several = len({kind.pools for kind in plan.kinds}) < len(plan.kinds)
    sizes = [kind.n_pipelines * kind.stages[0].tp * kind.stages[0].cp for kind in plan.kinds]
    ends = list(accumulate(size // per_node for size in sizes))
    parts = []
    for kind, start, end in zip(plan.kinds, [0, *ends], ends, strict=False):
        layout = kind_layout(plan, kind, framework)
        # As many steps as the job has, whatever the batch of one kind would make of its tokens.
        job = replace(model.job, global_batch=layout.gbs)
        if job.tokens:
            job = replace(job, tokens=float(train_steps(model.job) * job.tokens_per_step))
        named = NOT_PLAIN.sub("-", kind.pools[0])
        folder = f"{named}-mbs{kind.mbs}" if several else named
        parts.append(_Part(folder, kind, layout, job, range(start, end)))
    return parts


def _part_lines(part: _Part, plan: JoinedPlan) -> list[str]:
    """Return what a file of one kind says of its numbers."""
    total = sum(kind.n_sequences for kind in plan.kinds)
    return [
        f"for nodes {part.nodes[0]} to {part.nodes[-1]}, of pool {part.kind.pools[0]}:"
        f" {part.kind.n_sequences:,} of the {total:,} sequences of a step",
        f"a global batch of {part.layout.gbs} stands for {part.layout.n_micro} accumulation"
        f" step(s) of {part.layout.mbs}, as if all ranks took as many",
    ]


def rank_batches(kinds: Sequence[JoinedKind]) -> str:
    """Return data-parallel ranks by the sequences of their micro-batch, in rank order: `8x1,4x2`.

    Words of `--rank-batches` of the programs that are written.
    """
    return ",".join(f"{kind.n_pipelines}x{kind.mbs}" for kind in kinds)


def _start(parts: Sequence[_Part], script: str, framework: str, header: Sequence[str]) -> str:
    """Return the script that starts a node with the files of its kind."""
    n_nodes = parts[-1].nodes[-1] + 1
    cases = []
    for i, part in enumerate(parts):
        test = f"(( NODE_RANK <= {part.nodes[-1]} ))"
        words = f"if {test}; then" if not i else f"elif {test}; then"
        note = f"# pool {part.kind.pools[0]}, micro-batches of {part.layout.mbs}"
        cases += [f"{words}  {note}", f"  KIND={part.folder}"]
    cases += [
        "else",
        f'  echo "NODE_RANK is ${{NODE_RANK}}: the plan has nodes 0 to {n_nodes - 1}" >&2',
        "  exit 1",
        "fi",
    ]
    lines = [
        "#!/usr/bin/env bash",
        f"# Starts {script} of a node's kind; batches differ, all else is one job.",
        *(f"# {line}".rstrip() for line in header),
        *_BODY.replace("N_NODES", str(n_nodes)).splitlines(),
        *cases,
        *_WORDS[framework].replace("BATCHES", rank_batches([x.kind for x in parts])).splitlines(),
        f'exec bash "${{HERE}}/${{KIND}}/{script}" "$@"',
    ]
    return "\n".join(lines) + "\n"


_BODY = """#
# Run it once on each of the N_NODES node(s), in the order of nodes.txt, with NODE_RANK and
# MASTER_ADDR set (Slurm: one task per node). Options of your own are passed on.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

"""

_WORDS = {
    "torchtitan": """
# torchtitan divides the sum of all losses by all tokens, and FSDP divides nothing: gradients are
# those of the whole batch. On the CPU one process forks all ranks, and tells each its batch.
if [[ " $* " == *" --smoke "* ]]; then
  set -- "$@" --rank-batches "BATCHES"
fi
""",
    "fsdp2": """
# Data-parallel ranks by their micro-batch: each reads its own sequences, and weighs its loss by
# them, so that gradients are those of the whole batch.
set -- "$@" --rank-batches "BATCHES"
""",
}
"""What is said, and passed on, by framework."""
