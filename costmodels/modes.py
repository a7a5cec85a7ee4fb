"""Ways in which a layer runs besides how it is split: `sp`, and the axes without a field.

What a layer takes depends on both, so layer terms are computed for every mode that a search
offers.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodels.axes import AXES, NO_SWITCHES, SwitchTable

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ModeRows:
    """A mode for each of some rows; arrays of one length."""

    sp: Ints
    """0 off, 1 on, 2 with `tp_overlap`."""
    switch: Ints
    """Row of `switches`."""
    switches: SwitchTable = NO_SWITCHES

    def at(self, row: int) -> "ModeRows":
        """Return the mode of one row, in arrays of one entry."""
        return ModeRows(self.sp[row : row + 1], self.switch[row : row + 1], self.switches)

    @staticmethod
    def of_sp(sp: Ints) -> "ModeRows":
        """Return modes with all switches off."""
        return ModeRows(sp, np.zeros_like(sp))

    def uses(self, name: str) -> bool:
        """Tell whether some mode that is offered has an axis on."""
        axis = AXES[name]
        return bool(np.any(self.switches.column(name) != axis.code(axis.off)))

    def codes(self, name: str) -> Ints:
        """Return the table value of an axis in every row."""
        return np.asarray(self.switches.column(name)[self.switch])

    def have(self, name: str, *words: str) -> Bools:
        """Return where an axis has one of some values.

        >>> table = SwitchTable.of_product({"dispatcher": (0, 2)})
        >>> rows = ModeRows(np.array([0, 0]), np.array([1, 0]), table)
        >>> rows.have("dispatcher", "deepep", "hybridep").tolist()
        [True, False]
        """
        return np.isin(self.codes(name), [AXES[name].choices.index(word) for word in words])


@dataclass(frozen=True, slots=True)
class ModeTable:
    """Every value of `sp` with every row of switches, `sp` the quickest."""

    n_sp: int = 2
    """Values of the `sp` column: 3 with `tp_overlap`."""
    switches: SwitchTable = NO_SWITCHES
    known: dict[int, tuple[SwitchTable, Ints]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """Rows of other tables of switches in this one, by identity."""

    def __len__(self) -> int:
        return self.n_sp * len(self.switches)

    def rows(self, modes: Ints) -> ModeRows:
        """Return the modes at some positions."""
        switch, sp = np.divmod(modes, self.n_sp)
        return ModeRows(sp.astype(np.int32), switch.astype(np.int32), self.switches)

    def holds(self, modes: ModeRows) -> bool:
        """Tell whether all of some modes are here."""
        if modes.sp.max(initial=0) >= self.n_sp:
            return False
        return bool((self._places(modes.switches)[modes.switch] >= 0).all())

    def index(self, modes: ModeRows) -> NDArray[np.intp]:
        """Return the positions of some modes, which are all here."""
        if modes.switches is self.switches:
            place = modes.switch.astype(np.intp)
        else:
            place = self._places(modes.switches)[modes.switch].astype(np.intp)
        return np.asarray(place * self.n_sp + modes.sp)

    def _places(self, switches: SwitchTable) -> Ints:
        """Return the row here of each row of another table; -1 where it is missing."""
        cached = self.known.get(id(switches))
        if cached is not None and cached[0] is switches:
            return cached[1]
        own = {self.switches.row(i): i for i in range(len(self.switches))}
        places = np.array([own.get(switches.row(i), -1) for i in range(len(switches))], np.int32)
        if len(self.known) < MOST_KNOWN:
            self.known[id(switches)] = switches, places
        return places

    @staticmethod
    def of_rows(modes: ModeRows) -> "ModeTable":
        """Return the least table that holds some modes."""
        return ModeTable(1 + max(1, int(modes.sp.max(initial=0))), modes.switches)


MOST_KNOWN = 8
"""Other tables of switches whose rows a `ModeTable` remembers."""


def without_graphs(table: ModeTable) -> Ints:
    """Return the position of the same mode without CUDA graphs; -1 where that is not offered."""
    axis = AXES["cuda_graph"]
    position: dict[tuple[object, ...], int] = {}
    keys = []
    for i in range(len(table)):
        switch, sp = divmod(i, table.n_sp)
        entries = table.switches.row(switch)
        others = tuple(entry for entry in entries if entry[0] != axis.name)
        keys.append((others, sp))
        if len(others) == len(entries):
            position[others, sp] = i
    return np.array([position.get(key, -1) for key in keys], dtype=np.int32)
