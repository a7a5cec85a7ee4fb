#!/usr/bin/env bash
# Starts torchtitan.sh of a node's kind; batches differ, all else is one job.
# *
# model tiny, cluster several, over several pools
# *
# *
#
# Run it once on each of the 4 node(s), in the order of nodes.txt, with NODE_RANK and
# MASTER_ADDR set (Slurm: one task per node). Options of your own are passed on.
set -euo pipefail

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export NODE_RANK="${NODE_RANK:-${SLURM_NODEID:-0}}"

if (( NODE_RANK <= 1 )); then  # pool old, micro-batches of 2
  KIND=old
elif (( NODE_RANK <= 3 )); then  # pool new, micro-batches of 4
  KIND=new
else
  echo "NODE_RANK is ${NODE_RANK}: the plan has nodes 0 to 3" >&2
  exit 1
fi

# torchtitan divides the sum of all losses by all tokens, and FSDP divides nothing: gradients are
# those of the whole batch. On the CPU one process forks all ranks, and tells each its batch.
if [[ " $* " == *" --smoke "* ]]; then
  set -- "$@" --rank-batches "4x2,4x4"
fi
exec bash "${HERE}/${KIND}/torchtitan.sh" "$@"
