"""The script of `planner measure`, run on the CPU with gloo by whatever Python has torch.

PLANNER_TORCH_PYTHON names an interpreter with torch; scripts/check_measure makes one.
"""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from costmodels.comm.collectives import ALGORITHMS
from planner.cli.commands.benchmarks import SCRIPT
from planner.measure.benchmarks.results import read_measured
from planner.measure.benchmarks.sweep import SEND_RECEIVE
from tests.planner.command import run_here

LIMIT_S = 240
PARTS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", SEND_RECEIVE)


@cache
def torch_python() -> str:
    """An interpreter with torch and gloo; empty where there is none."""
    code = "import torch.distributed as d; raise SystemExit(not d.is_gloo_available())"
    for python in (os.environ.get("PLANNER_TORCH_PYTHON", ""), sys.executable):
        if python and subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
            return python
    return ""


@pytest.fixture
def start(tmp_path):
    """Starts the script under torchrun in an empty folder; returns the finished process."""
    if not torch_python():
        pytest.skip("no torch here: scripts/check_measure runs this")

    def run(n_ranks, *words, script=SCRIPT):
        command = [torch_python(), "-W", "ignore"]
        if n_ranks > 1:
            command += ["-m", "torch.distributed.run", "--nproc-per-node", str(n_ranks)]
            command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        bare = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*command, str(script), *words],
            cwd=tmp_path,
            env=bare,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    return run


@pytest.mark.slow
def test_two_ranks_on_the_cpu(start, tmp_path):
    done = start(2, "--quick", "--seconds", "0.02")
    assert done.returncode == 0, done.stderr
    found = read_measured(str(tmp_path / "measured.json"))
    assert found.on_cpu
    assert found.notes == ()  # complete, nothing left out
    assert {sweep.collective for sweep in found.sweeps} == set(PARTS)
    assert {*PARTS} - {SEND_RECEIVE} <= set(ALGORITHMS)
    for sweep in found.sweeps:
        assert (sweep.n_ranks, sweep.n_nodes, sweep.busy_per_node) == (2, 1, 2)
        assert sweep.sizes_bytes == (2**12, 2**14, 2**16, 2**18, 2**20)
    assert found.provenance["backend"] == "gloo"
    assert found.provenance["devices_per_node"] == 2
    assert {row.precision for row in found.products} == {"fp32"}
    assert [core.length for core in found.cores] == [512, 1024]
    # A large product takes longer than a small one, whatever the machine.
    by_work = sorted(found.products, key=lambda row: row.rows * row.inner * row.columns)
    assert by_work[-1].time_s > by_work[0].time_s
    refused = run_here("calibrate", "--measured", str(tmp_path / "measured.json"))
    assert "was measured on a CPU" in " ".join(refused.stderr.split())


@pytest.mark.slow
def test_groups_inside_nodes_and_across_them(start, tmp_path):
    # Four ranks of which torchrun is told nothing about nodes: two "nodes" of two by the variable
    # that it sets, so that every layout of groups is run.
    wrapper = tmp_path / "two_nodes.py"
    wrapper.write_text(
        "import os, runpy, sys\n"
        "os.environ['LOCAL_WORLD_SIZE'] = '2'\n"
        "os.environ['LOCAL_RANK'] = str(int(os.environ['RANK']) % 2)\n"
        f"sys.argv[0] = {str(SCRIPT)!r}\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    words = ("--quick", "--seconds", "0.01", "--skip", "gemm,attention,memory")
    done = start(4, *words, script=wrapper)
    assert done.returncode == 0, done.stderr
    found = read_measured(str(tmp_path / "measured.json"))
    where = {(s.n_ranks, s.n_nodes, s.busy_per_node) for s in found.sweeps}
    assert where == {(2, 1, 2), (2, 2, 2), (4, 2, 2)}
    assert len(found.sweeps) == 3 * len(PARTS)
    assert found.products == found.cores == found.passes == ()


@pytest.mark.slow
def test_one_process_has_no_collectives(start, tmp_path):
    done = start(1, "--quick", "--seconds", "0.01", "--skip", "attention", "--out", "one.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "one.json").read_text())
    assert found["complete"]
    assert found["collectives"] == found["attention"] == []
    assert found["gemm"]
    assert found["memory"]


@pytest.mark.slow
def test_a_part_that_never_ends_is_given_up(start, tmp_path):
    # Rank 1 stops before the first collective and stays alive: nothing would wake rank 0.
    stuck = tmp_path / "stuck.py"
    stuck.write_text(
        "import os, runpy, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    time.sleep(10 * 240)\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    done = start(2, "--quick", "--part-limit", "4", script=stuck)
    assert done.returncode != 0
    assert not (tmp_path / "measured.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [(("--skip", "gemms"), "no part is called gemms"), (("--device", "tpu"), "invalid choice")],
)
def test_options_that_are_wrong(start, words, said):
    done = start(1, *words)
    assert done.returncode == 2
    assert said in done.stderr
