"""What a sweep file, or `--vary` on the command line, becomes: a `Sweep`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.inputs import ClusterInput, ModelInput
from planner.options import SolveOptions
from planner.sweeping.points import Point


@dataclass(frozen=True, eq=False)
class Sweep:
    """A design over fields of a model, a job and a cluster. Can be pickled."""

    sweep_id: str
    """12 hex digits of everything that the rows depend on."""
    name: str
    axes: tuple[Any, ...]
    """`planner.sweeping.axes.Axis`: `.name`, `.paths`, `.labels`."""
    options: SolveOptions
    """Of every point that varies no option; see `options_of`."""
    n_points: int
    """Before constraints."""
    seed: int
    design: str

    def points(self) -> Iterator[Point]:
        """Yield the points that keep the constraints, in order, the same every time."""
        raise NotImplementedError

    def inputs(self, point: Point) -> tuple[ModelInput, ClusterInput]:
        """Return the inputs of a point; `PlannerError` where its values make none."""
        raise NotImplementedError

    def options_of(self, point: Point) -> SolveOptions:
        """Return the options of a point, with those that the sweep varies."""
        raise NotImplementedError

    def columns(self, point: Point) -> tuple[tuple[str, float | str | bool | None], ...]:
        """Return what a row says of its inputs: varied fields in base units, derived values."""
        raise NotImplementedError

    def header(self) -> dict[str, Any]:
        """Return what the sweep is, for the head of its file: JSON without clock values."""
        raise NotImplementedError
