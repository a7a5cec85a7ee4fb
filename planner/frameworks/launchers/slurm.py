"""Writes a plan as a Slurm batch script.

One task a node: the framework's script starts the node's processes with torchrun, so ranks do not
depend on how Slurm numbers tasks (--distribution) and restarts stay on the node. Slurm lists nodes
in its own order; the script finds each node's place in the order of the network instead.
Options as of Slurm 24.11 (sbatch, srun).
"""

from planner.frameworks.launchers.launch import Launch
from planner.specs.importers.hostlist import compress_hosts

SLURM_RELEASE = "24.11"
CPUS_PER_DEVICE = 8
"""Cores asked for with each device of a node that is shared, until the user says more."""


def slurm_script(launch: Launch) -> str:
    """Return the batch script."""
    lines = [
        "#!/usr/bin/env bash",
        f"# Slurm batch script: {launch.script} once on each of {launch.n_nodes} node(s)"
        ", in network order.",
        f"# Options as of Slurm {SLURM_RELEASE}. Submit it from this folder, with further flags of"
        " your own after it:",
        f"#   sbatch slurm-{launch.framework}.sbatch",
        *(f"# {line}".rstrip() for text in launch.header for line in text.splitlines()),
        *_directives(launch),
        *_SETTINGS.replace("SCRIPT", launch.script).splitlines(),
        *_node_order(launch),
        *_LAUNCH.replace("SCRIPT", launch.script)
        .replace("N_NODES", str(launch.n_nodes))
        .splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _directives(launch: Launch) -> list[str]:
    lines = [
        f"#SBATCH --job-name={launch.name}",
        f"#SBATCH --nodes={launch.n_nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={launch.per_node}",
    ]
    if launch.whole_nodes:
        lines += ["#SBATCH --exclusive", "#SBATCH --mem=0"]
    else:
        lines += [
            f"# {launch.per_node} devices of larger nodes, whose other devices may be another"
            " job's. Cores and memory that",
            "# go with a device: YOURS.",
            f"#SBATCH --cpus-per-gpu={CPUS_PER_DEVICE}",
            "##SBATCH --mem-per-gpu=100G",
        ]
    return [
        *lines,
        *_where(launch),
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --error=%x-%j.err",
        "# ---- YOURS: one # less switches a line on ----",
        "##SBATCH --partition=PARTITION",
        "##SBATCH --account=ACCOUNT",
        "##SBATCH --constraint=FEATURE_OF_THE_ACCELERATOR",
        "##SBATCH --time=24:00:00",
        "##SBATCH --requeue",
        "# ----------------------------------------------",
    ]


def _where(launch: Launch) -> list[str]:
    """Return which nodes to ask for: by name, or near one another."""
    if launch.hosts:
        return [f"#SBATCH --nodelist={compress_hosts(launch.hosts, for_slurm=True)}"]
    block, n_nodes = launch.block, launch.n_nodes
    if block is None:
        return []
    stay = f" {', '.join(block.groups)} groups stay inside;" if block.groups else ""
    if not block.is_domain:
        n_leaves = -(-n_nodes // block.n_nodes)
        return [
            f"#{stay} priced with {block.n_nodes} nodes under each switch of tier {block.tier!r}.",
            f"#SBATCH --switches={n_leaves}",
        ]
    size = segment_nodes(block.n_nodes, n_nodes, block.n_least)
    lines = [f"#{stay} priced with {block.n_nodes} nodes in each scale-up domain."]
    if size % block.n_nodes:
        lines += [
            f"# That does not divide {n_nodes} nodes: whole domains, or hosts named in order",
            "# (--hosts), would be as priced.",
        ]
    elif 1 < block.n_least < size:
        lines += [f"# Segments of {block.n_least} would do for these groups."]
    if size > 1:
        lines += ["# For topology/block; without that, or with an older Slurm, leave it out."]
        lines += [f"#SBATCH --segment={size}"]
    return lines


def segment_nodes(domain: int, n_nodes: int, n_least: int) -> int:
    """Return the nodes of a segment, which must divide the job: a domain where that does.

    Else the largest part of a domain, one that holds whole groups of `n_least` nodes if any does.

    >>> segment_nodes(18, 144, 18), segment_nodes(18, 40, 4), segment_nodes(18, 19, 2)
    (18, 8, 1)
    """
    if n_nodes % domain == 0:
        return domain
    sizes = [size for size in range(1, domain + 1) if n_nodes % size == 0]
    return max(sizes, key=lambda size: (size % n_least == 0, size))


def _node_order(launch: Launch) -> list[str]:
    """Return the lines that fill `ordered`, the nodes in network order."""
    if launch.hosts:
        return [
            "# The hosts of the plan in network order: their places are the node ranks.",
            f'HOSTS="{compress_hosts(launch.hosts, for_slurm=True)}"',
            'mapfile -t ordered < <(scontrol show hostnames "${HOSTS}")',
            'allocated="$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | sort)"',
            'if [[ "${allocated}" != "$(printf \'%s\\n\' "${ordered[@]}" | sort)" ]]; then',
            '  echo "allocated ${SLURM_JOB_NODELIST}, but the plan is for ${HOSTS}" >&2',
            "  exit 1",
            "fi",
        ]
    if launch.n_nodes == 1:
        return ['ordered=("${SLURMD_NODENAME}")']
    return _TOPOLOGY_ORDER.replace("N_NODES", str(launch.n_nodes)).splitlines()


_SETTINGS = """set -euo pipefail

# Slurm runs a copy of this file: the folder with SCRIPT is where it was submitted from.
FOLDER="${FOLDER:-${SLURM_SUBMIT_DIR:-.}}"
if [[ ! -f "${FOLDER}/SCRIPT" ]]; then
  echo "no SCRIPT in ${FOLDER}: submit from the folder that holds it, or set FOLDER" >&2
  exit 1
fi
"""

_TOPOLOGY_ORDER = """\
# No hosts were named: nodes in the order of the switches or blocks above them, if Slurm knows
# these (topology/tree, topology/block), else of their names.
mapfile -t ordered < <(
  # shellcheck disable=SC2016
  srun --nodes=N_NODES --ntasks-per-node=1 \\
    bash -c 'echo "${SLURM_TOPOLOGY_ADDR:-} ${SLURMD_NODENAME}"' |
    LC_ALL=C sort -V | awk '{ print $NF }'
)
if (( ${#ordered[@]} != N_NODES )); then
  echo "expected N_NODES nodes, found ${#ordered[@]}" >&2
  exit 1
fi"""

_LAUNCH = """
# Every task looks its node up here; a file, as long lists do not fit into the environment.
ORDER_FILE="${ORDER_FILE:-${FOLDER}/nodes-${SLURM_JOB_ID}.txt}"
printf '%s\\n' "${ordered[@]}" > "${ORDER_FILE}"
MASTER_ADDR="${ordered[0]}"
# Two jobs that share a node take different ports.
MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 10000))}"
export FOLDER ORDER_FILE MASTER_ADDR MASTER_PORT

# With CONTAINER_IMAGE set, tasks run in that container (enroot and pyxis).
container=()
if [[ -n "${CONTAINER_IMAGE:-}" ]]; then
  container=(
    "--container-image=${CONTAINER_IMAGE}"
    "--container-mounts=${CONTAINER_MOUNTS:-${FOLDER}:${FOLDER}}"
  )
fi

# One task a node, bound to no core: all processes of the node run in it.
# shellcheck disable=SC2016
srun --nodes=N_NODES --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 \\
  "${container[@]}" bash -c '
    set -euo pipefail
    if ! line="$(grep -nxF -m1 -e "${SLURMD_NODENAME}" "${ORDER_FILE}")"; then
      echo "${SLURMD_NODENAME} is not in ${ORDER_FILE}" >&2
      exit 1
    fi
    export NODE_RANK="$((${line%%:*} - 1))"
    exec bash "${FOLDER}/SCRIPT" "$@"
  ' SCRIPT "$@"
"""
