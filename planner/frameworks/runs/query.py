"""What besides its files decides how a run is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    script_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that a launch script gives to the training script."""

    whole_layers: int = 0
    """Layers of the plan that a file of the planner repeats in a comment; 0 in other files."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the training script: those of its launch script, the pins over them."""
        names = {"pp": "pipeline_stages", "mbs": BATCH}
        pins = {names.get(axis, axis): value for axis, value in self.pins.items()}
        return {**self.script_arguments, **pins}

    def launched(self, arguments: Mapping[str, Any], n_devices: int | None) -> "RunQuery":
        """Return the query with what a launch script says: arguments, and how many it starts."""
        return replace(
            self,
            script_arguments=arguments,
            pins={},  # the arguments hold them
            n_devices=n_devices or self.n_devices,
            all_devices=bool(n_devices) or self.all_devices,
        )

    def with_sets(self, *sets: tuple[str, object]) -> "RunQuery":
        """Return the query with settings that its own win over."""
        return replace(self, sets=(*sets, *self.sets))

    def imported(self, source: str) -> Imported | None:
        """Return the model file in place of the model that the run's own flags describe."""
        if self.model is None:
            return None
        kind = f"model file {self.model.path}"
        return Imported("model", self.model.document, (), source, kind)


def with_layers(query: RunQuery, facts: Mapping[str, Any]) -> RunQuery:
    """Return the query with the layers of the plan that a file of the planner repeats."""
    layers = facts.get("layers")
    return replace(query, whole_layers=layers) if isinstance(layers, int) else query
