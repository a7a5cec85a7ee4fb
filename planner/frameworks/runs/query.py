"""What besides its files decides how a run is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.frameworks.runs.trainer_arguments import BATCH
from planner.specs.importers.imported import Imported
from planner.specs.inputs import ModelInput


@dataclass(frozen=True, slots=True)
class RunQuery:
    """What besides the file decides how it is read."""

    model: ModelInput | None = None
    sets: tuple[tuple[str, object], ...] = ()
    """`--set` for settings of the framework."""
    env: Mapping[str, str] | None = None
    """Variables that the shell would have."""
    n_devices: int | None = None
    """What the cluster offers, for files that do not say how many processes they start."""
    pins: Mapping[str, object] = field(default_factory=dict)
    """Layout axes that a file cannot say: pp and recompute of DeepSpeed, mbs of Accelerate."""
    beside: Mapping[str, str] | None = None
    """Texts of the files that the run names, by name; None: those that lie beside it are read."""
    all_devices: bool = False
    """It is known to start on all `n_devices`; else a DeepSpeed file whose batch sizes are for
    fewer starts on those."""
    version: str = ""
    """Release that the user says it is for: then no flag is taken for one of a fork."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The pins as arguments of a training script."""
        names = {"pp": "pipeline_stages", "mbs": BATCH}
        return {names.get(axis, axis): value for axis, value in self.pins.items()}

    def imported(self, source: str) -> Imported | None:
        """Return the model file in place of the model that the run's own flags describe."""
        if self.model is None:
            return None
        kind = f"model file {self.model.path}"
        return Imported("model", self.model.document, (), source, kind)
