"""Our memory of MaxText's steps beside what libtpu took for them (tools/maxtext_memory)."""

import pytest

from tools.maxtext_memory.cases import all_cases
from tools.maxtext_memory.compare import TOLERANCE, is_close, kept, ratio

CASES = {case.name: case for case in all_cases()}


def test_the_table_has_cases_alone():
    assert kept().keys() <= CASES.keys()
    assert len(kept()) >= 20


@pytest.mark.parametrize("name", kept())
def test_ours_is_within_the_tolerance_of_libtpus(name):
    found = ratio(CASES[name], kept()[name])
    assert is_close(CASES[name], kept()[name]), f"{found:.3f}, beyond {TOLERANCE}"
