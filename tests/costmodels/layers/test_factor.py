"""Distinct combinations of integer columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.layers.factor import distinct

tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(st.integers(0, 40), min_size=width, max_size=width), min_size=1, max_size=60
    )
)


@given(rows=tables)
def test_gathering_gives_every_row_back_once_sorted(rows):
    columns = [np.array(column, dtype=np.int32) for column in zip(*rows, strict=True)]
    found = distinct(columns)
    for column, values in zip(columns, found.columns, strict=True):
        assert (values[found.index] == column).all()
        assert values.dtype == np.int32
    unique = list(zip(*(values.tolist() for values in found.columns), strict=True))
    assert unique == sorted({tuple(row) for row in rows})


def test_agrees_with_numpy():
    columns = np.random.default_rng(0).integers(0, 1000, (3, 5000)).astype(np.int32)
    columns[0] %= 7
    values, index = np.unique(columns, axis=1, return_inverse=True)
    found = distinct(list(columns))
    assert (np.stack(found.columns) == values).all()
    assert (found.index == index.ravel()).all()


@pytest.mark.parametrize("largest", [1, 16_384])
def test_large_values_are_recoded(largest):
    found = distinct([np.array([largest, 0, largest], dtype=np.int32)] * 3)
    assert [column.tolist() for column in found.columns] == [[0, largest]] * 3
    assert found.index.tolist() == [1, 0, 1]
