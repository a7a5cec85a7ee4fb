"""Model and cluster as read: what came from their files, beside the plain types of the models."""

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Cluster, Operations, Pool
from planner.errors import UsageError
from planner.specs.importers.imported import scalar, value_at
from planner.specs.schema import NO_DETAILS, DetailsSpec, SearchSpec
from planner.specs.yaml.document import Document, close_names, path_text

Overrides = Iterable[tuple[str, object]]
"""Pairs of a dotted path and a value, such as `("pools.0.nodes", "16")`."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds, without the file: nothing is opened for it."""

    content: str | Mapping[str, Any]
    """Its text, or the mapping that it holds."""
    name: str = ""
    """What the file is called, as far as it is: it names a model without a name."""
    label: str = ""
    """What messages call it where it has no name."""
    shown: str = ""
    """What suggested commands call it: the name without this."""


FileOrContent = str | os.PathLike[str] | Content


@dataclass(frozen=True, slots=True)
class ModelInput:
    """A model file as read."""

    shape: ModelShape
    job: TrainingJob
    document: dict[str, Any]
    """Canonical content: every default filled in, the same for every way of writing it."""
    path: str
    """File it came from; empty for a dict."""
    format: str = "a model file"
    """What the file is, in words."""
    notes: tuple[str, ...] = ()
    """What was assumed and left out when it was read from another format."""
    details: DetailsSpec = NO_DETAILS
    """What emitted files say of the model and no figure depends on."""
    search: SearchSpec | None = None
    """What the file asks `solve` to search for."""
    listed: tuple[str, ...] = ()
    """Recipes that the file leaves open; none where it names one."""
    changed: tuple[tuple[str, str], ...] = ()
    """What a search has changed of the numbers in the file: axis and value, as written."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """The recipes that the file leaves open, or its only one."""
        return self.listed or (self.job.precision,)


@dataclass(frozen=True, slots=True)
class OtherUse:
    """Another way to use the nodes of a pool: other devices of each node, or of each domain."""

    pool: Pool
    entry: dict[str, Any]
    """The pool as a cluster document says it."""
    hosts: tuple[str, ...]
    """Names of the nodes in use, where the file names nodes."""


@dataclass(frozen=True, slots=True)
class PoolSource:
    """What the file of a pool says that the pool itself does not show."""

    index: int
    """Place of the pool in the file."""
    assumed: tuple[str, ...]
    """Catalogue figures in use without a second source: `<part>.<figure>`."""
    node_keys: tuple[str, ...]
    """Fields of the pool that change the number of its nodes; none where more has to change."""
    own_domain: bool
    """The file states the scale-up domain, so it stays with more nodes."""
    hosts: tuple[str, ...] = ()
    """Names of the nodes that plans use, in network order; none where the file does not say."""
    host: tuple[tuple[str, str], ...] = ()
    """What the file states of the host (`HOST_KEYS`)."""
    network: tuple[tuple[str, str | bool], ...] = ()
    """Latencies, in-switch sums and power limit where the file replaces the catalogue's, in base
    units."""
    announced: tuple[str, ...] = ()
    """Accelerators and links that are announced and that nobody has measured."""
    file_fields: tuple[tuple[str, Any], ...] = ()
    """What a document says of the pool where that is not what plans use of it."""
    others: tuple["OtherUse", ...] = ()
    """Other ways to use its nodes, which `solve` tries beside this one."""


@dataclass(frozen=True, slots=True)
class ClusterInput:
    """A cluster file as read, with the catalogue figures filled in."""

    cluster: Cluster
    document: dict[str, Any]
    """Canonical content: every default filled in, quantities in base units."""
    path: str
    """File it came from; empty for a dict."""
    sources: tuple[PoolSource, ...]
    """By pool."""
    operations: tuple[Operations, ...]
    """By pool: what running costs and how often it fails."""
    notes: tuple[str, ...] = ()
    """What was left out or assumed where the file is a dump of a cluster."""
    from_dump: bool = False
    """The nodes are those that were free when a dump was made, no number that somebody chose."""

    @property
    def assumed(self) -> tuple[str, ...]:
        """The assumed figures of all pools, each once."""
        return tuple(dict.fromkeys(x for source in self.sources for x in source.assumed))

    @property
    def announced(self) -> tuple[str, ...]:
        """The announced parts of all pools, each once."""
        return tuple(dict.fromkeys(x for source in self.sources for x in source.announced))

    @property
    def n_given(self) -> int:
        """Devices of the first pool, with those that stay idle where jobs use part of a domain."""
        pool, entry = self.cluster.pools[0], self.document["pools"][0]
        return entry["nodes"] * pool.devices_per_node if pool.domain_nodes else pool.n_devices

    def only(self, index: int) -> "ClusterInput":
        """Return the cluster with one of its pools, as if the file listed no other."""
        if len(self.cluster.pools) == 1:
            return self
        pool = self.cluster.pools[index]
        document = {**self.document, "pools": [self.document["pools"][index]]}
        document.pop("links", None)
        return ClusterInput(
            cluster=dataclasses.replace(self.cluster, pools=(pool,), links=()),
            document=document,
            path=self.path,
            sources=(self.sources[index],),
            operations=(self.operations[index],),
            notes=self.notes,
            from_dump=self.from_dump,
        )

    def with_other_uses(self) -> "ClusterInput":
        """Return the cluster with every way to use the nodes of a pool as a pool of its own."""
        if not any(source.others for source in self.sources):
            return self
        pools, entries, sources, operations = [], [], [], []
        for pool, entry, source, runs in zip(
            self.cluster.pools, self.document["pools"], self.sources, self.operations, strict=True
        ):
            alone = dataclasses.replace(source, others=())
            # Said of the whole domains too: read back, the answer has no further pools.
            total = {"segment": pool.scale_up_domain} if _in_segments(source) else {}
            pools.append(pool)
            entries.append({**entry, **total})
            sources.append(alone)
            operations.append(runs)
            for other in source.others:
                pools.append(other.pool)
                entries.append(other.entry)
                sources.append(dataclasses.replace(alone, node_keys=(), hosts=other.hosts))
                operations.append(runs)
        return dataclasses.replace(
            self,
            cluster=dataclasses.replace(self.cluster, pools=tuple(pools)),
            document={**self.document, "pools": entries},
            sources=tuple(sources),
            operations=tuple(operations),
        )

    def pool(self, name: str) -> "ClusterInput":
        """Return the cluster with the pool of this name alone; `UsageError` when there is none.

        The name may be one of another use (`with_other_uses`).
        """
        names = [pool.name for pool in self.cluster.pools]
        if name in names:
            return self.only(names.index(name))
        several = self.with_other_uses()
        if several is not self and name in [pool.name for pool in several.cluster.pools]:
            return several.pool(name)
        close = close_names(name, names, 1)
        guess = f"did you mean {close[0]}? " if close else ""
        fix = f"{guess}pools: {', '.join(names)}"
        raise UsageError(f"the cluster has no pool {name!r}", fix, "pool")


def _in_segments(source: PoolSource) -> bool:
    return any(other.pool.domain_nodes for other in source.others)


def import_notes(document: Document) -> tuple[str, ...]:
    """Return what a reader of another format assumed, a note each, and its other notes.

    What an option has set since is no assumption.
    """
    imported = document.imported
    if imported is None:
        return ()
    assumed = (
        f"assumed {path_text(o.path)} = {scalar(value_at(imported.document, o.path))} ({o.text})"
        for o in imported.origins
        if o.assumed and o.path not in document.overrides
    )
    return (*assumed, *(f"{imported.kind}: {note}" for note in imported.notes))


def default_name(document: Document, fallback: str) -> str:
    """Return a name made of that of the file, else `fallback`."""
    plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", Path(document.file).stem).strip("-._+")
    return plain[:64] or fallback
