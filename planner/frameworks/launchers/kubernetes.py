"""Writes a plan for Kubernetes: a JobSet, or a PyTorchJob of Kubeflow's training operator.

One pod a node. A pod learns its node rank from the host that it landed on when hosts are named,
else from its index; then it runs the framework's script, which comes in a ConfigMap. Fields as of
JobSet v1alpha2 (kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go) and PyTorchJob v1
(kubeflow/training-operator, pkg/apis/kubeflow.org/v1).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from planner.frameworks.launchers.launch import Launch

DOMAIN_LABEL = "nvidia.com/gpu.clique"
"""Node label of a multi-node NVLink domain, set by GPU feature discovery."""
LEAF_LABEL = "network.topology.nvidia.com/leaf"
"""Node label of the lowest switches as Topograph sets it; clouds have labels of their own."""
HOST_LABEL = "kubernetes.io/hostname"
PORT = 29500
MOUNT = "/plan"
"""Where pods see the files of the plan."""

GPU_PRODUCTS = {
    "v100-sxm-16gb": "Tesla-V100-SXM2-16GB",
    "v100-sxm-32gb": "Tesla-V100-SXM2-32GB",
    "a100-sxm-40gb": "NVIDIA-A100-SXM4-40GB",
    "a100-sxm-80gb": "NVIDIA-A100-SXM4-80GB",
    "h100-sxm-80gb": "NVIDIA-H100-80GB-HBM3",
    "h200-sxm-141gb": "NVIDIA-H200",
    "b200-sxm-180gb": "NVIDIA-B200",
    "gb200-186gb": "NVIDIA-GB200",
    "gb300-288gb": "NVIDIA-GB300",
}
"""Label nvidia.com/gpu.product by catalogue name: the driver's name with dashes for blanks."""
RESOURCES = {
    "NVIDIA": "nvidia.com/gpu",
    "AMD": "amd.com/gpu",
    "Google": "google.com/tpu",
    "Huawei": "huawei.com/Ascend910",
}
"""Extended resource of the device plugin, by vendor; the usual taint has its name."""

_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_JOBSET_INDEX = "jobset.sigs.k8s.io/job-index"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_JOB_NAME = "training.kubeflow.org/job-name"
_CHANNEL = "nvlink-channel"


def jobset_yaml(launch: Launch) -> str:
    """Return a JobSet with its ConfigMap.

    Hosts named: one pod pinned to the first (the master's address), the others on the rest.
    Else one child job per block, each alone in its block (exclusive-topology): node rank = job
    index x nodes of a block + pod index; a last, smaller block is a job of its own.
    """
    block, n_nodes = launch.block, launch.n_nodes
    annotations: dict[str, str] = {}
    if launch.hosts:
        parts = [("first", 1, 1, 0, launch.hosts[:1])]
        parts += [("others", 1, n_nodes - 1, 1, launch.hosts[1:])] * (n_nodes > 1)
    elif block is None or n_nodes <= block.n_nodes:
        parts = [("node", 1, n_nodes, 0, ())]
    else:
        n_full, rest = divmod(n_nodes, block.n_nodes)
        parts = [("block", n_full, block.n_nodes, 0, ())]
        parts += [("rest", 1, rest, n_full * block.n_nodes, ())] * (rest > 0)
        annotations = {_EXCLUSIVE: _block_label(launch)}
    near = {} if launch.hosts or annotations or block is None else _near(launch, _JOBSET_NAME)
    jobs = [
        {
            "name": name,
            "replicas": replicas,
            "template": {
                "spec": {
                    "parallelism": pods,
                    "completions": pods,
                    "completionMode": "Indexed",
                    "backoffLimit": 0,
                    "template": {
                        "spec": {
                            "restartPolicy": "Never",
                            **_pod(launch, _JOBSET_NAME, hosts, near, _jobset_env(launch, first)),
                        }
                    },
                }
            },
        }
        for name, replicas, pods, first, hosts in parts
    ]
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": launch.name} | ({"annotations": annotations} if annotations else {}),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": launch.name},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": jobs,
        },
    }
    rank = _RANK_OF_HOST if launch.hosts else _RANK_OF_INDEX.format(pods=parts[0][2])
    kind = "JobSet (jobset.x-k8s.io/v1alpha2)"
    return _text(launch, kind, _jobset_notes(launch, annotations), rank, document)


def pytorchjob_yaml(launch: Launch) -> str:
    """Return a PyTorchJob with its ConfigMap: one master, the other nodes workers."""
    block, hosts = launch.block, launch.hosts
    near = {}
    if not hosts and block is not None and launch.n_nodes <= block.n_nodes:
        near = _near(launch, _JOB_NAME)
    env = [_node_name()] if hosts else []
    replicas = {
        name: {
            "replicas": count,
            "restartPolicy": "Never",
            "template": {"spec": _pod(launch, _JOB_NAME, on, near, env)},
        }
        for name, count, on in (
            ("Master", 1, hosts[:1]),
            ("Worker", launch.n_nodes - 1, hosts[1:]),
        )
        if count
    }
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": launch.name},
        "spec": {
            "nprocPerNode": str(launch.per_node),
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0},
            "pytorchReplicaSpecs": replicas,
        },
    }
    rank = _RANK_OF_HOST if hosts else _RANK_OF_REPLICA
    kind = "PyTorchJob (kubeflow.org/v1)"
    return _text(launch, kind, _pytorchjob_notes(launch), rank, document)


def _block_label(launch: Launch) -> str:
    return DOMAIN_LABEL if launch.block and launch.block.is_domain else LEAF_LABEL


def _near(launch: Launch, key: str) -> dict[str, Any]:
    """Return the affinity that keeps all pods of the job in one block."""
    return {"podAffinity": {_REQUIRED: [_term(launch, key, _block_label(launch))]}}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _term(launch: Launch, key: str, topology: str) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {key: launch.name}}, "topologyKey": topology}


def _node_name() -> dict[str, Any]:
    return {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def _jobset_env(launch: Launch, first: int) -> list[dict[str, Any]]:
    """Return the environment of a pod of the replicated job whose first node rank is `first`."""
    job = {"fieldRef": {"fieldPath": f"metadata.annotations['{_JOBSET_INDEX}']"}}
    block, results = launch.block, []
    if launch.hosts:
        head, results = "first", [_node_name()]
    else:
        head = "node" if block is None or launch.n_nodes <= block.n_nodes else "block"
        results = [
            {"name": "JOB_INDEX", "valueFrom": job},
            {"name": "FIRST_NODE_RANK", "value": str(first)},
        ]
    return [
        *results,
        {"name": "MASTER_ADDR", "value": f"{launch.name}-{head}-0-0.{launch.name}"},
        {"name": "MASTER_PORT", "value": str(PORT)},
    ]


def _pod(
    launch: Launch,
    key: str,
    hosts: Sequence[str],
    near: Mapping[str, Any],
    env: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return the pod's spec without its restart policy."""
    part = launch.pool.accelerator
    resource = RESOURCES.get(part.vendor, RESOURCES["NVIDIA"])
    affinity = dict(near)
    if len(hosts) > 1:
        names = {"key": HOST_LABEL, "operator": "In", "values": list(hosts)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [names]}]}
        affinity["nodeAffinity"] = {_REQUIRED: terms}
    if not launch.whole_nodes:  # otherwise two pods of the job fit on a node
        affinity["podAntiAffinity"] = {_REQUIRED: [_term(launch, key, HOST_LABEL)]}
    selector = (
        {"nvidia.com/gpu.product": GPU_PRODUCTS[part.name]} if part.name in GPU_PRODUCTS else {}
    )
    if len(hosts) == 1:
        selector[HOST_LABEL] = hosts[0]
    n_dies = part.torus.devices_per_chip if part.torus else 1  # a TPU's resource counts chips
    resources: dict[str, Any] = {"limits": {resource: max(1, launch.per_node // n_dies)}}
    claims = {}
    if _has_channel(launch):
        resources["claims"] = [{"name": _CHANNEL}]
        template = f"{launch.name}-{_CHANNEL}"
        claims = {"resourceClaims": [{"name": _CHANNEL, "resourceClaimTemplateName": template}]}
    container = {
        "name": "pytorch",
        "image": "YOUR_IMAGE",
        "command": ["bash", f"{MOUNT}/start.sh"],
        **({"env": env} if env else {}),
        "resources": resources,
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "volumeMounts": [
            {"name": "plan", "mountPath": MOUNT},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    return {
        **({"nodeSelector": selector} if selector else {}),
        **({"affinity": affinity} if affinity else {}),
        # Nodes with devices often carry this taint; not every cluster tolerates it by itself.
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}],
        **claims,
        "containers": [container],
        "volumes": [
            {"name": "plan", "configMap": {"name": f"{launch.name}-files"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }


def _has_channel(launch: Launch) -> bool:
    """Tell whether pods need a channel of multi-node NVLink."""
    part = launch.pool.accelerator
    return part.vendor == "NVIDIA" and launch.placement.nodes_per_domain > 1


def _compute_domain(launch: Launch) -> dict[str, Any]:
    """Return what lets pods of different nodes reach one another over NVLink."""
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": launch.name},
        "spec": {
            "numNodes": launch.n_nodes,
            "channel": {"resourceClaimTemplate": {"name": f"{launch.name}-{_CHANNEL}"}},
        },
    }


def _config_map(launch: Launch, rank: str) -> dict[str, Any]:
    files = dict(launch.files)
    files["start.sh"] = _START.replace("SCRIPT", launch.script).replace("RANK_LINES\n", rank)
    if launch.hosts:
        files["hosts.txt"] = "".join(f"{host}\n" for host in launch.hosts)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{launch.name}-files"},
        "data": files,
    }


def _text(
    launch: Launch, kind: str, notes: Sequence[str], rank: str, job: Mapping[str, Any]
) -> str:
    """Return all documents of the file, comments first."""
    lines = [
        f"{kind}: {launch.script} once on each of {launch.n_nodes} node(s), a pod a node.",
        *(line for text in launch.header for line in text.splitlines()),
        *_needs(launch, kind),
        *notes,
        "YOURS: the image, with what the script needs; the RDMA resource; data volumes; queue.",
    ]
    documents = [_config_map(launch, rank), job]
    if _has_channel(launch):
        documents.insert(1, _compute_domain(launch))
    head = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return head + "---\n".join(_with_marks(_dump(document)) for document in documents)


def _needs(launch: Launch, kind: str) -> list[str]:
    """Return the releases that the file needs, as far as its own fields ask for them.

    A claim's template is named beside it from Kubernetes 1.31 on (before, under `source`), and
    NVIDIA's driver wants 1.32; dynamic resource allocation is on by itself from 1.34
    (kubernetes/api core/v1 PodResourceClaim; kubernetes-sigs/dra-driver-nvidia-gpu).
    """
    own = ["Needs the controller of its kind, and Kubernetes 1.24 or later (Indexed Jobs)."]
    if not kind.startswith("JobSet"):
        own = ["Needs Kubeflow's training operator 1.x, on any Kubernetes that it supports."]
    if not _has_channel(launch):
        return own
    return [
        "Needs Kubernetes 1.32 or later with dynamic resource allocation (on by itself from 1.34)",
        "and NVIDIA's DRA driver with ComputeDomains (resource.nvidia.com/v1beta1): pods claim a",
        f"channel of multi-node NVLink. {own[0].split(', ')[0].rstrip('.')} too.",
    ]


def _jobset_notes(launch: Launch, annotations: Mapping[str, str]) -> list[str]:
    if launch.hosts:
        return _host_notes()
    if annotations and launch.block:
        return [
            f"One child job for each {launch.block.n_nodes} nodes, alone in the block of nodes"
            f" with one value of the label {annotations[_EXCLUSIVE]}",
            "(YOURS, if your nodes are labelled otherwise): ranks of a block stay together.",
        ]
    return _one_block_notes(launch)


def _pytorchjob_notes(launch: Launch) -> list[str]:
    block = launch.block
    if launch.hosts:
        return _host_notes()
    if block is not None and launch.n_nodes > block.n_nodes:
        return [
            f"WARNING: the plan counts on {block.n_nodes} nodes to a block (tier {block.tier!r}).",
            "A PyTorchJob cannot say which pods share one: node ranks follow the replica index",
            "wherever pods land. Use the JobSet, or name hosts (--hosts).",
        ]
    return _one_block_notes(launch)


def _one_block_notes(launch: Launch) -> list[str]:
    if launch.block is None:
        return []
    return [
        f"All pods on nodes with one value of the label {_block_label(launch)}",
        "(YOURS, if your nodes are labelled otherwise).",
    ]


def _host_notes() -> list[str]:
    return [
        f"Pods stand on the hosts of the plan (label {HOST_LABEL}, the same as the node's name);",
        "hosts.txt has them in network order, and the place there is the node rank.",
    ]


class _Dumper(yaml.SafeDumper):
    """Writes long texts as blocks, so that scripts can be read, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write equal parts in full."""
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text_node)


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1_000_000)


def _with_marks(text: str) -> str:
    """Mark what the user fills in."""
    lines = []
    for line in text.splitlines():
        plain = line.strip()
        indent = line[: len(line) - len(line.lstrip())]
        if plain == "image: YOUR_IMAGE":
            line += "  # YOURS"
        lines.append(line)
        if plain.split(":")[0] in RESOURCES.values():
            lines.append(
                f"{indent}# rdma/RESOURCE: 1  # YOURS: what your RDMA device plugin offers"
            )
        if plain == "tolerations:":
            lines[-1] += "  # YOURS: further taints of your nodes"
        if plain.startswith("nvidia.com/gpu.product:"):
            lines[-1] += "  # YOURS, if your nodes are labelled otherwise"
    return "\n".join(lines) + "\n"


_START = """#!/usr/bin/env bash
# Finds this pod's node rank, then starts the processes of its node.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
RANK_LINES
export NODE_RANK
exec bash "${HERE}/SCRIPT" "$@"
"""

_RANK_OF_HOST = """# The place of this pod's host in the order of the network.
if ! line="$(grep -nxF -m1 -e "${NODE_NAME}" "${HERE}/hosts.txt")"; then
  echo "${NODE_NAME} is not one of the plan's hosts" >&2
  exit 1
fi
NODE_RANK="$((${line%%:*} - 1))"
"""

_RANK_OF_INDEX = """# Blocks one after the other, pods of a block by their index.
NODE_RANK="$((FIRST_NODE_RANK + JOB_INDEX * {pods} + JOB_COMPLETION_INDEX))"
"""

_RANK_OF_REPLICA = """# The operator numbers the master 0, the workers from 1; RANK is the pod's.
NODE_RANK="${RANK}"
"""
