"""Reads `kubectl get nodes -o json`, and `kubectl get pods -A -o json` for what is in use.

The labels are those of NVIDIA's GPU feature discovery, AMD's node labeller and the clouds; see
docs/import_clusters.md for all of them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from planner.specs.importers.clusters.accelerators import is_mig, is_vgpu
from planner.specs.importers.clusters.facts import Devices, Evidence, Facts, Node, Ports, Position
from planner.specs.importers.clusters.ports import ports_in_words
from planner.specs.importers.dump_text import (
    as_count,
    as_dict,
    as_list,
    as_text,
    bad_dump,
    json_of,
)

_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
_SHARED_RESOURCE = "nvidia.com/gpu.shared"
_PRODUCTS = {
    "nvidia.com/gpu": (
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-accelerator",
        "gpu.nvidia.com/model",
        "k8s.amazonaws.com/accelerator",
        "accelerator",
    ),
    "amd.com/gpu": ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
}
"""Labels with the name of the accelerator, the most exact first."""
_WORDS = ("nvidia.com/gpu.machine", "gpu.nvidia.com/class", "backend.coreweave.cloud/flavor")
"""Further labels whose values may name the part, its form or the network."""
_DOMAINS = (
    "nvidia.com/gpu.clique",
    "network.topology.nvidia.com/accelerator",
    "accelerator.topograph.run/domain",
    "ds.coreweave.com/nvlink.domain",
    "topology.k8s.aws/ultraserver-id",
)
"""Labels of an NVLink domain that spans nodes."""
_LEVELS = (
    (
        ("core", "network.topology.nvidia.com/core"),
        ("datacenter", "network.topology.nvidia.com/datacenter"),
        ("spine", "network.topology.nvidia.com/spine"),
        ("block", "network.topology.nvidia.com/block"),
        ("leaf", "network.topology.nvidia.com/leaf"),
    ),
    (
        ("layer-1", "topology.k8s.aws/network-node-layer-1"),
        ("layer-2", "topology.k8s.aws/network-node-layer-2"),
        ("layer-3", "topology.k8s.aws/network-node-layer-3"),
    ),
    (
        ("block", "cloud.google.com/gce-topology-block"),
        ("subblock", "cloud.google.com/gce-topology-subblock"),
    ),
    (
        ("hpc-island", "oci.oraclecloud.com/rdma.hpc_island_id"),
        ("network-block", "oci.oraclecloud.com/rdma.network_block_id"),
        ("local-block", "oci.oraclecloud.com/rdma.local_block_id"),
    ),
    (
        ("fabric", "backend.coreweave.cloud/fabric"),
        ("superpod", "backend.coreweave.cloud/superpod"),
        ("leafgroup", "backend.coreweave.cloud/leafgroup"),
    ),
    (
        ("block", "cloud.provider.com/topology-block"),
        ("rack", "cloud.provider.com/topology-rack"),
    ),
)
"""Families of labels that give the groups of nodes, the widest first; the first family counts."""
_ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_INSTANCES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_DEVICE_TAINTS = re.compile(
    r"^(?:(?:nvidia|amd)\.com/gpu(?:\.present)?|gpu\.nvidia\.com/.*|vpc\.amazonaws\.com/efa|"
    r"cloud\.google\.com/gke-accelerator|sku|gpu|is_cpu_compute|is_gpu|is_gpu_compute)$"
)
"""Taints that keep pods without a device away; those with one tolerate them."""
_NODE_TAINTS = {
    "not-ready": "not ready",
    "unreachable": "not reachable",
    "unschedulable": "cordoned",
    "out-of-service": "out of service",
    "network-unavailable": "without network",
    "memory-pressure": "under memory pressure",
    "disk-pressure": "under disk pressure",
    "pid-pressure": "under PID pressure",
}
"""Taints that Kubernetes itself sets."""
_PRESSURES = {
    "MemoryPressure": "under memory pressure",
    "DiskPressure": "under disk pressure",
    "PIDPressure": "under PID pressure",
    "NetworkUnavailable": "without network",
}
_SUFFIX = re.compile(r"-(?:SHARED|MIG-.+|MIG-INVALID)$")


def looks_like_kubernetes(text: str) -> bool:
    """Tell whether a text is a list of nodes or pods from `kubectl ... -o json` (or yaml)."""
    content = _content(text)
    if as_dict(content).get("kind") in ("List", "NodeList", "PodList") and not _items(content):
        return True  # what kubectl prints when nothing matches
    return any(item.get("kind") in ("Node", "Pod") for item in _items(content)[:50])


def _content(text: str) -> Any:
    """Return the content of JSON, or of the YAML that kubectl writes."""
    return _yaml_of(text) if text.startswith("apiVersion:") else json_of(text)


@lru_cache(maxsize=2)  # as of `json_of`
def _yaml_of(text: str) -> Any:
    import yaml  # 20 ms, and most dumps are JSON

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _items(data: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, or the single object; those of a NodeList have no kind."""
    result = as_dict(data)
    kind = as_text(result.get("kind"))
    if kind in ("Node", "Pod"):
        return [result]
    implied = kind.removesuffix("List") if kind in ("NodeList", "PodList") else ""
    items = [as_dict(item) for item in as_list(result.get("items"))]
    return [{"kind": implied, **item} if implied else item for item in items]


def read_kubernetes(text: str, source: str, tolerated: Iterable[str] = ()) -> Facts:
    """Return the nodes, and what pods hold of them where pods are listed.

    `tolerated` are keys (or `key=value`) of taints that the job will tolerate.
    """
    items = _items(_content(text))
    nodes = tuple(
        _node(item, frozenset(tolerated)) for item in items if item.get("kind") == "Node"
    )
    pods = [item for item in items if item.get("kind") == "Pod"]
    if not nodes and not pods:
        raise bad_dump(source, "lists neither nodes nor pods", "kubectl get nodes -o json")
    named = [node for node in nodes if node.name]
    if len(named) < len(nodes):
        raise bad_dump(source, "a node has no name", "give the output of kubectl as it is")
    form = "Kubernetes, kubectl get " + ("nodes" if nodes else "pods") + " -o json"
    return Facts(source, form, nodes=nodes, in_use=_in_use(pods) if pods else None)


def _node(item: Mapping[str, Any], tolerated: frozenset[str]) -> Node:
    meta, status = as_dict(item.get("metadata")), as_dict(item.get("status"))
    labels = {k: as_text(v) for k, v in as_dict(meta.get("labels")).items()}
    unhealthy = list(_conditions(status))
    busy: list[str] = []
    spec = as_dict(item.get("spec"))
    if spec.get("unschedulable") is True:
        unhealthy.append("cordoned")
    for taint in map(as_dict, as_list(spec.get("taints"))):
        reason, serious = _taint(taint, tolerated)
        if reason:
            (unhealthy if serious else busy).append(reason)
    instance = next((labels[key] for key in _INSTANCES if labels.get(key)), "")
    devices = tuple(_devices(status, labels))
    n_labelled = as_count(labels.get("nvidia.com/gpu.count"))
    if n_labelled and not devices:
        unhealthy.append("offering none of its GPUs")
        resource = "nvidia.com/gpu"
        devices = (Devices(_evidence(resource, labels), n_labelled, 0, resource=resource),)
    return Node(
        name=as_text(meta.get("name")),
        devices=devices,
        unhealthy=", ".join(dict.fromkeys(unhealthy)),
        busy=", ".join(dict.fromkeys(busy)),
        labels=labels,
        instance=instance,
        position=_position(labels),
        ports=_ports(status, labels, instance),
    )


def _conditions(status: Mapping[str, Any]) -> Iterable[str]:
    """Yield what the node itself reports as wrong."""
    states = {
        as_text(c.get("type")): as_text(c.get("status"))
        for c in map(as_dict, as_list(status.get("conditions")))
    }
    if states.get("Ready", "True") != "True":
        yield "not ready"
    for kind, reason in _PRESSURES.items():
        if states.get(kind) == "True":
            yield reason


def _taint(taint: Mapping[str, Any], tolerated: frozenset[str]) -> tuple[str, bool]:
    """Return why a taint keeps the job away, empty when it does not, and whether it is a fault."""
    key, value = as_text(taint.get("key")), as_text(taint.get("value"))
    if taint.get("effect") not in ("NoSchedule", "NoExecute"):
        return "", False
    prefix, _, last = key.rpartition("/")
    if prefix == "node.kubernetes.io" and last in _NODE_TAINTS:
        return _NODE_TAINTS[last], True
    pair = f"{key}={value}" if value else key
    if _DEVICE_TAINTS.match(key) or {key, pair} & tolerated:
        return "", False
    return f"tainted {pair}", False


def _devices(status: Mapping[str, Any], labels: Mapping[str, str]) -> Iterable[Devices]:
    capacity, usable = as_dict(status.get("capacity")), as_dict(status.get("allocatable"))
    for resource in _RESOURCES:
        name = _product(resource, labels)
        n = as_count(capacity.get(resource))
        shared = _shared(resource, name, labels, capacity)
        if shared:
            n = n or as_count(capacity.get(_SHARED_RESOURCE)) or 1
        if n:
            free = as_count(usable.get(resource, capacity.get(resource)))
            evidence = _evidence(resource, labels)
            yield Devices(evidence, n, min(n, free), shared, resource, n - min(n, free))
        slices = [key for key in capacity if key.startswith("nvidia.com/mig-")]
        n_slices = sum(as_count(capacity[key]) for key in slices)
        if n_slices and resource == "nvidia.com/gpu":
            yield Devices(_evidence(resource, labels), n_slices, 0, "MIG slices", resource)


def _product(resource: str, labels: Mapping[str, str]) -> str:
    return next((labels[x] for x in _PRODUCTS[resource] if labels.get(x)), "")


def _evidence(resource: str, labels: Mapping[str, str]) -> Evidence:
    return Evidence(
        name=_SUFFIX.sub("", _product(resource, labels)),
        labels=tuple(labels[x] for x in _WORDS if labels.get(x)),
        memory_bytes=_memory(resource, labels),
        capability=_capability(resource, labels),
    )


def _shared(
    resource: str, name: str, labels: Mapping[str, str], capacity: Mapping[str, Any]
) -> str:
    """Return why the devices of a node are not whole ones; empty when they are."""
    if resource != "nvidia.com/gpu":
        partition = labels.get("amd.com/compute-partitioning-profile", "SPX").upper()
        return "" if partition in ("SPX", "") else f"partitioned ({partition})"
    if is_mig(name) or "-MIG-" in name:
        return "MIG slices"
    replicas = as_count(labels.get("nvidia.com/gpu.replicas"))
    sharing = labels.get("nvidia.com/gpu.sharing-strategy", "none")
    if name.endswith("-SHARED") or replicas > 1 or as_count(capacity.get(_SHARED_RESOURCE)):
        return "shared by MPS" if sharing == "mps" else "time-sliced"
    if is_vgpu(name) or labels.get("nvidia.com/vgpu.present") == "true":
        return "virtual GPUs"
    return ""


def _memory(resource: str, labels: Mapping[str, str]) -> float:
    if resource == "nvidia.com/gpu":
        return as_count(labels.get("nvidia.com/gpu.memory")) * 2.0**20
    text = labels.get("amd.com/gpu.vram", "")
    return int(text[:-1]) * 2.0**30 if re.fullmatch(r"[0-9]{1,4}G", text) else 0.0


def _capability(resource: str, labels: Mapping[str, str]) -> str:
    major = labels.get("nvidia.com/gpu.compute.major", "")
    minor = labels.get("nvidia.com/gpu.compute.minor", "")
    return f"{major}.{minor}" if resource == "nvidia.com/gpu" and major and minor else ""


def _position(labels: Mapping[str, str]) -> Position:
    domain = next(((x, labels[x]) for x in _DOMAINS if labels.get(x)), ("", ""))
    path: list[tuple[str, str]] = []
    for family in _LEVELS:
        path = [(level, labels[key]) for level, key in family if labels.get(key)]
        if path:
            break
    zone = next((labels[key] for key in _ZONES if labels.get(key)), "")
    if zone:
        path.insert(0, ("zone", zone))
    keys = [key for family in _LEVELS for _, key in family if labels.get(key)]
    why = ", ".join([*([domain[0]] if domain[0] else []), *keys[-1:]]) or ("zone" if zone else "")
    return Position(
        tuple(name for _, name in path), tuple(level for level, _ in path), domain[1], why
    )


def _ports(status: Mapping[str, Any], labels: Mapping[str, str], instance: str) -> Ports:
    """Return what resources and labels say of the ports."""
    capacity = as_dict(status.get("capacity"))
    n_efa = as_count(capacity.get("vpc.amazonaws.com/efa"))
    if n_efa:
        efa = "vpc.amazonaws.com/efa"
        return Ports(n=n_efa, kind="EFA", why=efa, why_n=efa)
    values = [labels[x] for x in _WORDS if labels.get(x)]
    rdma = [key for key in capacity if re.match(r"(?:rdma|openshift\.io|nvidia\.com)/", key)]
    return ports_in_words([*values, *(key for key in rdma if "gpu" not in key), instance])


def _in_use(pods: Iterable[Mapping[str, Any]]) -> Mapping[str, Mapping[str, int]]:
    """Return the devices that pods hold, by node and resource."""
    used: dict[str, Counter[str]] = {}
    for pod in pods:
        spec, status = as_dict(pod.get("spec")), as_dict(pod.get("status"))
        node = as_text(spec.get("nodeName"))
        if not node or status.get("phase") in ("Succeeded", "Failed"):
            continue
        # Init containers run one after the other before the others do.
        first = [_requests(c) for c in as_list(spec.get("initContainers"))]
        rest = sum((_requests(c) for c in as_list(spec.get("containers"))), Counter[str]())
        for need in first:
            for resource, n in need.items():
                rest[resource] = max(rest[resource], n)
        used.setdefault(node, Counter()).update(rest)
    return {node: dict(need) for node, need in used.items()}


def _requests(container: Any) -> "Counter[str]":
    """Return the devices that a container asks for; requests and limits of devices are equal."""
    resources = as_dict(as_dict(container).get("resources"))
    requested = {**as_dict(resources.get("requests")), **as_dict(resources.get("limits"))}
    return Counter({key: as_count(requested[key]) for key in _RESOURCES if key in requested})
