"""A make-believe Slurm and Kubernetes: runs launch files with stubs, says where ranks landed."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

HOSTNAME = "kubernetes.io/hostname"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"

_TORCHRUN = """
import os, sys
words = sys.argv[1:]
options = dict(zip(words[:10:2], words[1:10:2]))
n, k = int(options["--nproc-per-node"]), int(options["--node-rank"])
assert 0 <= k < int(options["--nnodes"]), options
host = os.environ.get("SLURMD_NODENAME") or os.environ["FAKE_HOST"]
with open(os.environ["FAKE_LOG"], "a") as log:
    for i in range(n):
        log.write(f"{k * n + i} {host} {i} {options['--master-addr']} {len(words)}\\n")
"""

_ACCELERATE = """
import os, re, sys
words = sys.argv[1:]
assert words[0] == "launch"
options = dict(zip(words[1:9:2], words[2:9:2]))
config = open(options["--config_file"]).read()
nodes, total = (int(re.search(key + r": (\\d+)", config)[1])
                for key in ("num_machines", "num_processes"))
k, n = int(options["--machine_rank"]), total // nodes
assert 0 <= k < nodes and "rdzv_backend: static" in config
host = os.environ.get("SLURMD_NODENAME") or os.environ["FAKE_HOST"]
with open(os.environ["FAKE_LOG"], "a") as log:
    for i in range(n):
        log.write(f"{k * n + i} {host} {i} {options['--main_process_ip']} {len(words)}\\n")
"""

_SRUN = """
import os, subprocess, sys
words = sys.argv[1:]
with open(os.environ["FAKE_SRUN"], "a") as log:
    log.write(" ".join(word for word in words if word.startswith("--")) + "\\n")
while words[0].startswith("--"):
    del words[0]
paths = dict(pair.split("=") for pair in os.environ["FAKE_NODES"].split())
for i, node in enumerate(sorted(paths)):
    task = {"SLURM_NODEID": str(i), "SLURM_PROCID": str(i), "SLURM_LOCALID": "0"}
    task |= {"SLURMD_NODENAME": node, "SLURM_TOPOLOGY_ADDR": paths[node]}
    code = subprocess.run(words, env={**os.environ, **task}).returncode
    if code:
        sys.exit(code)
"""

_SCONTROL = """
import re, sys
assert sys.argv[1:3] == ["show", "hostnames"], sys.argv
for item in re.findall(r"[^,\\[]+(?:\\[[^\\]]*\\])?", sys.argv[3]):
    head, _, inside = item.rstrip("]").partition("[")
    for part in inside.split(",") if inside else [""]:
        low, _, high = part.partition("-")
        numbers = range(int(low), int(high or low) + 1) if low else [""]
        for number in numbers:
            print(head + (str(number).zfill(len(low)) if low else ""))
"""

STUBS = {"torchrun": _TORCHRUN, "accelerate": _ACCELERATE, "srun": _SRUN, "scontrol": _SCONTROL}


@dataclass
class Landing:
    """Where ranks ended up."""

    host: dict[int, str] = field(default_factory=dict)
    """By rank."""
    local_rank: dict[int, int] = field(default_factory=dict)
    masters: set[str] = field(default_factory=set)
    """Addresses of the master that processes were given."""
    srun: list[str] = field(default_factory=list)
    """Options of every srun."""


def stub_folder(folder: Path) -> Path:
    """Write the stubs; return the folder to put on the PATH."""
    bin_folder = folder / "stubs"
    bin_folder.mkdir()
    for name, text in STUBS.items():
        file = bin_folder / name
        file.write_text(f"#!{sys.executable} -IS\n{text}")
        file.chmod(0o755)
    return bin_folder


def _read(log: Path, srun: Path) -> Landing:
    found = Landing()
    for line in log.read_text().splitlines() if log.exists() else []:
        rank, host, local, master, _ = line.split()
        assert int(rank) not in found.host, f"rank {rank} started twice"
        found.host[int(rank)] = host
        found.local_rank[int(rank)] = int(local)
        found.masters.add(master)
    found.srun = srun.read_text().splitlines() if srun.exists() else []
    return found


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write emitted files."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def run_batch(
    files: Mapping[str, str],
    script: str,
    folder: Path,
    nodes: Mapping[str, str],
    *words: str,
    **settings: str,
) -> tuple[Landing, subprocess.CompletedProcess[str]]:
    """Run a batch script on `nodes` (name to topology address), as Slurm would on the first."""
    write(folder / "job", files)
    stubs = stub_folder(folder)
    log, srun = folder / "ranks", folder / "sruns"
    env = {
        "PATH": f"{stubs}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NODELIST": ",".join(sorted(nodes)),
        "SLURM_SUBMIT_DIR": str(folder / "job"),
        "SLURMD_NODENAME": min(nodes),
        "FAKE_NODES": " ".join(f"{node}={address}" for node, address in nodes.items()),
        "FAKE_LOG": str(log),
        "FAKE_SRUN": str(srun),
        **settings,
    }
    spooled = folder / "slurm_script"  # Slurm runs a copy from its spool folder
    spooled.write_text(files[script])
    done = subprocess.run(
        ["bash", str(spooled), *words],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return _read(log, srun), done


@dataclass
class Pod:
    """A pod as its controller makes it."""

    address: str
    """DNS name."""
    job: str
    """The child job that it belongs to."""
    spec: dict[str, Any]
    labels: dict[str, str]
    annotations: dict[str, str]
    env: dict[str, str]
    """What the controller adds."""
    exclusive: str = ""
    """Label of the blocks of which its job has one to itself."""
    node: str = ""


def documents(text: str) -> dict[str, dict[str, Any]]:
    """Return the documents of a file by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def pods_of_jobset(document: Mapping[str, Any]) -> Iterator[Pod]:
    """Yield the pods that the JobSet and Job controllers would make."""
    name, spec = document["metadata"]["name"], document["spec"]
    exclusive = document["metadata"].get("annotations", {}).get(EXCLUSIVE, "")
    domain = spec["network"].get("subdomain", name)
    for replicated in spec["replicatedJobs"]:
        job = replicated["template"]["spec"]
        assert job["completionMode"] == "Indexed"
        assert job["parallelism"] == job["completions"]
        for i in range(replicated["replicas"]):
            child = f"{name}-{replicated['name']}-{i}"
            for k in range(job["completions"]):
                assert len(f"{child}-{k}") <= 63, "a host name has at most 63 characters"
                yield Pod(
                    address=f"{child}-{k}.{domain}",
                    job=child,
                    spec=job["template"]["spec"],
                    labels={"jobset.sigs.k8s.io/jobset-name": name},
                    annotations={JOB_INDEX: str(i)},
                    env={"JOB_COMPLETION_INDEX": str(k)},
                    exclusive=exclusive,
                )


def pods_of_pytorchjob(document: Mapping[str, Any]) -> Iterator[Pod]:
    """Yield the pods that the training operator would make: the master is 0, workers from 1."""
    name, specs = document["metadata"]["name"], document["spec"]["pytorchReplicaSpecs"]
    for kind, first in (("Master", 0), ("Worker", 1)):
        for i in range(specs[kind]["replicas"]) if kind in specs else ():
            yield Pod(
                address=f"{name}-{kind.lower()}-{i}",
                job=name,
                spec=specs[kind]["template"]["spec"],
                labels={"training.kubeflow.org/job-name": name},
                annotations={},
                env={
                    "RANK": str(first + i),
                    "MASTER_ADDR": f"{name}-master-0",
                    "MASTER_PORT": "23456",
                },
            )


def schedule(
    pods: Sequence[Pod],
    nodes: Mapping[str, dict[str, str]],
    devices: int,
    resource: str,
    seed: int,
) -> None:
    """Put pods on nodes (name to labels) at random, as far as their specs allow."""
    rng = random.Random(seed)
    for _ in range(2000):
        free = dict.fromkeys(nodes, devices)
        for pod in pods:
            pod.node = ""
        for pod in rng.sample(pods, len(pods)):
            allowed = [node for node in nodes if _allowed(pod, node, nodes, free, pods, resource)]
            if not allowed:
                break
            pod.node = rng.choice(allowed)
            free[pod.node] -= pod.spec["containers"][0]["resources"]["limits"][resource]
        else:
            return
    raise AssertionError("the pods do not fit on the nodes")


def _allowed(
    pod: Pod,
    node: str,
    nodes: Mapping[str, dict[str, str]],
    free: Mapping[str, int],
    pods: Sequence[Pod],
    resource: str,
) -> bool:
    labels, spec = nodes[node], pod.spec
    need = spec["containers"][0]["resources"]["limits"][resource]
    if free[node] < need:
        return False
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    affinity = spec.get("affinity", {})
    placed = [other for other in pods if other.node]
    terms = _required(affinity, "nodeAffinity").get("nodeSelectorTerms", [])
    if terms and not any(
        all(labels.get(x["key"]) in x["values"] for x in term["matchExpressions"])
        for term in terms
    ):
        return False
    for kind, wanted in (("podAffinity", True), ("podAntiAffinity", False)):
        for term in _required(affinity, kind, []):
            mine = term["labelSelector"]["matchLabels"].items()
            others = [x for x in placed if mine <= x.labels.items()]
            key = term["topologyKey"]
            same = any(nodes[x.node][key] == labels[key] for x in others)
            if (wanted and others and not same) or (not wanted and same):
                return False
    if pod.exclusive:
        value = labels[pod.exclusive]
        for other in placed:
            if (other.job == pod.job) != (nodes[other.node][pod.exclusive] == value):
                return False
    return True


def _required(affinity: Mapping[str, Any], kind: str, default: Any = None) -> Any:
    found = affinity.get(kind, {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return found if found is not None else ({} if default is None else default)


def run_pods(
    text: str,
    pods_of: Callable[[Mapping[str, Any]], Iterator[Pod]],
    kind: str,
    folder: Path,
    nodes: Mapping[str, dict[str, str]],
    devices: int,
    seed: int = 0,
    resource: str = "nvidia.com/gpu",
) -> tuple[Landing, dict[str, Pod]]:
    """Schedule the pods of a file and run each one's command; return also the pods by node."""
    found = documents(text)
    pods = list(pods_of(found[kind]))
    schedule(pods, nodes, devices, resource, seed)
    write(folder / "plan", found["ConfigMap"]["data"])
    stubs, log = stub_folder(folder), folder / "ranks"
    for pod in pods:
        container = pod.spec["containers"][0]
        env = dict(pod.env)
        for entry in container.get("env", ()):
            env[entry["name"]] = entry["value"] if "value" in entry else _field(pod, entry)
        command = [
            str(folder / "plan" / Path(word).name) if word.startswith("/plan/") else word
            for word in container["command"]
        ]
        path = f"{stubs}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            command,
            check=True,
            cwd=folder,
            env={"PATH": path, "FAKE_LOG": str(log), "FAKE_HOST": pod.node, **env},
        )
    return _read(log, folder / "none"), {pod.node: pod for pod in pods}


def _field(pod: Pod, entry: Mapping[str, Any]) -> str:
    path = entry["valueFrom"]["fieldRef"]["fieldPath"]
    if path == "spec.nodeName":
        return pod.node
    head, _, key = path.partition("['")
    assert head == "metadata.annotations", path
    return pod.annotations[key.removesuffix("']")]
