"""Everything that a plan is priced against."""

from dataclasses import dataclass

from costmodels.shapes import ModelShape, TrainingJob
from costmodels.stacks import StackProfile
from hardware.parts import Fabric, Pool


@dataclass(frozen=True, slots=True)
class Problem:
    """One model and job on one pool of a fabric, run by one software stack."""

    shape: ModelShape
    job: TrainingJob
    pool: Pool
    fabric: Fabric
    stack: StackProfile
