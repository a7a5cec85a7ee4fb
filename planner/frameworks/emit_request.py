"""What files are written for: one plan of one job on one pool."""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Pool
from planner.specs.schema import NO_DETAILS, DetailsSpec

EmittedFiles = dict[str, str]
"""File name to text; the launch scripts (`*.sh`) are meant to be executable."""


@dataclass(frozen=True, slots=True)
class EmitRequest:
    """One plan, with the model, the job and the devices that its files are for."""

    layout: Layout
    shape: ModelShape
    job: TrainingJob
    pool: Pool
    header: Sequence[str] = ()
    """Comment lines that go into every script."""
    details: DetailsSpec = NO_DETAILS
    """Details of the model, on which no figure depends; written as far as a framework has them."""
