"""Which values of the free axes go together: masks over shapes, and the rules that narrow them."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]
Rows = NDArray[np.intp]
Bits = NDArray[np.uint8]


def alike_rows(mask: Bools) -> tuple[Rows, Rows]:
    """Return the first of each kind of row of a mask, and the kind of each row."""
    if not mask.size:
        return np.zeros(min(len(mask), 1), dtype=np.intp), np.zeros(len(mask), dtype=np.intp)
    packed = np.packbits(mask.reshape(len(mask), -1), axis=1)
    keys = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, firsts, kind_idx = np.unique(keys, return_index=True, return_inverse=True)
    return firsts, kind_idx.reshape(-1)


def packed_options(mask: Bools, n_options: int) -> Bits:
    """Return a mask with its last axis, that of the recompute options, as bits, eight a byte.

    `(..., n_options)` or `(..., 1)` to `(..., bytes)`; bits beyond the options are 0.

    >>> packed_options(np.array([[True], [False]]), 9).tolist()
    [[255, 128], [0, 0]]
    """
    if mask.shape[-1] == n_options:
        return np.packbits(mask, axis=-1)
    return np.where(mask, np.packbits(np.ones(n_options, dtype=bool)), 0).astype(np.uint8)


def unpacked_options(bits: Bits, n_options: int) -> Bools:
    """Return the mask that `packed_options` packed."""
    return np.unpackbits(bits, axis=-1, count=n_options).astype(bool)


@dataclass(frozen=True, slots=True)
class Coupled:
    """What goes together of mode, sharding and recompute: few patterns, one for each shape."""

    bits: Bits
    """`(n_patterns, n_modes, n_shardings, bytes)`, the options packed (`packed_options`)."""
    n_options: int
    pattern_idx: Rows
    """Pattern of each shape, `(n_shapes,)`."""
    is_complete: bool = False
    """Whether the masks of the single axes are in the patterns already."""

    @staticmethod
    def of_shapes(legal: Bools) -> "Coupled":
        """Return the patterns of a mask over shapes x mode x sharding x recompute."""
        firsts, pattern_idx = alike_rows(legal)
        n_options = legal.shape[-1]
        return Coupled(packed_options(legal[firsts], n_options), n_options, pattern_idx)

    @property
    def mask(self) -> Bools:
        """Over shapes x mode x sharding x recompute."""
        return unpacked_options(self.bits[self.pattern_idx], self.n_options)

    def both(self, other: "Coupled") -> "Coupled":
        """Return what both leave."""
        pairs = self.pattern_idx * len(other.bits) + other.pattern_idx
        distinct, pair_idx = np.unique(pairs, return_inverse=True)
        own, others = np.divmod(distinct, len(other.bits))
        bits = self.bits[own] & other.bits[others]
        return Coupled(bits, self.n_options, pair_idx.reshape(-1))


@dataclass(frozen=True, slots=True)
class Masks:
    """Which free axes go together: shapes x mbs, and shapes x sp x sharding x recompute.

    The second is the product of a mask of each of its axes and one of all of them.
    """

    batches: Bools
    sp: Bools
    sharding: Bools
    recompute: Bools
    coupled: Coupled | None = None

    @property
    def n_plans(self) -> int:
        """Number of legal plans over all shapes."""
        return int(self.shape_plans.sum())

    @property
    def shape_plans(self) -> NDArray[np.int64]:
        """Legal plans by shape, `(n_shapes,)`."""
        return np.asarray(self.batches.sum(axis=1, dtype=np.int64) * self._of_sp().sum(axis=1))

    @property
    def batch_plans(self) -> NDArray[np.int64]:
        """Legal plans by shape, mbs and sp, `(n_shapes, n_mbs, n_sp)`."""
        return np.asarray(self.batches[:, :, None] * self._of_sp()[:, None, :])

    def _of_sp(self) -> NDArray[np.int64]:
        """Return the legal shardings and recompute options together by shape and sp."""
        if self.coupled is None:
            n = self.sharding.sum(axis=1, dtype=np.int64) * self.recompute.sum(axis=1)
            return np.asarray(self.sp * n[:, None])
        bits, pattern_idx = self._patterns()
        counts = np.bitwise_count(bits).sum(axis=(2, 3), dtype=np.int64)
        return np.asarray(counts[pattern_idx])

    def _patterns(self) -> tuple[Bits, Rows]:
        """Return what goes together, once for all shapes that are alike, and where each is."""
        result = self.compact().coupled
        assert result is not None  # `compact` leaves one
        return result.bits, result.pattern_idx

    def compact(self) -> "Masks":
        """Return the same masks with everything but the batches in the coupled ones.

        For masks that are coupled: the product of the single axes needs no array of all.
        """
        if self.coupled is not None and self.coupled.is_complete:
            return self
        columns = [self.sp, self.sharding, self.recompute]
        if self.coupled is not None:
            places = np.arange(max(1, len(self.coupled.bits).bit_length()))
            columns.append((self.coupled.pattern_idx[:, None] >> places & 1).astype(bool))
        firsts, kind_idx = alike_rows(np.concatenate(columns, axis=1))
        bits, n_options = self.take(firsts)._rest_bits(), self.recompute.shape[1]
        return replace(self, coupled=Coupled(bits, n_options, kind_idx, is_complete=True))

    def count_of(self, shardings: Bools) -> Counts:
        """Return the legal plans with some of each shape's shardings, `(n_shapes,)`."""
        if self.coupled is None:
            return replace(self, sharding=self.sharding & shardings).shape_plans
        bits, pattern_idx = self._patterns()
        by_sharding = np.bitwise_count(bits).sum(axis=(1, 3), dtype=np.int64)[pattern_idx]
        return np.asarray(self.batches.sum(axis=1) * (by_sharding * shardings).sum(axis=1))

    @property
    def rest(self) -> Bools:
        """Over shapes x mode x sharding x recompute."""
        return unpacked_options(self._rest_bits(), self.recompute.shape[1])

    def _rest_bits(self) -> Bits:
        if self.coupled is not None and self.coupled.is_complete:
            return self.coupled.bits[self.coupled.pattern_idx]
        options = np.packbits(self.recompute, axis=1)[:, None, None, :]
        total = np.where(self.sharding[:, None, :, None], options, np.uint8(0))
        if self.coupled is None:
            return np.where(self.sp[:, :, None, None], total, np.uint8(0))
        result = self.coupled.bits[self.coupled.pattern_idx]
        result &= total
        result[~self.sp] = 0
        return result

    @property
    def shardings_used(self) -> Bools:
        """Which shardings some plan has, `(n_shardings,)`."""
        if self.coupled is None:
            some = np.asarray(self.sp.any(axis=1) & self.recompute.any(axis=1))
            return np.asarray((self.sharding & some[:, None]).any(axis=0))
        bits, pattern_idx = self._patterns()
        return np.asarray(bits[np.unique(pattern_idx)].any(axis=(0, 1, 3)))

    def of_stages(self, rows: NDArray[np.intp]) -> tuple[Bools, Bools]:
        """Return which sp and which recompute options go with some of `rows` of the shardings.

        `(n_shapes, n_sp)` and `(n_shapes, n_options)`.
        """
        if self.coupled is not None:
            bits, pattern_idx = self._patterns()
            own = np.bitwise_or.reduce(bits[:, :, rows], axis=2)
            with_sp = np.asarray(own.any(axis=2))
            some = np.bitwise_or.reduce(own, axis=1)
            offered = unpacked_options(some, self.recompute.shape[1])
            return with_sp[pattern_idx], offered[pattern_idx]
        some = np.any(self.sharding[:, rows], axis=1)
        of_sp = np.asarray(some & self.recompute.any(axis=1))
        of_option = np.asarray(some & self.sp.any(axis=1))
        return self.sp & of_sp[:, None], self.recompute & of_option[:, None]

    def of_batches(
        self, shape: NDArray[np.intp], sp: NDArray[np.intp], rows: NDArray[np.intp]
    ) -> Bools:
        """Return what is legal for batches of a shape and sp, over batches x `rows` x options."""
        if self.coupled is not None and self.coupled.is_complete:
            own = self.coupled.bits[self.coupled.pattern_idx[shape], sp][:, rows]
            return unpacked_options(own, self.recompute.shape[1])
        total = self.sharding[shape][:, rows, None] & self.recompute[shape][:, None, :]
        total &= self.sp[shape, sp][:, None, None]
        if self.coupled is not None:
            own = self.coupled.bits[self.coupled.pattern_idx[shape], sp][:, rows]
            total &= unpacked_options(own, self.recompute.shape[1])
        return total

    def take(self, rows: NDArray[np.intp]) -> "Masks":
        """Return the masks of some shapes."""
        coupled = self.coupled
        if coupled is not None:
            coupled = replace(coupled, pattern_idx=coupled.pattern_idx[rows])
        batches, sp = self.batches[rows], self.sp[rows]
        return Masks(batches, sp, self.sharding[rows], self.recompute[rows], coupled)

    def with_shardings(self, rows: NDArray[np.intp]) -> "Masks":
        """Return the masks over some of the shardings."""
        coupled = self.coupled
        if coupled is not None:
            # Masks of few shapes have few of the patterns of all.
            patterns, pattern_idx = np.unique(coupled.pattern_idx, return_inverse=True)
            bits = coupled.bits[patterns][:, :, rows]
            coupled = replace(coupled, bits=bits, pattern_idx=pattern_idx.reshape(-1))
        return replace(self, sharding=self.sharding[:, rows], coupled=coupled)

    def keeping(self, rule: "PlanRule") -> "Masks":
        """Return what a rule leaves."""
        legal = rule.legal
        if isinstance(legal, Coupled):
            both = self.coupled.both(legal) if self.coupled else legal
            return replace(self, coupled=both)
        if rule.of_batches:
            return replace(self, batches=self.batches & legal)
        if self.coupled is not None and self.coupled.is_complete:
            raise ValueError(f"{rule.code}: compact masks take rules of batches alone")
        for axis, name in ((1, "sp"), (2, "sharding"), (3, "recompute")):
            if max(1, *(n for i, n in enumerate(legal.shape[1:], 1) if i != axis)) == 1:
                of_axis = legal.reshape(legal.shape[0], legal.shape[axis])
                return replace(self, **{name: getattr(self, name) & of_axis})
        if len(legal) == 1:
            # Nothing here depends on the shape: one pattern for all.
            n_options = self.recompute.shape[1]
            bits = packed_options(legal, n_options)
            own = (1, self.sp.shape[1], self.sharding.shape[1], bits.shape[-1])
            alike = np.zeros(len(self.sp), dtype=np.intp)
            coupled = Coupled(np.broadcast_to(bits, own).copy(), n_options, alike)
            return self.keeping(replace(rule, legal=coupled))
        full_size = (*self.sp.shape, self.sharding.shape[1], self.recompute.shape[1])
        return self.keeping(
            replace(rule, legal=Coupled.of_shapes(np.broadcast_to(legal, full_size)))
        )


@dataclass(frozen=True, slots=True)
class PlanRule:
    """One rule over the free axes, as a mask that broadcasts to shapes x its axes."""

    code: str
    legal: Bools | Coupled
    of_batches: bool = False
    """Over shapes x mbs; otherwise over shapes x sp x sharding x recompute."""

    @property
    def mask(self) -> Bools:
        """What it allows, as one array."""
        legal = self.legal
        return legal.mask if isinstance(legal, Coupled) else legal
