"""What the sequences of a job hold: from the lengths that a file states, and back."""

from collections.abc import Sequence

from costmodels.data.lengths import (
    MASKED,
    SampleData,
    best_pack_tokens,
    histogram_lengths,
    lognormal_lengths,
    sample_data,
)
from costmodels.shapes import DENSE, MOE, ModelShape
from planner.specs.schema import DataSpec, SpecFault, TrainingSpec

PATH = ("training", "data")


def sample_lengths(data: DataSpec, seq_len: int) -> tuple[float, ...]:
    """Return lengths that stand for those of a file, tokens; `ValueError` for odd ones."""
    lengths = data.lengths
    if lengths.histogram:
        return histogram_lengths(lengths.histogram)
    assert lengths.mean  # `data_faults` has seen to both
    assert lengths.p95
    return lognormal_lengths(lengths.mean, lengths.p95, lengths.max or float(seq_len))


def data_of(job: TrainingSpec) -> SampleData | None:
    """Return what the sequences of a job hold; None where a file does not say."""
    if job.data is None:
        return None
    return sample_data(sample_lengths(job.data, job.seq_len), job.seq_len, job.data.packing)


def data_faults(job: TrainingSpec, shape: ModelShape) -> list[SpecFault]:
    """Return what is wrong with the data of a job."""
    if job.data is None:
        return []
    lengths, path = job.data.lengths, (*PATH, "lengths")
    faults = []
    if lengths.histogram is None and not (lengths.mean and lengths.p95):
        message = "names neither a histogram nor a mean and a p95 above 0"
        faults.append(SpecFault(path, message, "such as {mean: 800, p95: 2400}"))
    elif lengths.histogram and (lengths.mean or lengths.p95 or lengths.max):
        message = "has a histogram beside other figures"
        faults.append(SpecFault(path, message, "leave one of them out"))
    else:
        try:
            sample_lengths(job.data, job.seq_len)
        except ValueError as error:
            message = f"no log-normal distribution has a p95 of {lengths.p95:g} beside this mean"
            faults.append(SpecFault((*path, "p95"), message, f"{error}, or a histogram"))
    masked = job.data.packing == MASKED
    others = (shape.vision, shape.encoder, shape.diffusion, shape.variants)
    if masked and (set(shape.kinds) - {DENSE, MOE} or any(others)):
        message = "packs with masks are priced of causal attention in all layers alone"
        faults.append(SpecFault((*PATH, "packing"), message, "packing unmasked"))
    elif masked and not shape.flash_attention:
        message = "packs with masks need a flash kernel"
        faults.append(SpecFault((*PATH, "packing"), message, "model.flash_attention true"))
    return faults


def data_notes(job: TrainingSpec) -> tuple[str, ...]:
    """Return a line on how full the sequences of a job are, and which length is filled most."""
    data = data_of(job)
    if data is None or job.data is None:
        return ()
    text = f"samples of {data.mean_tokens:.0f} tokens fill {data.fill_frac:.1%} of a sequence"
    if data.packing == MASKED:
        text += f"; a query sees {data.run_keys:.0f} keys in the mean"
    best = best_pack_tokens(_whole_lengths(job.data, job.seq_len), job.seq_len)
    return (f"{text}; packs of {best} tokens are filled as well as any up to {job.seq_len}",)


def _whole_lengths(data: DataSpec, seq_len: int) -> Sequence[float]:
    return [min(x, float(seq_len)) for x in sample_lengths(data, seq_len)]
