"""What is computed once for many shapes or numbers of devices is what each would get alone."""

import dataclasses
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from costmodels import shape_terms as shape_terms_module
from costmodels.axes import SCHEDULES
from costmodels.layers import layer_grid as grids
from costmodels.layers.layer_grid import layer_grid
from costmodels.layers.layer_terms import layer_table
from costmodels.modes import ModeTable
from costmodels.step import least_batch_times
from searches import device_counts as device_counts_module
from searches.device_counts import StepBounds, device_counts
from searches.rules import Context
from searches.search import search
from searches.space.dominance import _once_never_slower, overlap_never_slower
from searches.space.free_axes import batch_sizes, free_axes, module_sets_of
from searches.space.plan_rules import batch_rules, legal_batches
from searches.space.plan_space import legal_masks
from searches.space.shape_space import legal_shapes
from searches.space.shards import batch_bounds_s, make_shards
from tests.searches.instances import INSTANCES, with_options
from tests.searches.test_device_counts import MORE

NAMES = ("toy-24-tight", "cp-by-default", "toy-24-racks-of-8", "deepspeed", "userbuffers")
CONTEXTS: dict[str, Context] = {**{name: INSTANCES[name] for name in NAMES}, **MORE}
every = pytest.mark.parametrize("name", CONTEXTS)


def assert_same(one: object, other: object, where: str = "") -> None:
    """Two trees of dataclasses hold the same bits."""
    assert type(one) is type(other), where
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            values = getattr(one, field.name), getattr(other, field.name)
            assert_same(*values, f"{where}.{field.name}")
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other), where
    elif isinstance(one, tuple):
        for i, values in enumerate(zip(one, other, strict=True)):  # type: ignore[call-overload]
            assert_same(*values, f"{where}[{i}]")
    else:
        assert one == other, where


@every
def test_layer_terms_from_a_grid_are_those_of_the_shapes_alone(name, monkeypatch):
    c = CONTEXTS[name]
    monkeypatch.setattr(grids, "FEW_ROWS", 0)  # rows are taken, however few
    shapes, mbs, modes = legal_shapes(c).shapes, batch_sizes(c), c.options.mode_table
    modules = np.array([0, *module_sets_of(c)], dtype=np.int32)
    grid = layer_grid(c.problem, shapes, mbs, modes)
    for rows in (
        np.arange(len(shapes)),
        np.arange(0, len(shapes), 3),
        np.array([len(shapes) - 1]),
    ):
        some = shapes.take(rows)
        alone = layer_table(c.problem, some, mbs, modules, modes)
        assert_same(grid.table(some, modules), alone)


@pytest.mark.parametrize("name", ["toy-24-tight", "cp-by-default", "experts-16"])
def test_small_grids_are_referred_to_with_the_same_terms(name):
    c = CONTEXTS[name]
    shapes, mbs, modes = legal_shapes(c).shapes, batch_sizes(c), c.options.mode_table
    modules = np.array([0, *module_sets_of(c)], dtype=np.int32)
    grid, some = layer_grid(c.problem, shapes, mbs, modes), shapes.take(np.arange(5))
    tables = grid.table(some, modules), layer_table(c.problem, some, mbs, modules, modes)
    assert tables[0].terms is grid.terms
    every = np.meshgrid(np.arange(5), mbs, np.arange(len(modes)), indexing="ij")
    plans = [axis.reshape(-1).astype(np.int32) for axis in every]
    taken, codes = [], np.tile(modules, (len(plans[0]), 1)).T
    for table in tables:
        rows = table.index(*plans[:2], modes.rows(plans[2]))
        n, at = len(table.terms.kept_bytes), table.sets.index(codes, rows)
        sets = (table.sets.again_s.take(at), table.sets.kept_bytes.take(at))
        taken.append((grids._taken(table.terms, rows, n), sets))
    assert_same(*(terms for terms, _ in taken))
    assert all(np.array_equal(a, b) for a, b in zip(*(sets for _, sets in taken), strict=True))


def test_a_split_that_a_grid_does_not_have_is_an_error():
    c = CONTEXTS["toy-24-tight"]
    shapes = legal_shapes(c).shapes
    grid = layer_grid(c.problem, shapes.take(shapes.tp == 1), batch_sizes(c), ModeTable())
    with pytest.raises(KeyError):
        grid.table(shapes.take(shapes.tp > 1), np.zeros(1, dtype=np.int32))
    with pytest.raises(ValueError, match="15 bits"):
        layer_grid(
            c.problem, replace(shapes, ep=1 << 15 << 0 * shapes.ep), batch_sizes(c), ModeTable()
        )


def test_shards_are_sent_without_the_grid():
    c = CONTEXTS["toy-24-tight"]
    for shard in make_shards(c, legal_shapes(c).shapes):
        sent = pickle.loads(pickle.dumps(shard))
        assert shard.grid is not None
        assert sent.grid is None
        assert np.array_equal(sent.least_s, shard.least_s)


@every
def test_batches_that_no_plan_has_are_not_promising(name):
    c = CONTEXTS[name]
    shapes, mbs, modes = legal_shapes(c).shapes, batch_sizes(c), c.options.mode_table
    layers = layer_table(c.problem, shapes, mbs, np.zeros(1, dtype=np.int32), modes)
    plain, found = least_batch_times(c.problem, shapes, layers, mbs), batch_bounds_s(c, shapes)
    legal = legal_batches(batch_rules(c, shapes, mbs))
    assert np.array_equal(found[legal], plain[legal])
    assert np.isinf(found[~legal]).all()
    masks, _, _ = legal_masks(c, shapes, free_axes(c, shapes))
    assert np.isfinite(found[masks.batch_plans > 0]).all()
    batch = c.problem.job.global_batch
    for i, (dp, pp, schedule) in enumerate(
        zip(shapes.dp, shapes.pp, shapes.schedule, strict=True)
    ):
        for j, size in enumerate(mbs.tolist()):
            n_micro, rest = divmod(batch, int(dp) * size)
            if rest or (SCHEDULES[schedule] == "interleaved" and n_micro % int(pp)):
                assert np.isinf(found[i, j]).all()


@pytest.mark.slow
@every
def test_bounds_over_numbers_of_devices_do_not_depend_on_the_grid(name, monkeypatch):
    c = CONTEXTS[name]
    counts = device_counts(c.problem.pool)
    shared = StepBounds(c.problem, with_options(c, bound=True).options)
    found = [(shared.least_s(n), shared.below(n, np.inf, 2)) for n in counts]
    monkeypatch.setattr(device_counts_module, "MOST_IN_GRID", 0)
    alone = StepBounds(c.problem, shared.options)
    assert found == [(alone.least_s(n), alone.below(n, np.inf, 2)) for n in counts]


@every
def test_dominance_of_alike_shapes_is_that_of_each(name):
    c = CONTEXTS[name]
    shapes = legal_shapes(c).shapes
    shardings = free_axes(c, shapes).shardings
    found = overlap_never_slower(c, shapes, shardings, 1)
    once = np.flatnonzero(shardings.zero <= 1)
    for i in range(0, len(shapes), 1 + len(shapes) // 40):
        one = _once_never_slower(c, shapes.take(np.array([i])), shardings.take(once), 1)
        assert np.array_equal(found[once, i], one[:, 0])


@every
def test_groups_of_the_same_degrees_are_placed_alike(name, monkeypatch):
    c = CONTEXTS[name]
    shapes = legal_shapes(c).shapes
    shardings = free_axes(c, shapes).shardings
    twice = shapes.take(np.repeat(np.arange(len(shapes)), 3))
    for of in ("data_groups", "expert_data_groups"):
        found = getattr(shape_terms_module, of)(c.problem, twice, shardings)
        alone = getattr(shape_terms_module, f"_{of}")(c.problem, twice, shardings)
        assert_same(found, alone, of)


@every
def test_masks_by_batch_are_those_of_the_whole(name):
    c = CONTEXTS[name]
    shapes = legal_shapes(c).shapes
    axes = free_axes(c, shapes)
    masks, _, _ = legal_masks(c, shapes, axes)
    whole = masks.rest
    assert np.array_equal(masks.shardings_used, whole.any(axis=(0, 1, 3)))
    for rows in (np.arange(whole.shape[2]), np.arange(0, whole.shape[2], 2)):
        with_sp, offered = masks.of_stages(rows)
        assert np.array_equal(with_sp, whole[:, :, rows].any(axis=(2, 3)))
        assert np.array_equal(offered, whole[:, :, rows].any(axis=(1, 2)))
        of, sp = np.divmod(np.arange(len(shapes) * whole.shape[1]), whole.shape[1])
        assert np.array_equal(masks.of_batches(of, sp, rows), whole[of, sp][:, rows])


@pytest.mark.parametrize("first", [1, 7, 10_000])
def test_which_shapes_come_first_changes_no_answer(first, monkeypatch):
    c = with_options(INSTANCES["h100-24-megatron"], bound=True, n_finalists=5)
    wanted = search(with_options(c, bound=False))
    monkeypatch.setattr("searches.space.shards.FIRST_SHAPES", first)
    assert search(c).finalists[:5] == wanted.finalists[:5]


@pytest.mark.slow
def test_a_search_does_without_pandas_and_pandas_still_works_after_it():
    code = """
import sys
import planner
planner.solve("llama3-8b", "h100-x8", top=1)
assert "ortools.sat.python.cp_model" in sys.modules and "pandas" not in sys.modules
import pandas
from ortools.sat.python import cp_model
model = cp_model.CpModel()
series = model.new_int_var_series("x", pandas.Index(["a", "b"]), 0, 3)
assert isinstance(series, pandas.Series) and list(series.index) == ["a", "b"]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
