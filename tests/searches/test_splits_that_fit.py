"""Jobs that fit with an uneven split alone: found, checked against every split of the layers."""

from dataclasses import replace
from itertools import combinations

import pytest

import planner
from costmodels.plans import Layout, PlanTable
from costmodels.schedule.stages import SPLITS, spelled
from costmodels.shape_terms import shape_terms
from costmodels.step import join, peak_bytes
from planner.render.document import text_of
from planner.solver.answer.result import UnevenTried
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.sources import read_inputs
from searches.options import SearchOptions
from searches.pricing.layout_prices import exact_step_s
from searches.pricing.outcome import Outcome
from searches.rules import Context
from searches.search import search

GIB = 2.0**30
LAYERS, PP = 12, 4
MODEL = {
    "model": {
        "name": "wide-ends",
        "layers": LAYERS,
        "hidden": 2048,
        "heads": 16,
        "ffn": 8192,
        "gated": False,
        "vocab": 256000,
        "tied": False,
    },
    "training": {"seq_len": 2048, "global_batch": 32, "precision": "bf16"},
}
"""Embedding and head hold 0.52 G parameters each, a layer 0.05 G: 18 bytes each come to 8.8 GiB
and 0.84 GiB. So `even` (3 layers an end) and `ends` (2) need 1.7 and 0.84 GiB more than one."""
PINS = {"tp": 1, "pp": PP, "cp": 1, "vpp": 1, "devices": PP}


def cluster(memory_gib: float) -> dict[str, object]:
    part = {"like": "h100-sxm-80gb", "memory": f"{memory_gib} GiB"}
    pool = {
        "name": "small",
        "nodes": 1,
        "accelerators_per_node": 4,
        "memory_margin": "1 GiB",
        "accelerator": part,
    }
    return {"pools": [pool]}


def searched(memory_gib: float, **only: tuple[int, ...]) -> Outcome:
    """Return what the search alone finds, without what would help."""
    pins = {**{axis: (n,) for axis, n in PINS.items() if axis != "devices"}, **only}
    given = read_inputs(MODEL, cluster(memory_gib))
    problem = make_problem(*given, SolveRequest.of(top=1).options())
    options = SearchOptions(only={a: frozenset(x) for a, x in pins.items()}, split_shapes=6)
    return search(Context(problem, options, PP))


def every_split(first: planner.Plan) -> list[tuple[Layout, float]]:
    """Return the first plan's shape under every split and number of recomputed layers; peaks."""
    cuts = combinations(range(LAYERS + 1), PP - 1)
    splits = [tuple(b - a for a, b in zip((0, *cut), (*cut, LAYERS), strict=True)) for cut in cuts]
    assert len(splits) == 286  # 1 to 9 layers inside, none to 10 at the ends
    layouts = [
        replace(
            first.layout,
            split=spelled(x),
            stage_layers=x,
            recompute="full" if k else "none",
            recompute_layers=k,
        )
        for x in splits
        for k in range(max(x) + 1)
    ]
    problem, table = first.breakdown.rows.problem, PlanTable.from_layouts(layouts)
    peaks = peak_bytes(join(problem, shape_terms(problem, table.shapes, table.shardings), table))
    return list(zip(layouts, peaks.tolist(), strict=True))


@pytest.mark.parametrize(("memory", "recomputed"), [(14.3, 0), (15.4, 0)])
def test_a_split_that_fits_is_found_where_no_named_one_does(
    memory: float, recomputed: int
) -> None:
    found = planner.solve(MODEL, cluster(memory), pins=PINS)
    assert found.counts.fit == 0
    assert found.exit_code == 0
    first = found.plans[0]
    problem = first.breakdown.rows.problem
    fits = [x for x, peak in every_split(first) if peak <= (memory - 1.0) * GIB]
    assert fits
    assert not {"3-3-3-3", "2-4-4-2"} & {x.split for x in fits}  # what `even` and `ends` give
    assert first.layout in fits
    assert first.layout.recompute_layers == recomputed
    assert first.step_time_s == pytest.approx(min(exact_step_s(problem, fits)), rel=1e-3)


def test_nothing_fits_exactly_where_no_split_at_all_does() -> None:
    roomy = planner.solve(MODEL, cluster(80.0), pins=PINS | {"mbs": 1}).plans[0]
    needed_gib = min(peak for _, peak in every_split(roomy)) / GIB
    assert 13.2 < needed_gib < 13.3
    assert not searched(14.2).finalists
    assert searched(14.3).finalists
    named = searched(14.3, split=tuple(range(len(SPLITS))))  # the user keeps to the named ones
    assert (named.finalists, named.n_misses) == ((), 0)


def test_the_certificate_claims_no_more_than_was_looked_at() -> None:
    found = planner.solve(MODEL, cluster(15.4), pins=PINS)
    known = found.certificate
    assert known is not None
    assert known.only_uneven
    assert not known.proven
    assert known.uneven_shapes == known.uneven_proven == 1
    text = " ".join(text_of(found).split())
    assert "not proven to be the fastest: none of" in text
    assert "proven: none of" not in text
    data = found.to_json()
    assert data["certificate"]["uneven"]["only"]
    assert data["uneven_tried"] is data["closest"] is None


@pytest.mark.slow
def test_where_nothing_at_all_fits_the_answer_says_that_splits_were_tried() -> None:
    found = planner.solve(MODEL, cluster(11.0), pins=PINS)
    assert not found.plans
    assert found.exit_code == 3
    assert found.certificate is None
    assert found.uneven_tried == UnevenTried(1, 1)
    assert found.relaxations
    assert "proven that no split of its layers fits" in " ".join(text_of(found).split())
