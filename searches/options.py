"""What a search may look at: pins, limits, frameworks."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodels import axes
from costmodels.modes import ModeTable

AXES = axes.axis_names()
"""Axes that can be pinned (`--pin`), listed (`--only`) or bounded (`--max`)."""
TEXT_AXES = {name: axis.choices for name, axis in axes.AXES.items() if axis.choices}
"""Axes whose values are words; the tables hold the position of the word."""

MAX_VPP = 12
"""Most model chunks per rank that the search considers unless told otherwise."""
TOKENS_PER_CP = 4096
"""Least tokens of a sequence on one rank for which the search tries cp unless told otherwise."""
MAX_MBS, MAX_MBS_TOKENS = 32, 65536
"""Largest micro-batch that the search considers unless told otherwise: so many sequences, or so
many tokens where sequences are shorter than 2,048 (`usual_most_mbs`)."""
MAX_RECOMPUTE_STEPS = 16
"""Most values of `recompute_layers` tried per shape; longer ranges are thinned evenly."""


def usual_most_mbs(seq_len: int) -> int:
    """Return the largest micro-batch to look at where the user names none, sequences.

    Published runs of 512 tokens a sequence are fastest with 96 of them.

    >>> usual_most_mbs(4096), usual_most_mbs(512)
    (32, 128)
    """
    return max(MAX_MBS, MAX_MBS_TOKENS // seq_len)


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Restrictions of one search; the default is what at least one framework can run."""

    only: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Allowed values by axis, words as positions (`TEXT_AXES`)."""
    at_most: Mapping[str, int] = field(default_factory=dict)
    """Largest value by axis."""
    open: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Values that are looked at of axes in `Layout.switches` that nobody named."""
    framework: str = "default"
    """`default`, a framework (`frameworks.registry`), or `any` (also what no emitter writes)."""
    memory_bound: bool = True
    """Drop shapes whose weights and gradients alone exceed the memory; off, to see by how much."""
    bound: bool = True
    """Leave out plans that a lower bound on the step time keeps from being among the best; off,
    to price every legal plan."""
    n_finalists: int = 64
    """Pipelines that the closed form hands to the exact recurrence, each with its best sharding.
    """
    split_shapes: int = 0
    """Shapes of finalists whose layers are split unevenly over the stages, and more while another
    could come first; none where `only` restricts the split (`searches.splits.uneven`)."""
    rival_s: float = 0.0
    """Step time of the closed form, seconds: plans below it are counted (`Outcome.n_faster`)."""

    front: bool = False
    """Keep every plan that no other beats in both time and memory (`Outcome.front`): no plan may
    then be left out for its time."""

    def allows(self, axis: str, value: int) -> bool:
        """Tell whether `value` is allowed on `axis` by the pins and limits."""
        listed = axis not in self.only or value in self.only[axis]
        return listed and value <= self.at_most.get(axis, value)

    def most_mbs(self, seq_len: int) -> int:
        """Return the largest micro-batch to look at: the user's, else `usual_most_mbs`."""
        pinned = self.only.get("mbs", frozenset())
        return self.at_most.get("mbs", max(usual_most_mbs(seq_len), *pinned, 1))

    @property
    def switches(self) -> axes.SwitchTable:
        """Combinations of the axes in `Layout.switches`.

        Of the values that are named, else those that are open; off where neither says any.
        """
        values = {x.name: self.only.get(x.name, self.open.get(x.name)) for x in axes.switch_axes()}
        named = {name: codes for name, codes in values.items() if codes is not None}
        return axes.SwitchTable.of_product(named) if named else axes.NO_SWITCHES

    @property
    def modes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Value of `sp`, and row of `switches`, of each way in which a layer may run."""
        rows, sp = np.indices((len(self.switches), self.n_sp), dtype=np.int32)
        return sp.ravel(), rows.ravel()

    @property
    def mode_table(self) -> ModeTable:
        """The same as a table."""
        return ModeTable(self.n_sp, self.switches)

    @property
    def n_sp(self) -> int:
        """Values of the `sp` column: 3 where `tp_overlap` may be on, which it is only if named."""
        return 3 if 1 in self.only.get("tp_overlap", ()) else 2
