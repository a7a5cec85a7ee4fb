"""Nodes that pools of a job over several lose or gain: which, and the cluster that is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import BadValue, SpecError, UsageError
from planner.option_names import option
from planner.solver.together.records import JoinedPlan
from planner.specs.importers.hostlist import compress_hosts, expand_hosts
from planner.specs.inputs import ClusterInput
from planner.specs.loader import cluster_from_dict

MOST_GAINED = 1_000_000
"""Nodes that may join a pool."""
FORM = "POOL=N, such as old=1, several with commas, or host names"


@dataclass(frozen=True, slots=True)
class LostNodes:
    """Nodes that are gone, by pool, as places in it."""

    by_pool: Mapping[str, frozenset[int]]
    cluster: ClusterInput
    """As it was."""
    gained: Mapping[str, int] = field(default_factory=dict)
    """Nodes that joined, by pool."""

    @property
    def names(self) -> tuple[str, ...]:
        """Host names, else `node 3 of old`."""
        named = []
        for i, pool in enumerate(self.cluster.cluster.pools):
            hosts = self.cluster.sources[i].hosts
            for place in sorted(self.by_pool.get(pool.name, ())):
                named.append(hosts[place] if hosts else f"node {place} of {pool.name}")
        return tuple(named)

    @property
    def nodes(self) -> dict[str, tuple[int, int]]:
        """Nodes of each pool before and after."""
        return {
            pool.name: (
                pool.n_nodes,
                pool.n_nodes
                - len(self.by_pool.get(pool.name, ()))
                + self.gained.get(pool.name, 0),
            )
            for pool in self.cluster.cluster.pools
        }

    def left(self) -> ClusterInput:
        """Return the cluster without them and with those that joined.

        A pool of which nothing is left is gone; one that grew has no names of nodes. Raises
        `UsageError` where no node is left, or what is there makes no cluster.
        """
        document = self.cluster.document
        entries, gone = [], set()
        for i, entry in enumerate(document["pools"]):
            lost = self.by_pool.get(entry["name"], frozenset())
            n_left = self.nodes[entry["name"]][1]
            if not n_left:
                gone.add(entry["name"])
                continue
            changed = dict(entry)
            joined = self.gained.get(entry["name"], 0)
            if lost or joined:
                hosts = () if joined else self.cluster.sources[i].hosts
                changed = {k: v for k, v in entry.items() if k not in ("hosts", "free_nodes")}
                changed["nodes"] = n_left
                if hosts:
                    kept = (name for k, name in enumerate(hosts) if k not in lost)
                    changed["hosts"] = compress_hosts(kept)
            entries.append(changed)
        if not entries:
            raise UsageError("no node is left", "there is nothing to plan for", "lost")
        links = [x for x in document.get("links") or () if not gone & set(x["between"])]
        rest = {k: v for k, v in document.items() if k != "links"}
        try:
            more = {"links": links} if links else {}
            return cluster_from_dict({**rest, "pools": entries, **more})
        except SpecError as error:
            raise UsageError(
                f"the nodes that are there do not make this cluster: {error.message}",
                "write the cluster file of the new cluster, and planner solve for it",
            ) from None


def lost_texts(text: str) -> tuple[str, ...]:
    """Return what `--lost` names of several pools: `old=1`, or hosts.

    >>> lost_texts("old=1, new=2")
    ('old=1', 'new=2')
    """
    if "=" in text:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        return tuple(expand_hosts(text.strip())) if text.strip() else ()
    except BadValue as error:
        raise UsageError(option("lost") + f": {error.message}", FORM) from None


def lost_nodes(cluster: ClusterInput, plan: JoinedPlan, lost: int | Sequence[str]) -> LostNodes:
    """Return the nodes that are gone; of a number of a pool the last of those in use.

    Raises `UsageError` for a number without a pool, of a pool that is named twice or that the plan
    does not use, and for nodes that are not there.
    """
    pools = {pool.name: pool for pool in cluster.cluster.pools}
    if isinstance(lost, int) or any(text.strip().isdigit() for text in lost):
        shown = lost if isinstance(lost, int) else " ".join(lost)
        raise UsageError(
            option("lost", str(shown)) + ": the plan uses several pools, and one of them lost it",
            f"say of which: {FORM}; pools: {', '.join(plan.devices)}",
            "lost",
        )
    by_pool: dict[str, set[int]] = {}
    counted: set[str] = set()
    for text in lost:
        name, equals, count = text.partition("=")
        if not equals:
            name, place = _host(cluster, text)
            if name in counted:
                raise _wrong(f"{text}: a number of pool {name} is named too", "name all hosts")
            by_pool.setdefault(name, set()).add(place)
            continue
        if name not in pools:
            raise _wrong(f"{text}: the cluster has no pool {name!r}", f"one of {', '.join(pools)}")
        if name in by_pool:
            raise _wrong(f"{text}: pool {name} is named twice", f"one number, {name}=N, or hosts")
        counted.add(name)
        used = -(-plan.devices.get(name, 0) // pools[name].devices_per_node)
        if not used:
            raise _wrong(
                f"{text}: the plan uses no node of {name}, and runs on as it is",
                f"pools that it uses: {', '.join(plan.devices)}",
            )
        if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= used:
            nodes = "1 node" if used == 1 else f"{used} nodes"
            raise _wrong(f"{text}: the plan runs on {nodes} of {name}", f"{name}=1 to {used}")
        by_pool.setdefault(name, set()).update(range(used - int(count), used))
    return LostNodes({name: frozenset(x) for name, x in by_pool.items()}, cluster)


def gained_nodes(cluster: ClusterInput, gained: int | Mapping[str, int]) -> dict[str, int]:
    """Return how many nodes joined each pool.

    Raises `UsageError` for a number without a pool, and for pools that are not there.
    """
    names = [pool.name for pool in cluster.cluster.pools]
    if isinstance(gained, int):
        if not gained:
            return {}
        raise UsageError(
            option("gained", str(gained)) + ": the plan uses several pools, and one of them grew",
            f"say which: POOL=N, such as {names[0]}=1; pools: {', '.join(names)}",
            "gained",
        )
    for name, n in gained.items():
        if name not in names:
            message = option("gained", f"{name}={n}") + f": the cluster has no pool {name!r}"
            raise UsageError(message, f"one of {', '.join(names)}", "gained")
        if not 1 <= n <= MOST_GAINED:
            message = (
                option("gained", f"{name}={n}") + f": no number of nodes up to {MOST_GAINED:,}"
            )
            raise UsageError(message, f"for example {name}=1", "gained")
    return dict(gained)


def _host(cluster: ClusterInput, host: str) -> tuple[str, int]:
    """Return pool and place of a host."""
    for pool, source in zip(cluster.cluster.pools, cluster.sources, strict=True):
        if host in source.hosts:
            return pool.name, source.hosts.index(host)
    raise _wrong(f"no pool has a host {host!r}", f"a host of the cluster file, or {FORM}"[:300])


def _wrong(what: str, fix: str) -> UsageError:
    return UsageError(option("lost") + f" {what}", fix, "lost")
