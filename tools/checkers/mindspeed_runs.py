"""Runs of MindSpeed-LLM by its own parser and checks, and plans that its table has to hold.

What `scripts/check_mindspeed` and the tests share.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.frameworks.mindspeed.emitter import SCRIPT
from planner.frameworks.mindspeed.options import odd_options
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import run_of_text
from tools.samples.draw import Drawn
from tools.samples.write import files_of

PARSER = Path(__file__).resolve().parent / "mindspeed_parser.py"
ONE_QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
AXES = (
    *("tp", "pp", "cp", "ep", "etp", "vpp", "mbs", "gbs", "zero", "sp", "dp", "dp_shard"),
    *("recompute", "recompute_layers", "recompute_modules", "cp_comm", "rank_order"),
    *("optimizer_offload", "dp_overlap"),
)
OF_ONE = ("zero", "dp_shard", "dp_overlap")
"""Axes without a meaning where one rank has all of the model's replicas."""
BASE = """--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
 --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096
 --position-embedding-type rope --normalization RMSNorm --vocab-size 128256 --swiglu
 --disable-bias-linear --untie-embeddings-and-output-weights --micro-batch-size 1
 --global-batch-size 64 --train-iters 10 --bf16 --lr 1e-4 --eval-iters 0 --eval-interval 1000
 --mock-data --tokenizer-type NullTokenizer --use-mcore-models --transformer-impl local
 --use-flash-attn --use-fused-rmsnorm"""
"""A run of 16 devices that both take."""
EXPERTS = " ".join(
    """--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 14336 --moe-grouped-gemm
 --moe-token-dispatcher-type alltoall --expert-model-parallel-size 4
 --expert-tensor-parallel-size 1""".split()
)
REFUSED: tuple[tuple[str, str], ...] = (
    ("MSL101", "--tensor-model-parallel-size 3"),
    ("MSL106", "--context-parallel-size 2 --seq-length 4098 --max-position-embeddings 4098"),
    (
        "MSL601",
        "--context-parallel-size 4 --tensor-model-parallel-size 4 --num-attention-heads 24"
        " --context-parallel-algo ulysses_cp_algo",
    ),
    ("MSL607", f"{EXPERTS} --pipeline-model-parallel-size 4 --first-k-dense-replace 8"),
    ("MSL609", f"{EXPERTS} --moe-token-dispatcher-type allgather --moe-expert-capacity-factor 1"),
    ("MSL620", "--tensor-paralel-size 2"),
    ("MSL621", "--context-parallel-algo ring"),
    ("MSL623", "--pipeline-model-parallel-size 2 --num-layer-list 10,10,12"),
    (
        "MSL624",
        "--context-parallel-size 4 --context-parallel-algo hybrid_cp_algo"
        " --ulysses-degree-in-cp 4",
    ),
    ("MSL625", "--context-parallel-size 2 --sliding-window 1024"),
    ("MSL626", "--schedules-method dualpipev --pipeline-model-parallel-size 1"),
    ("MSL627", f"{EXPERTS} --moe-fb-overlap --swap-attention"),
    (
        "MSL628",
        f"{EXPERTS} --moe-alltoall-overlap-comm --expert-model-parallel-size 1",
    ),
    ("MSL629", "--recompute-in-bubble --pipeline-model-parallel-size 4"),
    ("MSL631", f"{EXPERTS} --moe-router-load-balancing-type group_limited_greedy"),
    ("MSL632", "--use-ascend-mc2 --use-ascend-coc"),
)
"""Rules over runs, each with words behind those of `BASE` that its own checks refuse too."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Checkouts that go together."""

    megatron: str
    mindspeed: str
    llm: str


class OwnParser:
    """The parser and the checks of some checkouts, in a process of their own."""

    def __init__(self, sources: Sources) -> None:
        command = [sys.executable, "-W", "ignore", str(PARSER), "judge"]
        command += [sources.megatron, sources.mindspeed, sources.llm]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def fault(self, words: Sequence[str], n_devices: int) -> str:
        """Return why a run is refused; empty where it is not."""
        run = {"words": list(words), "world_size": n_devices, "env": ONE_QUEUE}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(run) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the checkouts do not go together: their parser did not start")
        return str(json.loads(line)["error"])

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=60)


def words_of(script: str) -> list[str]:
    """Return the words after `pretrain_gpt.py` of an emitted script."""
    _, _, rest = script.partition("  pretrain_gpt.py \\\n")
    return re.sub(r"\\\n|'", " ", rest).split()


def plan_faults(drawn: Drawn, parser: OwnParser | None = None) -> list[str]:
    """Return what is wrong with the script of one plan: options, values, what is read of it."""
    script = files_of(drawn)[SCRIPT]
    words, layout = words_of(script), drawn.layout
    faults = odd_options(words)
    run = run_of_text(script, SCRIPT, RunQuery())
    faults += read_faults(run, drawn)
    if parser is not None and (fault := parser.fault(words, layout.n_devices)):
        faults.append(f"its own parser: {fault}")
    return faults


def read_faults(run: ExistingRun, drawn: Drawn) -> list[str]:
    """Return how a run that was read differs from the plan that it was written for."""
    layout = drawn.layout
    faults = [f"read as {run.framework}"] * (run.framework != "mindspeed")
    faults += [*run.unknown, *run.refused, *(one.text for one in run.doubts)]
    for axis in AXES:
        wanted, found = getattr(layout, axis), run.layout.get(axis)
        if axis in OF_ONE and layout.dp * layout.cp == 1:
            continue
        if found is not None and found != wanted and (found or wanted):
            faults.append(f"{axis} {wanted!r}, read {found!r}")
    counts = tuple(run.layout.get("counts", layout.stage_layers))
    if counts != layout.stage_layers:
        faults.append(f"stages {layout.stage_layers}, read {counts}")
    return faults
