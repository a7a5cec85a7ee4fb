"""How long samples are, and how they fill packs of one length."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

MASKED, UNMASKED, ALONE = "masked", "unmasked", "none"
PACKINGS = (MASKED, UNMASKED, ALONE)
"""Attention of a pack inside each sample, over the whole pack, or one sample a sequence."""
N_SAMPLES = 512
"""Samples that stand for a distribution."""


@dataclass(frozen=True, slots=True)
class SampleData:
    """What a job's sequences hold: moments of the samples' lengths, and how full sequences are."""

    packing: str
    """One of `PACKINGS`."""
    mean_tokens: float
    """E[s] of a sample."""
    mean_square: float
    """E[s^2], tokens squared."""
    fill_frac: float
    """Tokens of samples over all slots of a sequence."""

    @property
    def run_keys(self) -> float:
        """Mean keys of a query that attention multiplies; 0: all before it in the sequence.

        k = sum s_i^2 / (2 sum s_i) = E[s^2] / (2 E[s]) where samples see themselves alone: a pack
        costs the sum of s_i^2 in place of the square of their sum. Half a key is left out, as of
        full attention. Source: a count; Krell et al. 2021 (packing), Megatron-LM
        core/packed_seq_params.py (cu_seqlens).

        >>> SampleData("masked", 512.0, 512.0**2, 1.0).run_keys
        256.0
        """
        return self.mean_square / (2.0 * self.mean_tokens) if self.packing == MASKED else 0.0

    def useful_frac(self, multiple: int = 1) -> float:
        """Return the share of the slots that are tokens of samples, padded to a multiple.

        fill E[s] / (E[s] + (k - 1) / 2) in packs with masks: each sample is padded to the next
        multiple of k = 2 cp tp (Megatron-LM cuts each in 2 cp chunks, tp cuts them again). One
        sample a sequence is padded to the sequence anyhow.
        Source: Megatron-Bridge data/datasets/packed_sequence.py (pad_seq_to_mult).

        >>> SampleData("masked", 512.0, 512.0**2, 1.0).useful_frac(65)
        0.9411764705882353
        """
        if self.packing != MASKED:
            return self.fill_frac
        return self.fill_frac * self.mean_tokens / (self.mean_tokens + (multiple - 1) / 2.0)


def lognormal_lengths(mean: float, p95: float, longest: float) -> tuple[float, ...]:
    """Return lengths that stand for a log-normal distribution, cut at the longest, tokens.

    mean = exp(mu + sigma^2 / 2), p95 = exp(mu + z sigma) with z = 1.645, so that
    sigma = z - sqrt(z^2 - 2 ln(p95 / mean)). `ValueError` where p95 is below the mean or more than
    exp(z^2 / 2) = 3.87 times it, which no log-normal distribution has.

    >>> lognormal_lengths(100.0, 100.0, 100.0) == (100.0,) * N_SAMPLES
    True
    """
    z = NormalDist().inv_cdf(0.95)
    inside = z * z - 2.0 * math.log(p95 / mean)
    if p95 < mean or inside < 0.0:
        raise ValueError(f"a p95 from {mean:g} to {mean * math.exp(z * z / 2.0):.0f}")
    sigma = z - math.sqrt(inside)
    mu = math.log(mean) - sigma * sigma / 2.0
    quantiles = ((i + 0.5) / N_SAMPLES for i in range(N_SAMPLES))
    unit = NormalDist()
    return tuple(min(longest, math.exp(mu + sigma * unit.inv_cdf(q))) for q in quantiles)


def histogram_lengths(counts: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Return lengths at the quantiles of a histogram of (length, how many), tokens.

    >>> histogram_lengths([(100, 1), (300, 1)])[:: N_SAMPLES // 2]
    (100.0, 300.0)
    """
    ordered = sorted(counts)
    total, values, passed, i = sum(n for _, n in ordered), [], 0, 0
    for k in range(N_SAMPLES):
        while passed + ordered[i][1] <= (k + 0.5) / N_SAMPLES * total:
            passed += ordered[i][1]
            i += 1
        values.append(float(ordered[i][0]))
    return tuple(values)


def fill_frac(lengths: Sequence[float], pack_tokens: int, packing: str) -> float:
    """Return how full sequences of `pack_tokens` are with samples of these lengths.

    Packs: first fit, the longest first; longer samples are cut at the end of a pack. One sample a
    sequence: the mean over the length. Source: NeMo collections/llm data packing
    (first_fit_decreasing), TRL data_utils.py (pack_dataset, bfd).

    >>> fill_frac([600.0, 500.0, 400.0, 300.0], 1000, "masked")  # 600 + 400, 500 + 300
    0.9
    """
    cut = [min(x, float(pack_tokens)) for x in lengths]
    if packing == ALONE:
        return sum(cut) / (len(cut) * pack_tokens)
    free: list[float] = []
    for length in sorted(cut, reverse=True):
        place = next((i for i, room in enumerate(free) if room >= length), None)
        if place is None:
            free.append(pack_tokens - length)
        else:
            free[place] -= length
    return sum(cut) / (len(free) * pack_tokens)


def sample_data(lengths: Sequence[float], pack_tokens: int, packing: str) -> SampleData:
    """Return what sequences of `pack_tokens` hold of samples of these lengths."""
    cut = [min(x, float(pack_tokens)) for x in lengths]
    mean, square = sum(cut) / len(cut), sum(x * x for x in cut) / len(cut)
    return SampleData(packing, mean, square, fill_frac(lengths, pack_tokens, packing))


def best_pack_tokens(lengths: Sequence[float], longest: int) -> int:
    """Return the pack length, a power of two times 1024 up to `longest`, that is filled most.

    Of several within 1 % the shortest: it keeps least.

    >>> best_pack_tokens([1000.0] * 8, 8192), best_pack_tokens([1500.0] * 5, 8192)
    (1024, 8192)
    """
    sizes = [1024 << i for i in range(14) if 1024 << i <= max(1024, longest)]
    # Packs shorter than a sample cut it.
    whole = [n for n in sizes if n >= max(lengths)] or sizes[-1:]
    fills = {n: fill_frac(lengths, n, MASKED) for n in whole}
    return next(n for n in whole if fills[n] >= max(fills.values()) - 0.01)
