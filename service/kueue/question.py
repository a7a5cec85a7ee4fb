"""A Workload as a question to the planner: the annotations of its pods, and what was granted.

planner/model: llama3-70b            an example's name, or configmap:NAME/KEY of the namespace
planner/cluster: h100-x512           likewise; else of the ResourceFlavor or the AdmissionCheck
planner/framework: megatron          fields of a request
planner/pins: tp=8,pp=4
planner/set: training.global_batch=512
planner/config-map: train-plan       where the layout and the files that run it are written
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from service.kueue.workload import PREFIX, Grant, NotPlannable

Data = dict[str, Any]
TEXT_FIELDS = ("framework", "objective")
MAPPING_FIELDS = ("pins", "max", "set")
FIELDS = ("model", "cluster", *TEXT_FIELDS, *MAPPING_FIELDS, "config-map")
ANSWERS = "plan-"
"""Annotations that begin with it are the planner's own."""
FROM_CONFIG_MAP = "configmap:"
ReadConfigMap = Callable[[str], Mapping[str, str] | None]
"""Returns the data of a ConfigMap of the Workload's namespace by name; None for none."""
ReadPool = Callable[[Any], Mapping[str, Any]]
"""Returns the first pool of a cluster as its file has it, what follows from it filled in."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the planner is asked for a Workload."""

    request: Data
    """Of the call `solve`."""
    config_map: str
    """Name of the ConfigMap that is written; empty for none."""

    @property
    def framework(self) -> str:
        """The framework whose files are written; empty where none is named."""
        name = str(self.request.get("framework", ""))
        return "" if name in ("any", "default") else name


def question_of(
    grant: Grant, default_cluster: str, read: ReadConfigMap, pool_of: ReadPool
) -> Question:
    """Return the question of a Workload; `NotPlannable` where its annotations make none.

    A pod is a node of the cluster, or an equal share of one: `pools.0` has as many nodes as pods
    were granted, each with the devices of a pod.
    """
    notes = {k: v for k, v in grant.notes.items() if not k.startswith(ANSWERS)}
    for name in notes:
        if name not in FIELDS:
            known = ", ".join(PREFIX + x for x in FIELDS)
            raise NotPlannable(f"annotation {PREFIX}{name} is unknown; there are {known}")
    if not notes.get("model"):
        raise NotPlannable(f"no annotation {PREFIX}model; name a model, such as llama3-70b")
    named = notes.get("cluster") or default_cluster
    if not named:
        raise NotPlannable(
            f"no cluster is named; annotate the pods, the ResourceFlavor or the AdmissionCheck"
            f" with {PREFIX}cluster, such as h100-x512"
        )
    cluster = _source(named, read)
    request: Data = {"model": _source(notes["model"], read), "cluster": cluster}
    request |= {name: notes[name] for name in TEXT_FIELDS if notes.get(name)}
    request |= {name: _mapping(name, notes[name]) for name in MAPPING_FIELDS if notes.get(name)}
    granted = _granted(grant, pool_of(cluster), named)
    stated = request.get("set", {})
    for path in stated:
        if path in granted or path.startswith("pools.0.nodes"):
            raise NotPlannable(
                f"{PREFIX}set has {path}={stated[path]}; leave it out: what Kueue granted decides"
            )
    request["set"] = {**stated, **granted}
    return Question({**request, "top": 1}, notes.get("config-map", ""))


def _granted(grant: Grant, pool: Mapping[str, Any], cluster: str) -> Data:
    """Return the paths of a cluster file that say what was granted.

    Where Kueue assigned scale-up domains they are as large as in its assignment; they are never
    larger than the job. A share of a node has its share of the network ports.
    """
    per_node, per_pod = int(pool["accelerators_per_node"]), grant.devices_per_pod
    if per_pod > per_node:
        raise NotPlannable(
            f"a pod has {per_pod} {grant.resource}, and a node of {cluster[:80]} has {per_node};"
            " give pods as many at most, or name another cluster"
        )
    found: Data = {"pools.0.nodes": grant.n_pods}
    domain, nics = (int(pool[name]) for name in ("scale_up_domain", "nics_per_node"))
    if per_pod < per_node:
        found["pools.0.accelerators_per_node"] = per_pod
        found["pools.0.nics_per_node"] = max(1, nics * per_pod // per_node)
    n_inside = domain // per_node
    size = min(domain, per_pod)
    if n_inside > 1:  # a rack
        size = min(n_inside, grant.pods_per_domain or grant.n_pods) * per_pod
    if size != domain:
        found["pools.0.scale_up_domain"] = size
    return found


def _source(text: str, read: ReadConfigMap) -> Any:
    """Return a model or cluster as requests hold it."""
    if not text.startswith(FROM_CONFIG_MAP):
        return text
    name, _, key = text.removeprefix(FROM_CONFIG_MAP).partition("/")
    data = read(name) if name and key else None
    if data is None or key not in data:
        raise NotPlannable(
            f"{text}: there is no ConfigMap {name!r} with the key {key!r} in the namespace;"
            f" {FROM_CONFIG_MAP}NAME/KEY"
        )
    return {"text": data[key], "name": key}


def _mapping(name: str, text: str) -> dict[str, str]:
    """Return `tp=8,pp=4` as a mapping."""
    pairs = [pair.strip().partition("=") for pair in text.split(",") if pair.strip()]
    for key, sign, value in pairs:
        if not (key and sign and value):
            raise NotPlannable(f"{PREFIX}{name}: {text!r} is not of the form NAME=VALUE,...")
    return {key: value for key, _, value in pairs}
