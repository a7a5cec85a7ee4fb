"""Dumps as cluster files: recognized, merged, no traceback; the command; CLUSTER arguments."""

import contextlib
import json
import random
import subprocess
from pathlib import Path

import pytest
import yaml

import planner
from planner.cli.spec_check import check_spec
from planner.errors import PlannerError, SpecError, UsageError
from planner.render.document import text_of
from planner.specs.importers.clusters.reader import import_cluster, looks_like_dump
from planner.specs.importers.dump_text import clean, decode, read_dump
from planner.specs.importers.hostlist import expand_hosts
from planner.specs.loader import cluster_from_dict, load_cluster
from tests.planner.command import run_here
from tests.planner.specs.importers.dumps import FOLDER, dump, imported, loaded, note, pools
from tests.searches.instances import one_in

ROOT = Path(__file__).resolve().parents[4]
SAMPLES = sorted(path.name for path in FOLDER.iterdir())
MODEL = {
    "model": {
        "layers": 8,
        "hidden": 1024,
        "heads": 8,
        "ffn": 4096,
        "gated": True,
        "vocab": 32000,
        "tied": False,
    },
    "training": {"seq_len": 1024, "global_batch": 64},
}


@pytest.fixture(autouse=True)
def in_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_here("import", "cluster", *words, stdin=stdin)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_recognized(name):
    assert looks_like_dump(dump(name)[1])


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "examples").rglob("*.yaml")),
        *sorted(x for x in (ROOT / "tests" / "goldens" / "emit").iterdir() if x.is_file()),
        ROOT / "tests" / "planner" / "data" / "hf-llama3-70b-config.json",
        ROOT / "pyproject.toml",
        ROOT / "README.md",
        ROOT / "planner" / "cli" / "app.py",
    ],
    ids=lambda path: path.name,
)
def test_other_files_are_not_taken_for_dumps(path):
    assert not looks_like_dump(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", one_in(3, SAMPLES))
def test_damaged_files_are_an_error_or_a_cluster(name):
    """Cut off, shuffled or changed: what comes out is a file that loads, or one clear error."""
    text = dump(name)[1]
    dice = random.Random(name)
    lines = text.splitlines(keepends=True)
    cases = [text[: len(text) * k // 12] for k in range(12)]
    for _ in range(4):
        cases.append("".join(dice.sample(lines, len(lines))))
        cut = dice.randrange(len(text))
        junk = dice.choice(
            ["\x00", "{", "]", "gpu:", "n[1-", "=", "NV18", "State=", "<", '"', "\n\n"]
        )
        cases.append(text[:cut] + junk + text[cut + dice.randrange(30) :])
    for case in cases:
        with contextlib.suppress(PlannerError):
            cluster_from_dict(import_cluster([(name, case)]).document)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("hello world\n", "is no dump of a cluster that is known"),
        ('{"nodes": [', "is JSON that is cut off"),
        ('{"nodes": []}', "is no dump"),
        ("slurm_load_partitions: Unable to contact slurm controller\n", "is no dump"),
        ("<html><body>Not found</body></html>", "is no dump"),
        ("NAME  STATUS  ROLES  AGE\nn1  Ready  <none>  3d\n", "run kubectl get nodes -o json"),
        ("name, size\nx, 3\n", "is no dump"),
        ("host:1:2 [0] NCCL INFO + PCI[48.0] - GPU/38000 (3)\n", "NCCL_TOPO_DUMP_FILE"),
        ("NodeName= Arch=x86_64 State=IDLE Partitions=x\n", "is not a host name"),
    ],
)
def test_what_is_no_dump_is_one_clear_error(text, words):
    with pytest.raises(SpecError, match=words) as caught:
        import_cluster([("file.txt", text)])
    assert str(caught.value).startswith("file.txt: ")
    assert "fix: " in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    for raw, words in ((b"\xff\xd8\xff\xe0\x00\x10JFIF\xff", "is not text"), (b"a\0b", "binary")):
        (tmp_path / "x").write_bytes(raw)
        with pytest.raises(SpecError, match=words):
            read_dump(str(tmp_path / "x"))
    with pytest.raises(SpecError, match="no such file"):
        read_dump(str(tmp_path / "y"))
    with pytest.raises(SpecError, match="is a directory"):
        read_dump(str(tmp_path))
    assert decode("gpu:h100:8".encode("utf-16"), "x") == "gpu:h100:8"
    assert clean("\x1b[4mGPU0\x1b[0m\r\nx") == "GPU0\nx"


def test_the_same_dump_gives_the_same_file():
    one = imported("scontrol-tree-nodes.txt", "scontrol-tree-topology.txt")
    two = imported("scontrol-tree-nodes.txt", "scontrol-tree-topology.txt")
    assert one.to_yaml() == two.to_yaml()
    turned = imported("scontrol-tree-topology.txt", "scontrol-tree-nodes.txt")
    assert turned.document["pools"] == one.document["pools"]


@pytest.mark.parametrize(
    "names",
    [["scontrol-tree-nodes.txt"], ["kubectl-dgx-nodes.json"], ["scontrol-gb200-nodes.txt"]],
)
def test_every_field_has_its_origin_and_yaml_reads_back(names):
    found = imported(*names)
    assert yaml.safe_load(found.to_yaml()) == found.document
    origins = {origin.path for origin in found.origins}
    for i, pool in enumerate(pools(found)):
        assert {("pools", i, key) for key in pool} <= origins
    assert all(origin.text for origin in found.origins)


def test_two_lists_of_one_cluster_complete_each_other():
    """sinfo says nothing of n003's free GPUs, scontrol does."""
    sinfo = "n001|gpu:h100:8|idle|gpu\nn003|gpu:h100:8|mixed|gpu\nn009|gpu:h100:8|idle|gpu\n"
    scontrol = (
        "NodeName=n003 Gres=gpu:h100:8 State=MIXED CPUAlloc=8 Partitions=gpu"
        " CfgTRES=cpu=8,gres/gpu=8 AllocTRES=cpu=8,gres/gpu=6\n"
    )
    found = import_cluster([("sinfo.txt", sinfo), ("scontrol.txt", scontrol)])
    (pool,) = pools(found)
    assert (pool["hosts"], pool["free_devices"]) == ("n[001,009,003]", [8, 8, 2])


def test_nodes_of_two_schedulers_are_refused():
    with pytest.raises(SpecError, match="nodes of Kubernetes and Slurm in one import"):
        import_cluster([dump("kubectl-amd.json"), dump("scontrol-tree-nodes.txt")])


def test_only_a_topology_lists_no_nodes():
    with pytest.raises(SpecError, match="no file lists nodes"):
        import_cluster([dump("scontrol-tree-topology.txt")])


@pytest.mark.slow
def test_thousands_of_nodes():
    record = (
        "NodeName={0} Gres=gpu:h100:8(S:0-1) State=IDLE CPUAlloc=0 Partitions=gpu"
        " ActiveFeatures=h100,rack_{1},unknown-42.x CfgTRES=cpu=8,gres/gpu=8 AllocTRES=\n"
    )
    text = "".join(record.format(f"n{i:05d}", i // 16) for i in range(4000))
    switches = "".join(
        f"SwitchName=l{k} Level=0 LinkSpeed=1 Nodes=n[{16 * k:05d}-{16 * k + 15:05d}]\n"
        for k in range(250)
    )
    found = import_cluster([("x", text), ("t", switches)])
    (pool,) = pools(found)
    assert (pool["nodes"], pool["hosts"]) == (4000, "n[00000-03999]")
    assert found.document["fabric"]["tiers"][0]["nodes"] == 16


# ---- the command


def test_command_writes_yaml(tmp_path):
    done = run("scontrol-tree-nodes.txt", "scontrol-tree-topology.txt")
    assert done.returncode == 0
    assert "note: left out: n003 drained" in done.stderr
    (tmp_path / "c.yaml").write_text(done.stdout)
    assert load_cluster(tmp_path / "c.yaml").cluster.pools[0].n_nodes == 14
    out = tmp_path / "d.yaml"
    done = run("scontrol-tree-nodes.txt", "--all", "--name", "alpha", "--out", str(out))
    assert (done.returncode, done.stdout) == (0, "")
    assert "assumed pools.0.accelerator = h100-sxm-80gb" in done.stderr
    assert f"-> {out}" in done.stderr
    assert load_cluster(out).cluster.name == "alpha"


def test_command_reads_standard_input():
    text = dump("scontrol-tree-nodes.txt")[1] + dump("scontrol-tree-topology.txt")[1]
    done = run("-", "--nodes", "n[001-002]", stdin=text)
    assert done.returncode == 0
    assert "# Imported from standard input: " in done.stdout
    assert "hosts: n[001-002]" in done.stdout


def test_command_asks_and_takes_the_answer():
    done = run("scontrol-mixed.txt")
    assert done.returncode == 1
    assert "which accelerators are a100 (4 nodes x 8)" in done.stderr
    done = run(
        "scontrol-mixed.txt",
        "--accelerator",
        "a100=a100-80gb",
        "--accelerator",
        "accel=none",
        "--accelerator",
        "h100=none",
        "--accelerator",
        "t4=none",
    )
    assert done.returncode == 0
    assert "accelerator: a100-sxm-80gb" in done.stdout
    done = run(
        "kubectl-no-labels.json", "--accelerator", "h200", "--nic", "roce-400", "--nics", "4"
    )
    assert "nics_per_node: 4" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--accelerator", "a100="], "is not TYPE=NAME"),
        (["--accelerator", "a100=h100", "--accelerator", "a100=h200"], "named twice"),
        (["--nics", "-1"], "--nics must be 1 to 1024"),
        (["--nic", "mlx5_0"], "is no network port"),
        (["--selector", "zone"], "is not KEY=VALUE"),
        (["--nodes", "n[1-"], "is not a host list"),
        (["--nodes", ""], "--nodes is empty"),
        (["--partition", " "], "--partition is empty"),
        (["--partition", "x"], "no node is in 'x'"),
        (["--most", "4", "--partial"], "drop one of them"),
        (["--out", "no/such/folder/c.yaml"], "cannot write"),
        (["scontrol-tree-nodes.txt"], "a file is named twice"),
    ],
)
def test_bad_options(words, message):
    done = run("scontrol-tree-nodes.txt", *words)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# ---- as CLUSTER arguments


def test_a_dump_is_a_cluster_argument(tmp_path):
    path = tmp_path / "nodes.txt"
    path.write_text(dump("scontrol-tree-nodes.txt")[1] + dump("scontrol-tree-topology.txt")[1])
    result = planner.solve(MODEL, path, top=2)
    notes = "\n".join(result.notes)
    # 14 nodes are free: no layout shares 64 sequences and 8 layers over 112 devices.
    assert result.inputs["cluster"]["pools"][0]["nodes"] == 14
    assert (result.plans[0].layout.n_devices, result.plans[0].n_idle) == (64, 48)
    assert any("on 64 devices, 48 idle" in line for line in result.why_first)
    assert "cluster: left out: n003 drained" in notes
    assumed = (
        "assumed pools.0.accelerator = h100-sxm-80gb (h100; the form that comes in nodes of 8)"
    )
    assert assumed in notes
    assert "note: left out: n003 drained" in text_of(result)
    hosts = "n[001-002,004-005,010-011,013,016-020,006,008]"
    assert result.inputs["cluster"]["pools"][0]["hosts"] == hosts
    assert "18 x 8" not in check_spec(path)
    assert "14 nodes x 8 h100-sxm-80gb" in check_spec(path)


def test_a_published_configuration_and_a_dump_are_a_plan(tmp_path):
    """The path of a user: no field filled by hand."""
    nodes = tmp_path / "nodes.txt"
    nodes.write_text(dump("scontrol-tree-nodes.txt")[1] + dump("scontrol-tree-topology.txt")[1])
    config = ROOT / "tests" / "planner" / "data" / "hf-llama3-70b-config.json"
    result = planner.solve(config, nodes, top=1)
    assert result.plans
    pool = result.inputs["cluster"]["pools"][0]
    plan = result.plans[0]
    assert plan.layout.n_devices + plan.n_idle == 8 * pool["nodes"]
    assert len(expand_hosts(pool["hosts"])) == pool["nodes"]


@pytest.mark.slow
def test_the_number_of_nodes_of_a_dump_can_be_set(tmp_path):
    path = tmp_path / "nodes.txt"
    path.write_text(dump("scontrol-tree-nodes.txt")[1] + dump("scontrol-tree-topology.txt")[1])
    given = load_cluster(path, [("pools.0.free_nodes", 8)])
    assert (given.cluster.pools[0].n_nodes, given.from_dump) == (8, False)
    assert given.sources[0].hosts[-1] == "n016"
    asked = {"top": 1, "overrides": (("pools.0.free_nodes", 7),)}
    whole = planner.solve(MODEL, path, pins={"devices": 56}, **asked).plans[0]
    assert (whole.layout.n_devices, whole.layout.pp) == (56, 7)
    assert not planner.solve(MODEL, path, pins={"devices": 56}, at_most={"pp": 6}, **asked).plans
    best = planner.solve(MODEL, path, **asked).plans[0]
    assert (best.layout.n_devices, best.n_idle) == (32, 24)
    assert best.step_time_s < whole.step_time_s
    assert load_cluster(path).from_dump
    assert not load_cluster("h100-x8").from_dump


@pytest.mark.slow
def test_fewer_nodes_of_racks_are_used_where_no_layout_fills_all(tmp_path):
    path = tmp_path / "nodes.txt"
    path.write_text(dump("scontrol-gb200-nodes.txt")[1])
    job = {**MODEL, "training": {"seq_len": 1024, "global_batch": 64}}
    model = {"model": {**MODEL["model"], "layers": 7}, "training": job["training"]}
    pins = {"cp": 1, "pp": 1}
    result = planner.solve(model, path, top=1, pins=pins)
    pool = result.inputs["cluster"]["pools"][0]
    assert (pool["nodes"], pool["scale_up_domain"]) == (48, 64)
    assert not planner.solve(model, path, pins={**pins, "devices": 192}).plans
    whole = planner.solve(model, path, top=1, pins={**pins, "devices": 128}).plans[0]
    assert result.plans[0].step_time_s <= whole.step_time_s


def test_a_dump_with_a_question_as_cluster_argument(tmp_path):
    path = tmp_path / "nodes.json"
    path.write_text(dump("kubectl-no-labels.json")[1])
    with pytest.raises(
        SpecError, match=r"planner import cluster \S*nodes\.json --accelerator NAME"
    ):
        planner.solve(MODEL, path)


def test_a_dump_in_place_of_the_model(tmp_path):
    path = tmp_path / "nodes.txt"
    path.write_text(dump("scontrol-tree-nodes.txt")[1])
    with pytest.raises(SpecError, match="this is a cluster file, and a model file is needed here"):
        planner.solve(path, "h100-x8")


# ---- hosts

POOL = {"accelerator": "h100", "nodes": 4, "hosts": "n[01-04]"}


def hosts(pool: dict, *overrides: tuple[str, object]) -> tuple[str, ...]:
    return cluster_from_dict({"pools": [{**POOL, **pool}]}, overrides).sources[0].hosts


def test_hosts_are_those_of_the_nodes_that_plans_use():
    assert hosts({}) == ("n01", "n02", "n03", "n04")
    assert hosts({"free_nodes": 2, "hosts": "n03,n01"}) == ("n03", "n01")
    free = {"free_devices": [8, 0, 8, 4]}
    assert hosts(free) == ("n01", "n03")
    assert hosts({**free, "partial_nodes": True}) == ("n01", "n03")
    assert hosts({"free_devices": [4, 0, 8, 4], "partial_nodes": True}) == ("n01", "n03", "n04")
    assert (
        cluster_from_dict({"pools": [{"accelerator": "h100", "nodes": 4}]}).sources[0].hosts == ()
    )


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"hosts": "n[01-03]"}, "3 hosts for 4 nodes that plans use"),
        ({"free_nodes": 2}, "4 hosts for 2 nodes that plans use"),
        ({"free_devices": [8, 0, 8, 4], "hosts": "n[1-2]"}, "2 hosts for 4 numbers"),
        ({"hosts": "n[01-03],n02"}, "n02 stands twice"),
        ({"hosts": "n[01-"}, "is not a host list"),
        ({"hosts": ["n01"]}, "expected a host list, got a list"),
    ],
)
def test_hosts_that_do_not_fit(pool, message):
    with pytest.raises(SpecError, match=message):
        hosts(pool)


def test_another_number_of_nodes_takes_the_first_or_forgets_the_names():
    assert hosts({}, ("pools.0.nodes", 2)) == ("n01", "n02")
    assert hosts({}, ("pools.0.free_nodes", 1)) == ("n01",)
    assert hosts({}, ("pools.0.nodes", 8)) == ()


@pytest.mark.slow
def test_hosts_change_no_plan():
    with_names = planner.solve(MODEL, {"pools": [POOL]}, top=3)
    other = planner.solve(MODEL, {"pools": [{**POOL, "hosts": "m[5-8]"}]}, top=3)
    without = planner.solve(MODEL, {"pools": [{"accelerator": "h100", "nodes": 4}]}, top=3)
    for result in (with_names, other):
        assert [p.plan_id for p in result.plans] == [p.plan_id for p in without.plans]
        assert [p.step_time_s for p in result.plans] == [p.step_time_s for p in without.plans]
    assert with_names.inputs["cluster"]["pools"][0]["hosts"] == "n[01-04]"
    assert "hosts" not in without.inputs["cluster"]["pools"][0]
    read = cluster_from_dict(json.loads(with_names.dumps())["inputs"]["cluster"])
    assert read.sources[0].hosts == ("n01", "n02", "n03", "n04")


@pytest.mark.slow
def test_more_nodes_are_proposed_without_names():
    big = {
        **MODEL,
        "model": {**MODEL["model"], "layers": 96, "hidden": 12288, "heads": 96, "ffn": 49152},
    }
    result = planner.solve(big, {"pools": [{**POOL, "nodes": 2, "hosts": "n[1-2]"}]})
    assert not result.plans
    assert any("nodes" in relaxation.change for relaxation in result.relaxations)


def test_unknown_options_of_the_library_are_usage_errors():
    from planner.specs.importers.clusters.options import ImportOptions

    with pytest.raises(UsageError, match="did you mean"):
        import_cluster([dump("kubectl-amd.json")], ImportOptions(accelerators={"*": "mi30x"}))
    found = imported("kubectl-amd.json", accelerators={"*": "mi325x"})
    assert loaded(found).cluster.pools[0].accelerator.name == "mi325x-256gb"
    assert note(found, "what pods hold")
