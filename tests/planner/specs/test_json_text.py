"""`json_text.indented` is `json.dumps(..., indent=1)`, byte for byte."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.specs.json_text import indented
from tests.repeats import examples

KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner, inner),
        st.dictionaries(st.text(), inner, max_size=5),
        st.dictionaries(KEYS, inner, max_size=4),
    ),
    max_leaves=20,
)


@settings(max_examples=examples(60))
@given(VALUES)
def test_it_writes_what_the_standard_library_writes(value) -> None:
    try:
        expected = json.dumps(value, indent=1, allow_nan=False)
    except ValueError:  # an infinite key
        with pytest.raises(ValueError, match="compliant"):
            indented(value)
        return
    assert indented(value) == expected


@pytest.mark.parametrize(
    "value",
    [{}, [], [[]], {"a": {}}, {"a": 1, "b": [], "c": 2, "d": {"e": [1, {"f": ()}]}}, [1, [2], 3]],
)
def test_containers_without_anything_in_them(value) -> None:
    assert indented(value) == json.dumps(value, indent=1)


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": {"b": -math.inf}}])
def test_no_json_says_nan(value) -> None:
    with pytest.raises(ValueError, match="compliant"):
        indented(value)


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        indented({"a": [1, {2, 3}]})
