"""How many tokens of samples a step of a plan holds."""

from costmodels.plans import Layout
from costmodels.shapes import TrainingJob


def padding_multiple(layout: Layout) -> int:
    """Return what samples of a pack are padded to: 2 cp tp with cp > 1, tp with sp, else 1.

    Source: Megatron-LM core/packed_seq_params.py, training/datasets (pad_to multiple of 2 cp tp).
    """
    if layout.cp > 1:
        return 2 * layout.cp * layout.tp
    return layout.tp if layout.sp else 1


def useful_frac(job: TrainingJob, layout: Layout) -> float:
    """Return the share of the slots of a step that are tokens of samples."""
    return job.data.useful_frac(padding_multiple(layout)) if job.data else 1.0
