"""One plan with the numbers that rank it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import CP_COMMS, SCHEDULES, modules_code, switch_axes
from costmodels.plans import Layout, PlanTable

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan with the numbers of the vectorised model."""

    layout: Layout
    closed_form_s: float
    peak_bytes: float
    step_s: float = 0.0
    """With the exact pipeline recurrence; set for finalists."""
    least_s: float = 0.0
    """A lower bound of `step_s`."""


@dataclass(frozen=True, slots=True)
class Rivals:
    """Plans of a block that may turn out to be the first, in its order: `Candidate` in columns.

    Few of them are looked at once the first is known, so their layouts are made then.
    """

    table: PlanTable
    n_layers: int
    rows: NDArray[np.intp]
    """Rows of the table; so are the next three, `(n,)`."""
    closed_form_s: Floats
    peak_bytes: Floats
    least_s: Floats

    def below(self, limit_s: float) -> "Rivals":
        """Return those whose lower bound is below a limit."""
        kept = np.flatnonzero(self.least_s < limit_s)
        if len(kept) == len(self.rows):
            return self
        columns = ("rows", "closed_form_s", "peak_bytes", "least_s")
        return replace(self, **{name: getattr(self, name)[kept] for name in columns})

    def candidates(self) -> list[Candidate]:
        """Return them as they are ranked."""
        columns = (self.rows, self.closed_form_s, self.peak_bytes, self.least_s)
        return [
            Candidate(self.table.layout(row, self.n_layers), closed_s, peak, least_s=least_s)
            for row, closed_s, peak, least_s in zip(*(x.tolist() for x in columns), strict=True)
        ]


def layout_key(layout: Layout) -> tuple[object, ...]:
    """Return the last tie-break between plans of equal time and memory: the degrees in order."""
    return (
        layout.tp,
        layout.pp,
        layout.vpp,
        layout.zero,
        layout.recompute_layers,
        layout.mbs,
        layout.sp,
        layout.split,
        layout.recompute,
        layout.cp,
        CP_COMMS.index(layout.cp_comm),
        layout.ep,
        layout.etp,
        -layout.dp_shard,
        SCHEDULES.index(layout.schedule),
        modules_code(layout.recompute_modules),
        layout.pipelines_inside,
        layout.optimizer_offload,
        not layout.dp_overlap,
        layout.activation_offload_layers,
        layout.tp_overlap,
        layout.hpz,
        *(layout.code(axis.name) for axis in switch_axes()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class ByDegrees:
    """A layout in sort keys: compared by `layout_key`, which is built for ties alone."""

    layout: Layout

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByDegrees) and layout_key(self.layout) == layout_key(other.layout)

    def __lt__(self, other: "ByDegrees") -> bool:
        return layout_key(self.layout) < layout_key(other.layout)

    def __hash__(self) -> int:
        return hash(layout_key(self.layout))


def closed_form_order(candidate: Candidate) -> tuple[object, ...]:
    """Return the sort key by closed-form time, then memory, then degrees."""
    return (candidate.closed_form_s, candidate.peak_bytes, ByDegrees(candidate.layout))
