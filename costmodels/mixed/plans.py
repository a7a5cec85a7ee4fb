"""Plans of one job over several pools."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MixedStage:
    """One pipeline stage of one kind of pipeline: where it lies, and what it holds."""

    pool: int
    """Place of its pool among those of the job."""
    tp: int
    cp: int
    layers: int
    recompute: str
    """`none`, `selective` (the attention core) or `full` (every layer of the stage)."""
    ep: int = 1

    @property
    def n_devices(self) -> int:
        """Devices of the stage in one pipeline."""
        return self.tp * self.cp


@dataclass(frozen=True, slots=True)
class PipelineKind:
    """Pipelines that are alike: replicas of the whole model, each on devices of its own."""

    stages: tuple[MixedStage, ...]
    """In model order."""
    n_pipelines: int
    mbs: int
    n_micro: int
    """Micro-batches of the pipeline that has most; with `n_sequences` not a multiple of what all
    run, some of its pipelines run one less."""
    n_sequences: int
    """Sequences that all pipelines of the kind process in a step."""

    @property
    def pp(self) -> int:
        """Stages of each pipeline."""
        return len(self.stages)

    @property
    def pools(self) -> tuple[int, ...]:
        """The pools that its stages lie in, in model order, each named once a run."""
        runs: list[int] = []
        for stage in self.stages:
            if not runs or runs[-1] != stage.pool:
                runs.append(stage.pool)
        return tuple(runs)

    def n_devices(self, pool: int) -> int:
        """Devices of a pool in use by all pipelines of the kind."""
        return self.n_pipelines * sum(x.n_devices for x in self.stages if x.pool == pool)


@dataclass(frozen=True, slots=True)
class MixedPlan:
    """One job on several pools: kinds of pipelines that share the global batch.

    Every pipeline holds the whole model. Gradients are summed inside each group of stages that lie
    in one pool, then between those groups, then spread again (see `mixed.prices`).
    """

    kinds: tuple[PipelineKind, ...]
    zero: int
    """0: optimizer states whole on every replica; 1: shared by the pipelines of a kind."""

    @property
    def n_sequences(self) -> int:
        """Sequences of a step: the global batch."""
        return sum(kind.n_sequences for kind in self.kinds)

    @property
    def pools(self) -> tuple[int, ...]:
        """The pools in use, ascending."""
        return tuple(sorted({stage.pool for stage in self.stages}))

    @property
    def stages(self) -> Iterator[MixedStage]:
        """The stages of all kinds."""
        return (stage for kind in self.kinds for stage in kind.stages)

    def n_devices(self, pool: int) -> int:
        """Devices of a pool in use."""
        return sum(kind.n_devices(pool) for kind in self.kinds)

    @property
    def is_uniform(self) -> bool:
        """Whether all stages run alike, and all pipelines have one split and one share.

        Such a plan is one rectangular grid of ranks, as Megatron-LM lays them out: one tp, cp, ep
        and recomputation, and as many micro-batches in each pipeline. Pipelines on the same pools
        are of one kind there.
        """
        degrees = {(stage.tp, stage.cp, stage.ep, stage.recompute) for stage in self.stages}
        shares = {(kind.mbs, kind.n_sequences / kind.n_pipelines) for kind in self.kinds}
        splits = {tuple(stage.layers for stage in kind.stages) for kind in self.kinds}
        pools = {tuple(stage.pool for stage in kind.stages) for kind in self.kinds}
        is_whole = all(x.n_sequences == x.n_pipelines * x.mbs * x.n_micro for x in self.kinds)
        is_one = len(degrees) == len(shares) == len(splits) == 1
        return is_one and is_whole and len(pools) == len(self.kinds)
