"""Layer terms of a whole grid of splits, computed once and taken from for many sets of shapes.

Computing them costs some thousand small numpy calls whatever the number of rows, and the shards of
a search, and searches of many numbers of devices, ask for the same few splits over and over. Every
term is elementwise, so what is taken is bit for bit what `layer_table` computes.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.layers.factor import distinct
from costmodels.layers.layer_kind import SplitDegrees
from costmodels.layers.layer_terms import (
    LayerTable,
    LayerTerms,
    layer_terms,
    sets_of,
)
from costmodels.layers.recompute import SetTerms
from costmodels.modes import ModeTable
from costmodels.plans import PlanTable, ShapeTable
from costmodels.problem import Problem

Ints = NDArray[np.int32]
Rows = NDArray[np.intp]

FEW_ROWS = 4096
"""Up to so many rows a table of some splits refers to the grid instead of copying from it."""
COLUMNS = ("tp", "cp", "ep", "etp", "cp_comm")
"""What a layer's terms depend on besides the micro-batch and the mode."""
COLUMN_BITS = (15, 15, 15, 15, 3)
"""Bits of each in the key of a split: 63 together."""


def _keys(columns: tuple[Ints, ...]) -> NDArray[np.int64]:
    """Return one number for each split."""
    out = np.zeros(len(columns[0]), dtype=np.int64)
    for column, bits in zip(columns, COLUMN_BITS, strict=True):
        if column.max(initial=0) >= 1 << bits:
            raise ValueError(f"a degree of {column.max()} has no place in {bits} bits")
        out = (out << bits) | column
    return out


@dataclass(frozen=True, slots=True)
class LayerGrid:
    """Layer terms over splits x micro-batches x modes."""

    problem: Problem
    keys: NDArray[np.int64]
    """Of the splits, ascending."""
    sizes: Ints
    """Micro-batches, ascending."""
    modes: ModeTable
    terms: LayerTerms
    """`(n_splits * n_sizes * n_modes,)` each."""
    known_sets: dict[bytes, SetTerms] = field(default_factory=dict, compare=False, repr=False)
    """Terms of sets of modules that were asked for."""

    def holds(self, table: PlanTable) -> bool:
        """Tell whether the terms of all plans of a table are in the grid."""
        is_covered = self.covers(table.shapes) and np.isin(table.mbs, self.sizes).all()
        return bool(is_covered and self.modes.holds(table.modes))

    def covers(self, shapes: ShapeTable) -> bool:
        """Tell whether the splits of all shapes are in the grid."""
        keys = _keys(tuple(getattr(shapes, name) for name in COLUMNS))
        return bool(np.isin(keys, self.keys).all())

    def one(self, table: PlanTable) -> LayerTerms:
        """Return the terms of the only plan of a table, `(1,)` each."""
        keys = _keys(tuple(getattr(table.shapes, name) for name in COLUMNS))
        first = np.searchsorted(self.keys, keys) * len(self.sizes)
        n_modes = len(self.modes)
        rows = (first + np.searchsorted(self.sizes, table.mbs)) * n_modes
        rows = rows + self.modes.index(table.modes)
        result: LayerTerms = _taken(self.terms, rows, len(self.keys) * len(self.sizes) * n_modes)
        return result

    def table(self, shapes: ShapeTable, modules: Ints) -> LayerTable:
        """Return what `layer_table` does for shapes whose splits are all in the grid.

        Raises a `KeyError` for others.
        """
        result = distinct(tuple(getattr(shapes, name) for name in COLUMNS))
        keys = _keys(result.columns)
        positions = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        if (self.keys[positions] != keys).any():
            raise KeyError("a split is not in the grid")
        each = len(self.sizes) * len(self.modes)
        codes = np.zeros(int(self.sizes[-1]) + 1, dtype=np.intp)
        codes[self.sizes] = np.arange(len(self.sizes))
        if len(self.keys) * each <= FEW_ROWS:
            # Taking rows of some hundred arrays takes longer than it saves.
            sets = self._sets(modules)
            split_code = positions[result.index]
            return LayerTable(self.terms, split_code, codes, len(self.sizes), self.modes, sets)
        rows = (positions[:, None] * each + np.arange(each)).reshape(-1)
        terms = _taken(self.terms, rows, len(self.keys) * each)
        sets = sets_of(self.problem, terms, modules)
        return LayerTable(terms, result.index, codes, len(self.sizes), self.modes, sets)

    def _sets(self, modules: Ints) -> SetTerms:
        """Return the terms of sets of modules, computed once for each."""
        key = np.unique(modules).tobytes()
        if key not in self.known_sets:
            self.known_sets[key] = sets_of(self.problem, self.terms, modules)
        return self.known_sets[key]


def known_layers(grid: LayerGrid | None, table: PlanTable) -> LayerTable | None:
    """Return the layer terms of a table from a grid; None where that does not hold them."""
    if grid is None or not grid.holds(table):
        return None
    return grid.table(table.shapes, table.recompute_modules)


def layer_grid(problem: Problem, shapes: ShapeTable, mbs: Ints, modes: ModeTable) -> LayerGrid:
    """Return the terms of every split of `shapes`, with every micro-batch and the mode."""
    columns = distinct(tuple(getattr(shapes, name) for name in COLUMNS)).columns
    keys = _keys(columns)
    order = np.argsort(keys)
    sizes = np.unique(mbs).astype(np.int32)
    grid = np.meshgrid(order, sizes, np.arange(len(modes)), indexing="ij")
    of_split, of_mbs, of_mode = (axis.reshape(-1).astype(np.int32) for axis in grid)
    split = SplitDegrees(*(column[of_split] for column in columns))
    terms = layer_terms(problem, split, of_mbs, modes.rows(of_mode))
    return LayerGrid(problem, keys[order], sizes, modes, terms)


def _taken(terms: Any, rows: Rows, n: int) -> Any:
    """Return some rows of terms: of every array whose last axis has one entry for each of n."""
    if isinstance(terms, np.ndarray):
        return terms.take(rows, axis=-1) if terms.ndim and terms.shape[-1] == n else terms
    if is_dataclass(terms) and not isinstance(terms, type):
        parts = (_taken(getattr(terms, field.name), rows, n) for field in fields(terms))
        return type(terms)(*parts)
    if isinstance(terms, tuple):
        return tuple(_taken(one, rows, n) for one in terms)
    return terms
