"""What a run is read from: its file, what the user adds, the devices it is judged on."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hardware.parts import Pool
from planner.errors import SpecError, UsageError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.option_names import option
from planner.solver.sources import Overrides
from planner.specs.inputs import ClusterInput, Content, FileOrContent, ModelInput
from planner.specs.loader import cluster_from_dict, load_cluster, load_model, model_from_dict

MODEL_SECTIONS, CLUSTER_SECTIONS = ("model", "training"), ("pools", "fabric", "name")


TORCHTITAN_KEYS = frozenset(
    (
        "local_batch_size",
        "global_batch_size",
        "steps",
        "flavor",
        "converters",
        "dtype",
        "mixed_precision_param",
        "mixed_precision_reduce",
        "enable_cpu_offload",
        "compile",
    )
)
"""Keys of torchtitan's [model] and [training], whose names are also sections of a model file."""


@dataclass(frozen=True, slots=True)
class RunOverrides:
    """Fields that the user changes, sorted by what they belong to."""

    model: Overrides
    cluster: Overrides
    run: Overrides
    """Settings of the run, under the framework's own names."""


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run's file and what the user says beside it: reads the run, also with changes."""

    file: str | Content
    framework: str
    """Empty: what the file looks like."""
    query: RunQuery
    """What the user says; devices are named by who reads."""

    def read(
        self,
        n_devices: int,
        sets: Overrides = (),
        pins: Mapping[str, object] = MappingProxyType({}),
        *,
        all_devices: bool,
    ) -> ExistingRun:
        """Return the run on so many devices, with more settings and pins than the user says."""
        query = dataclasses.replace(
            self.query,
            sets=(*self.query.sets, *sets),
            n_devices=n_devices,
            pins={**self.query.pins, **pins},
            all_devices=all_devices,
        )
        return read_run(self.file, query, self.framework)


def sorted_overrides(overrides: Overrides) -> RunOverrides:
    """Return the overrides of the model, the cluster and the run's own settings."""
    entries: dict[str, list[tuple[str, object]]] = {"model": [], "cluster": [], "run": []}
    for path, value in overrides:
        head, dotted = path.split(".")[0], "." in path
        if head in MODEL_SECTIONS and dotted and path.split(".")[1] not in TORCHTITAN_KEYS:
            entries["model"].append((path, value))
        elif head in CLUSTER_SECTIONS and dotted:
            entries["cluster"].append((path, value))
        else:
            entries["run"].append((path, value))
    return RunOverrides(**{key: tuple(items) for key, items in entries.items()})


def run_cluster(
    cluster: FileOrContent | Mapping[str, Any], overrides: Overrides, pool: str
) -> ClusterInput:
    """Return the one pool that a run uses; `UsageError` where several are left."""
    read = cluster_from_dict if isinstance(cluster, Mapping) else load_cluster
    value = read(cluster, overrides)  # type: ignore[arg-type]  # chosen by its type
    if pool:
        return value.pool(pool)
    names = [p.name for p in value.cluster.pools]
    if len(names) > 1:
        raise UsageError(
            f"the cluster has {len(names)} pools, and a run uses one of them",
            "name it with " + option("pool") + f": {', '.join(names)}; a run over several has"
            " nodes.txt beside it, as planner emit writes it",
            code="several",
        )
    return value


def model_beside(
    model: FileOrContent | Mapping[str, Any] | None, overrides: Overrides
) -> ModelInput | None:
    """Return the model file beside a run; None where there is none."""
    if model is None:
        return None
    if isinstance(model, Mapping):
        return model_from_dict(model, overrides)
    return load_model(model, overrides)


def run_devices(
    cluster: ClusterInput, n: int, segment_nodes: int | None = None
) -> tuple[ClusterInput | None, list[str]]:
    """Return the first pool with as many nodes as `n` devices fill; None where they do not.

    Devices fill scale-up domains one after the other; with `segment_nodes` so many nodes of each.
    """
    pool = cluster.cluster.pools[0]
    per_node = pool.devices_per_node
    segment = _segment_of(pool, n, segment_nodes)
    if segment:
        n_racks = n // segment
        domain_nodes = pool.scale_up_domain // per_node
        part: dict[str, object] = {
            "pools.0.nodes": n_racks * domain_nodes,
            "pools.0.segment": segment,
        }
        text = (
            f"--segment: the run takes {segment} of the {pool.scale_up_domain} devices of each of"
            f" {n_racks} scale-up domain{'s' if n_racks > 1 else ''}"
        )
        if n_racks * domain_nodes <= pool.n_nodes:
            placed, notes = _changed(cluster, part, n)
            return placed, [text, *notes]
    if n == pool.n_devices:
        return cluster, []
    nodes, rest = divmod(n, per_node)
    fields: dict[str, object] = {"pools.0.nodes": max(1, nodes)}
    if n < per_node:
        fields["pools.0.accelerators_per_node"] = n
        fields["pools.0.nics_per_node"] = max(1, pool.nics_per_node * n // per_node)
        fields["pools.0.scale_up_domain"] = math.gcd(pool.scale_up_domain, n)
    elif rest:
        return None, [f"the run starts on {n} devices, which are not whole nodes of {per_node}"]
    elif pool.scale_up_domain > per_node:
        fields["pools.0.scale_up_domain"] = min(pool.scale_up_domain, n)
    document = dict(cluster.document)
    maximum = pool.n_devices
    if n > maximum:
        fabric = dict(document["fabric"], tiers=[])
        document["fabric"] = fabric if nodes > _tier_nodes(document) else document["fabric"]
    changed, refused = _changed(dataclasses.replace(cluster, document=document), fields, n)
    if changed is None:
        return None, refused
    if n > maximum:
        text = f"the run starts on {n} devices, the cluster has {maximum}: it would wait for more"
        return changed, [f"{text}; priced as if the pool had {nodes} nodes"]
    return changed, [f"the run uses {n} of the {maximum} devices: priced on {n} of one pool"]


def _segment_of(pool: Pool, n: int, segment_nodes: int | None) -> int | None:
    """Return the devices that a run takes of every scale-up domain; None where it takes all."""
    if segment_nodes is None or pool.domain_nodes:
        return None
    segment = segment_nodes * pool.devices_per_node
    return segment if segment < pool.scale_up_domain and n % segment == 0 else None


def _changed(
    cluster: ClusterInput, fields: Mapping[str, object], n: int
) -> tuple[ClusterInput | None, list[str]]:
    """Return a cluster with some fields changed; None, and why, where they cannot be."""
    try:
        changed = cluster_from_dict(dict(cluster.document), list(fields.items()))
    except SpecError as error:
        return None, [f"the run starts on {n} devices: {error.message}"]
    return dataclasses.replace(changed, path=cluster.path), []


def _tier_nodes(document: Mapping[str, Any]) -> int:
    tiers = document["fabric"]["tiers"]
    return int(tiers[-1]["nodes"]) if tiers else 1 << 60
