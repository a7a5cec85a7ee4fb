"""An optimizer is added with the record that docs/extending.md shows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.examples import LLAMA3_8B
from costmodels.optimizers import records
from costmodels.optimizers.records import OPTIMIZERS, Optimizer
from costmodels.precision import Numerics, numerics_fault, recipe_of
from costmodels.shapes import TrainingJob
from searches.frameworks.case import Case
from searches.frameworks.common import known_optimizer
from tests.searches.frameworks.examples import PLAIN

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Optimizer:
    text = re.search(r"_RECORDS\n(    Optimizer\(.*?\n    \)),\n", PAGE.read_text(), re.S)
    assert text is not None
    record: Optimizer = eval(text[1].strip(), vars(records))
    monkeypatch.setitem(OPTIMIZERS, record.name, record)
    recipe_of.cache_clear()
    return record


def test_its_states_are_counted(added: Optimizer) -> None:
    numerics = Numerics(optimizer=added.name)
    assert not numerics_fault(numerics)
    recipe = recipe_of(numerics)
    assert recipe.state_bytes == 4 + 12
    assert recipe.adam_bytes == 2 * (4 + 12)
    narrow = replace(numerics, optimizer_states="bf16-moments")
    assert "it has fp32" in numerics_fault(narrow)


def test_frameworks_that_its_record_does_not_name_refuse_it(added: Optimizer) -> None:
    case = Case.of_layout(PLAIN, LLAMA3_8B, TrainingJob(8192, 128, optimizer=added.name))
    broken = {
        name: bool(known_optimizer("X", name, "").broken(case)) for name in ("fsdp2", "megatron")
    }
    assert broken == {"fsdp2": False, "megatron": True}
