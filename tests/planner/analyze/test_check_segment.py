"""A run on a part of every scale-up domain: `#SBATCH --segment` is read and priced."""

import pytest

from planner.analyze.check.check import check
from planner.analyze.check.run_source import run_devices
from planner.frameworks.runs.launch_script import sbatch_header
from planner.specs.inputs import Content
from planner.specs.loader import load_cluster

SCRIPT = """#!/bin/bash
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
{segment}
srun torchrun --nnodes 32 --nproc-per-node 4 pretrain_gpt.py --num-layers 32 \\
  --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 \\
  --ffn-hidden-size 14336 --swiglu --seq-length 65536 --max-position-embeddings 65536 \\
  --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size 4 \\
  --context-parallel-size 16 --bf16 --vocab-size 128256 --sequence-parallel \\
  --untie-embeddings-and-output-weights --use-distributed-optimizer --normalization RMSNorm \\
  --disable-bias-linear --position-embedding-type rope --tokenizer-type NullTokenizer
"""


def checked(segment: str):
    text = SCRIPT.format(segment=segment)
    return check(Content(text, "run.sh"), "gb200-nvl72-x576")


@pytest.mark.slow
def test_groups_of_64_stay_inside_with_a_segment_of_16_trays():
    with_segment, without = checked("#SBATCH --segment=16"), checked("#SBATCH --mem=0")
    assert with_segment.plan is not None
    assert without.plan is not None
    pool, whole = (x.plan.breakdown.rows.problem.pool for x in (with_segment, without))
    assert (pool.n_devices, pool.scale_up_domain, pool.domain_nodes) == (128, 64, 18)
    assert (whole.n_devices, whole.scale_up_domain, whole.domain_nodes) == (128, 72, 0)
    # tp 4 x cp 16 = 64 devices: over racks of 72 some groups straddle two. With 4,096 tokens a
    # rank the rings of cp do not hide behind the launches of a layer.
    assert with_segment.plan.step_time_s < 0.8 * without.plan.step_time_s
    assert any("--segment: the run takes 64 of the 72" in note for note in with_segment.notes)


def test_the_header_is_read():
    assert sbatch_header("#SBATCH --segment=16\n")["segment"] == "16"


@pytest.mark.parametrize(
    ("n", "segment_nodes", "expected"),
    [
        (64, None, (64, 64)),  # a part of one rack is one domain
        (128, None, (128, 72)),  # racks are filled one after the other
        (144, None, (144, 72)),
        (64, 16, (64, 64)),
        (512, 16, (512, 64)),
        (576, 18, (576, 72)),
        (128, 9, (128, 72)),  # 36 devices do not divide 128: Slurm refuses such a job
        (288, 9, (288, 36)),
    ],
)
def test_devices_of_a_run_on_racks(n, segment_nodes, expected):
    placed, _ = run_devices(load_cluster("gb200-nvl72-x576"), n, segment_nodes)
    assert placed is not None
    pool = placed.cluster.pools[0]
    assert (pool.n_devices, pool.scale_up_domain) == expected
