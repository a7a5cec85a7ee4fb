"""Writes a job over nodes of several types as a heterogeneous Slurm job (sbatch, `hetjob`).

Node ranks go through the groups of nodes in their order, so that stage after stage (or replica
after replica) lies on the nodes of its pool. Options as of Slurm 24.11.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.specs.importers.hostlist import compress_hosts

NODE_LIST = "nodes.txt"
"""What the list of nodes is called: a line a node, `RANK POOL [HOST]`."""


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one type whose ranks follow one another."""

    pool: str
    accelerator: str
    n_nodes: int
    per_node: int
    """Processes, and devices, on each."""
    hosts: tuple[str, ...] = ()
    """Their names, where the cluster names nodes."""


def node_list(groups: Sequence[NodeGroup]) -> str:
    """Return a line for each node in the order of ranks: its rank, its pool, its name if known."""
    lines: list[str] = []
    for group in groups:
        for i in range(group.n_nodes):
            host = group.hosts[i] if group.hosts else ""
            lines.append(f"{len(lines)} {group.pool} {host}".rstrip())
    return "\n".join(lines) + "\n"


def hetjob_script(
    groups: Sequence[NodeGroup], script: str, name: str, header: Sequence[str]
) -> str:
    """Return a batch script that starts `script` once on each node, node ranks by group."""
    n_nodes = sum(group.n_nodes for group in groups)
    lines = [
        "#!/usr/bin/env bash",
        f"# Slurm batch script of a heterogeneous job: {script} once on each of {n_nodes} nodes.",
        "# Node ranks go through the components in their order. Submit it from this folder.",
        *(f"# {line}".rstrip() for line in header),
        f"#SBATCH --job-name={name}",
        "#SBATCH --output=%x-%j.out",
    ]
    for i, group in enumerate(groups):
        lines += ["#SBATCH hetjob"] if i else []
        lines += [
            f"# component {i}: pool {group.pool}, {group.accelerator}",
            f"#SBATCH --nodes={group.n_nodes}",
            "#SBATCH --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={group.per_node}",
            "#SBATCH --exclusive",
            "#SBATCH --mem=0",
        ]
        if group.hosts:
            lines.append(f"#SBATCH --nodelist={compress_hosts(group.hosts, for_slurm=True)}")
        else:
            lines.append(f"##SBATCH --constraint=FEATURE_OF_{group.accelerator.upper()}")
    components = " ".join(str(i) for i in range(len(groups)))
    listed = ",".join(str(i) for i in range(len(groups)))
    body = _BODY.replace("COMPONENTS", components).replace("LISTED", listed)
    lines += body.replace("SCRIPT", script).replace("N_NODES", str(n_nodes)).splitlines()
    return "\n".join(lines) + "\n"


_BODY = """set -euo pipefail

# Slurm runs a copy of this file: the folder with SCRIPT is where it was submitted from.
FOLDER="${FOLDER:-${SLURM_SUBMIT_DIR:-.}}"
if [[ ! -f "${FOLDER}/SCRIPT" ]]; then
  echo "no SCRIPT in ${FOLDER}: submit from the folder that holds it, or set FOLDER" >&2
  exit 1
fi

ordered=()
for component in COMPONENTS; do
  nodes="SLURM_JOB_NODELIST_HET_GROUP_${component}"
  mapfile -t names < <(scontrol show hostnames "${!nodes}")
  ordered+=("${names[@]}")
done
if (( ${#ordered[@]} != N_NODES )); then
  echo "expected N_NODES nodes, found ${#ordered[@]}" >&2
  exit 1
fi

# Every task looks its node up here; a file, as long lists do not fit into the environment.
ORDER_FILE="${ORDER_FILE:-${FOLDER}/nodes-${SLURM_JOB_ID}.txt}"
printf '%s\\n' "${ordered[@]}" > "${ORDER_FILE}"
MASTER_ADDR="${ordered[0]}"
MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}"
export FOLDER ORDER_FILE MASTER_ADDR MASTER_PORT

# One task a node, bound to no core: all processes of the node run in it.
# shellcheck disable=SC2016
srun --het-group=LISTED --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 \\
  bash -c '
    set -euo pipefail
    if ! line="$(grep -nxF -m1 -e "${SLURMD_NODENAME}" "${ORDER_FILE}")"; then
      echo "${SLURMD_NODENAME} is not in ${ORDER_FILE}" >&2
      exit 1
    fi
    export NODE_RANK="$((${line%%:*} - 1))"
    exec bash "${FOLDER}/SCRIPT" "$@"
  ' SCRIPT "$@"
"""
