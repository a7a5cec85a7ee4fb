"""`planner measure`, and `planner calibrate` from benchmarks, as a user runs them."""

import json

import pytest

from planner.solver.calibration.apply import calibrated_pool
from planner.solver.calibration.file import Calibration, load_calibration
from planner.specs.loader import load_cluster
from tests.planner.command import run_here
from tests.planner.measure.benchmarks.logs import log, model_times, sweep_of
from tests.planner.measure.benchmarks.measured_file import measured_file

SLOWER = {
    "link.nvlink4.efficiency": 0.6,
    "link.nvlink4.base_scale": 2.0,
    "link.ib-ndr-400.efficiency": 0.6,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Logs of one node and of four of a cluster with slow links, and a file of measure.py."""
    place = tmp_path_factory.mktemp("benchmarks")
    pool = calibrated_pool(load_cluster("h100-x512").cluster.pools[0], Calibration("slow", SLOWER))
    for name, n, nodes in (("all-gather", 8, 1), ("reduce-scatter", 4, 1), ("all-gather", 32, 4)):
        sweep = sweep_of(name, n, nodes)
        text = log(name, n, nodes, sweep.sizes_bytes, model_times(sweep, pool))
        (place / f"{name}-{n}.log").write_text(text)
    (place / "measured.json").write_text(json.dumps(measured_file(pool.accelerator)))
    return place


def logs_of(folder):
    return [str(path) for path in sorted(folder.glob("*.log"))]


def test_logs_become_a_calibration_that_a_solve_takes(folder, tmp_path):
    out = tmp_path / "my-calibration.yaml"
    done = run_here("calibrate", "--nccl-tests", *logs_of(folder), "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = load_calibration(out)
    for name, value in SLOWER.items():
        assert found.values[name] == pytest.approx(value, rel=0.06)
        assert found.provenance[name] == "measured"
    assert (found.name, found.note[:12]) == ("my-calibration", "nccl-tests: ")
    assert "3 tables of nccl-tests; h100-sxm-80gb" in done.stdout
    assert "nodes taken to be the usual ones: 8 ports of ib-ndr-400" in done.stdout
    again = run_here("calibrate", "--nccl-tests", *logs_of(folder), "--out", str(out))
    assert again.stdout == done.stdout
    words = ("evaluate", "llama3-8b", "h100-x512", "--pin", "tp=8,pp=1,mbs=4", "--no-cache")
    times = []
    for more in ((), ("--calibration", str(out))):
        priced = run_here(*words, *more, "--format", "json")
        assert priced.returncode == 0, priced.stderr
        times.append(json.loads(priced.stdout)["plans"][0]["step_time_s"])
    assert times[1] > times[0] * 1.02


@pytest.mark.slow
def test_the_file_of_the_script_moves_the_generation_too(folder, tmp_path):
    out = tmp_path / "c.yaml"
    done = run_here(
        "calibrate",
        "--measured",
        str(folder / "measured.json"),
        "--cluster",
        "h100-x512",
        "--out",
        str(out),
        "--name",
        "ours",
    )
    assert done.returncode == 0, done.stderr
    found = load_calibration(out)
    assert found.name == "ours"
    assert "date 2026-11-01, torch 2.9.0, nccl 2.27.5" in found.note
    measured = {name for name, origin in found.provenance.items() if origin == "measured"}
    assert "generation.hopper.flash2_forward" in measured
    assert "link.nvlink4.efficiency" in measured


def test_every_size_and_json(folder):
    file = str(folder / "all-gather-8.log")
    full = run_here("calibrate", "--nccl-tests", file, "--format", "full").stdout
    assert "measured us" in full
    assert full.count(" KiB") + full.count(" MiB") + full.count(" GiB") >= 12
    assert "nothing written: --out FILE keeps these values" in full
    found = json.loads(run_here("calibrate", "--nccl-tests", file, "--format", "json").stdout)
    (one,) = found["collectives"]
    errors = [abs(f / m - 1) for f, m in zip(one["fitted_s"], one["measured_s"], strict=True)]
    assert sorted(errors)[len(errors) // 2] < 0.03
    assert found["values"]["link.nvlink4.efficiency"] == pytest.approx(0.6, rel=0.06)
    kept = {p["name"]: p["value"] for p in found["parameters"] if p["status"] != "fitted"}
    assert kept
    assert not set(kept) & set(found["values"])


def test_another_network_without_a_cluster_file(folder, tmp_path):
    out = tmp_path / "c.yaml"
    done = run_here(
        "calibrate",
        "--nccl-tests",
        str(folder / "all-gather-32.log"),
        "--link",
        "roce-400",
        "--out",
        str(out),
    )
    assert done.returncode == 0, done.stderr
    assert "link.roce-400.efficiency" in load_calibration(out).values
    assert "note: nodes taken" not in done.stdout


def test_anchors_of_a_reference_run_are_not_carried_on(folder, tmp_path):
    anchored = tmp_path / "anchored.yaml"
    anchored.write_text(
        "schema_version: 1\nname: a\nvalues:\n  anchor.compute: 1.2\n  shared.node_spread: 0.03\n"
    )
    out = tmp_path / "c.yaml"
    done = run_here(
        "calibrate",
        "--nccl-tests",
        str(folder / "all-gather-8.log"),
        "--from",
        str(anchored),
        "--out",
        str(out),
    )
    found = load_calibration(out)
    assert "anchor.compute" not in found.values
    assert found.values["shared.node_spread"] == 0.03
    assert "the anchors of a reference run" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nccl-tests", "none.log"], "none.log: no such file"),
        (["--nccl-tests", "LOG", "--cluster", "a100-x1024"], "of h100-sxm-80gb, the pool has"),
        (["--nccl-tests", "LOG", "--cluster", "h100-x512", "--link", "x"], "--cluster or --link"),
        (["--nccl-tests", "LOG", "--link", "nvlink4"], "is a link inside a node"),
        (["--nccl-tests", "LOG", "--link", "ib-ndr"], "Did you mean"),
        (["--nccl-tests", "LOG", "--pool", "x"], "--pool names a pool of a cluster file"),
        (["--nccl-tests", "LOG", "--format", "xml"], "--format: unknown 'xml'"),
        (["--nccl-tests", "LOG", "runs.csv"], "runs.csv is about measured runs"),
        (["--nccl-tests", "LOG", "--fit", "link"], "--fit is about measured runs"),
        (["--cluster", "h100-x512"], "--cluster says where benchmarks ran"),
        (["a.csv", "b.csv"], "2 files of runs"),
        (["--measured", "CPU"], "was measured on a CPU"),
        (["--measured", "LOG"], "is no JSON"),
        (["--nccl-tests", "JSON"], "is JSON; only the printed table is read"),
        (["--nccl-tests", "NAMELESS"], "is no accelerator of the catalogue"),
        (["--nccl-tests", "LOG", "--out", "none/c.yaml"], "cannot write"),
        (["--nccl-tests", "LOG", "--name", "n" * 81], "--name of 81 characters"),
    ],
)
def test_what_cannot_be_used(folder, tmp_path, words, said):
    file = folder / "all-gather-8.log"
    cpu = tmp_path / "cpu.json"
    part = load_cluster("h100-x512").cluster.pools[0].accelerator
    cpu.write_text(json.dumps(measured_file(part, "CPU x86_64")))
    other = tmp_path / "all-gather.log"
    other.write_text(file.read_text().replace("NVIDIA H100 80GB HBM3", "Voodoo 2"))
    names = {
        "LOG": str(file),
        "CPU": str(cpu),
        "NAMELESS": str(other),
        "JSON": str(folder / "measured.json"),
        "none/c.yaml": str(tmp_path / "none" / "c.yaml"),
    }
    done = run_here("calibrate", *(names.get(word, word) for word in words))
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stderr.split())
    assert "defect" not in done.stderr


def test_measure_writes_the_script_and_says_how_to_start_it(tmp_path):
    out = tmp_path / "measure.py"
    done = run_here("measure", "h100-x512", "--out", str(out))
    assert done.returncode == 0
    assert "torchrun --nproc-per-node 8" in done.stdout
    assert "--nnodes 2" in done.stdout
    assert "--measured measured.json --measured measured-2.json --cluster h100-x512" in done.stdout
    text = out.read_text()
    compile(text, "measure.py", "exec")
    shown = run_here("measure", "h100-x8", "--out", "-")
    assert shown.stdout == text
    assert "--nnodes" not in shown.stderr  # one node
    assert run_here("measure", "--out", str(out)).stdout == f"wrote {out}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["h100-x512", "--nodes", "64"], ""),
        (["h100-x8", "--nodes", "2"], "--nodes 2, and h100 has 1"),
        (["h100-x512", "--nodes", "65"], "--nodes 65, and h100 has 64"),
        (["--pool", "x"], "planner measure CLUSTER --pool NAME"),
        (["h100-x512", "--pool", "x"], "no pool 'x'"),
        (["nothing"], "no file and no example called 'nothing'"),
    ],
)
def test_measure_for_clusters_that_are_not_there(tmp_path, words, said):
    done = run_here("measure", *words, "--out", str(tmp_path / "m.py"))
    assert said in " ".join(done.stderr.split())
    assert (done.returncode == 0) == (not said)
