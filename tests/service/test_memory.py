"""What a process keeps in memory has a bound, and what it does not use it gives back."""

import ast
import ctypes
from pathlib import Path

import pytest

from costmodels.schedule import rounds
from service.worker_pool import process_memory as memory
from service.worker_pool.process_memory import Tidy, give_back, resident_bytes

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("hardware", "costmodels", "searches", "planner", "service")
FEW = {
    "planner/learn/machines.py:active": "packaged examples",
    "planner/learn/machines.py:layer_weights": "packaged examples",
    "planner/learn/machines.py:models": "a truth value",
    "planner/learn/machines.py:params": "packaged examples",
    "planner/learn/machines.py:seq_len": "packaged examples",
    "planner/learn/machines.py:shape": "packaged examples",
    "planner/specs/examples.py:example_content": "packaged examples",
    "planner/frameworks/torchtitan/reader.py:known_fields": "releases that are packaged",
    "planner/specs/schema.py:field_meaning": "fields of our schemas",
    "planner/frameworks/releases.py:option_tables": "frameworks that we know",
    "planner/frameworks/finetuning/settings/table.py:setting_table": "tools that we know",
    "planner/frameworks/registry.py:_built_in": "frameworks that we know",
    "planner/frameworks/bridge/recipe_table.py:_part": "accelerators of published recipes",
    "searches/frameworks/registry.py:_at_release": "releases that we know",
    "searches/frameworks/releases.py:version_key": "releases that we know",
    "searches/frameworks/switches.py:_table": "frameworks that we know",
    "searches/frameworks/table.py:_rules_before": "frameworks that we know",
    "searches/frameworks/table.py:_all_rules": "frameworks that we know",
    "searches/frameworks/table.py:order_runs": "frameworks and rank orders that we know",
    "searches/frameworks/table.py:schedule_runs": "frameworks and schedules that we know",
    "service/handlers/documents.py:_names": "model, cluster",
    "service/pages/examples.py:examples": "model, cluster",
    "service/pages/examples.py:sweep_text": "packaged sweeps",
    "service/pages/shown_data.py:shown_data": "packaged data",
    "service/pages/static.py:file": "files of the page",
    "service/rest/examples.py:examples": "kinds of packaged examples",
}
"""Functions whose values are kept without a bound, and the few arguments that they have."""


def unbounded() -> set[str]:
    """Return the functions with parameters that `functools.cache`, or `lru_cache(None)`, wraps."""
    found = set()
    for path in (p for package in PACKAGES for p in (ROOT / package).rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "cache" in text else ():
            if not isinstance(node, ast.FunctionDef) or not node.args.args:
                continue
            for decorator in node.decorator_list:
                wrapped = ast.unparse(decorator).removeprefix("functools.")
                if wrapped == "cache" or (wrapped.startswith("lru_cache(") and "None" in wrapped):
                    found.add(f"{path.relative_to(ROOT).as_posix()}:{node.name}")
    return found


def test_whatever_is_kept_by_what_callers_send_has_a_bound():
    assert unbounded() == set(FEW)


def test_paths_that_callers_write_are_forgotten():
    from planner.sweeps import fields

    for n in range(1_100):
        fields.field_at(f"pools.{n}.nodes").check(1)
    assert fields.field_at.cache_info().currsize <= 1_024
    assert fields._adapter.cache_info().currsize <= 256


def test_rounds_are_kept_up_to_a_size(monkeypatch):
    monkeypatch.setattr(rounds, "_KEPT", type(rounds._KEPT)())
    one = rounds.rounds_of("zb-h1", 4, 8)
    monkeypatch.setattr(rounds, "KEPT_BYTES", 3 * one.n_bytes)
    for n_micro in range(8, 18):
        rounds.rounds_of("zb-h1", 4, n_micro)
        assert sum(each.n_bytes for each in rounds._KEPT.values()) <= rounds.KEPT_BYTES
    assert rounds.rounds_of("zb-h1", 4, 17) is rounds.rounds_of("zb-h1", 4, 17)
    assert rounds.rounds_of("zb-h1", 4, 8) is not one  # the oldest was forgotten
    large = rounds.rounds_of("zb-h1", 4, 200)  # larger than all that may be kept
    assert list(rounds._KEPT.values()) == [large]


def holes() -> list[bytes]:
    """Return a few of many pieces of memory, the others freed: no end of the heap is free."""
    pieces = [bytes(8_000) for _ in range(12_000)]
    return pieces[99::100]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_memory_between_what_is_in_use_is_given_back():
    give_back()
    kept = holes()
    before = resident_bytes()
    give_back()
    assert before - resident_bytes() > 50_000_000, len(kept)


def test_a_process_looks_after_every_growth(monkeypatch):
    left, given = [300_000_000], []
    monkeypatch.setattr(memory, "resident_bytes", lambda: left[0])
    monkeypatch.setattr(memory, "give_back", lambda: given.append(1))
    tidy = Tidy()
    assert tidy.after(340_000_000)  # its first question
    assert not tidy.after(331_000_000)
    left[0] = 310_000_000
    assert tidy.after(332_000_000)
    assert not tidy.after(341_000_000)
    assert len(given) == 2
