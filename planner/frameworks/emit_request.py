"""What files are written for: one plan of one job on one pool."""

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from hardware.parts import Pool
from planner.specs.schema import NO_DETAILS, DetailsSpec
from searches.frameworks.registry import framework_rules

EmittedFiles = dict[str, str]
"""File name to text; the launch scripts (`*.sh`) are meant to be executable."""


class RefusedPlanError(Exception):
    """What a framework, or a release of it, has no words for: raised by an emitter."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


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
    release: str = ""
    """Release of the framework that the files are for; empty: the newest that is known."""
    engine: str = ""
    """Framework under a tool that fine-tunes, by its key; empty: the first that runs the plan."""

    def release_of(self, framework: str) -> str:
        """Return the release that files of a framework are written for."""
        return self.release or framework_rules(framework).release
