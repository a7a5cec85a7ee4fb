"""Plans of one job over several pools whose replicas shard everything (ZeRO 3, FSDP).

A replica is a group of devices of one pool that holds the model once between them; replicas sum
their gradients. Their mesh is rectangular, their batches need not be equal.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaDegrees:
    """How one replica is laid out; the same for all of a job."""

    shard: int
    """Data-parallel ranks of a replica; weights are sharded over them and its cp ranks."""
    tp: int = 1
    cp: int = 1

    @property
    def n_devices(self) -> int:
        """Devices of one replica."""
        return self.shard * self.tp * self.cp


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    """Replicas that are alike, on one pool."""

    pool: int
    """Place of the pool among those of the job."""
    n_replicas: int
    mbs: int
    """Sequences of a micro-batch of one data-parallel rank."""
    recompute: str
    """`none`, `selective` (the attention core) or `full` (every layer)."""


@dataclass(frozen=True, slots=True)
class ShardedPlan:
    """One job of sharded replicas on several pools.

    All replicas run `n_micro` micro-batches in a step, since every one of them ends with
    collectives that all take part in; how large a micro-batch is may differ.
    """

    degrees: ReplicaDegrees
    n_micro: int
    kinds: tuple[ReplicaKind, ...]

    @property
    def n_replicas(self) -> int:
        """Replicas of all kinds."""
        return sum(kind.n_replicas for kind in self.kinds)

    @property
    def pools(self) -> tuple[int, ...]:
        """The pools in use, ascending."""
        return tuple(sorted({kind.pool for kind in self.kinds}))

    @property
    def n_sequences(self) -> int:
        """Sequences of a step: the global batch."""
        return sum(self.sequences_of(kind) for kind in self.kinds)

    def sequences_of(self, kind: ReplicaKind) -> int:
        """Return the sequences that all replicas of a kind process in a step."""
        return kind.n_replicas * self.degrees.shard * kind.mbs * self.n_micro

    def n_devices(self, pool: int) -> int:
        """Return the devices of a pool in use."""
        own = sum(kind.n_replicas for kind in self.kinds if kind.pool == pool)
        return own * self.degrees.n_devices
