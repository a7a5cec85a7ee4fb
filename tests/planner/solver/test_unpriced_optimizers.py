"""Optimizers that have no price with some model or part are refused by name."""

from dataclasses import replace

import pytest

from costmodels.layers.dense import DENSE
from costmodels.layers.kinds import LAYER_KINDS
from costmodels.problem import Problem
from costmodels.shapes import LayerRun
from planner.errors import SearchError
from planner.solver.unsupported import check_problem, is_modelled
from tests.searches.instances import GQA, context, real_pool, with_optimizer


def problem(optimizer: str, **changes: object) -> Problem:
    c = context(replace(GQA, **changes), real_pool("h100", 1, 8), batch=8)
    return with_optimizer(c, optimizer).problem


def test_a_kind_of_layer_whose_matrices_are_not_listed(monkeypatch) -> None:
    other = replace(DENSE, name="unlisted", matrices=None)
    monkeypatch.setitem(LAYER_KINDS, "unlisted", other)
    runs = (LayerRun("dense", GQA.layers - 2, False), LayerRun("unlisted", 2, False))
    for optimizer in ("muon", "soap", "adafactor"):
        with pytest.raises(SearchError, match="unlisted") as caught:
            check_problem(problem(optimizer, layer_runs=runs))
        assert "optimizer=adam" in str(caught.value)
    assert is_modelled(problem("sgd", layer_runs=runs))


def test_preconditioners_need_a_rate_of_fp32_products() -> None:
    known = problem("soap")
    part = known.pool.accelerator
    peaks = {name: rate for name, rate in part.peak_flops_per_s.items() if name != "fp32"}
    pool = replace(known.pool, accelerator=replace(part, peak_flops_per_s=peaks))
    assert is_modelled(known)
    with pytest.raises(SearchError, match="fp32"):
        check_problem(replace(known, pool=pool))
    assert is_modelled(replace(problem("muon"), pool=pool))
