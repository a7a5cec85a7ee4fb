"""Optimizers by groups of parameters against an independent count, plan by plan."""

from dataclasses import replace

import pytest

from costmodels.optimizers.records import MuonOptions
from costmodels.precision import numerics_fault
from searches.rules import Context
from searches.search import search
from tests.searches import oracle
from tests.searches.instances import (
    GB,
    GQA,
    context,
    one_in,
    one_row_in,
    pins,
    real_pool,
    with_options,
)
from tests.searches.test_oracle import CLOSE, check_against_oracle, legal_plans, thinned
from tests.searches.wider_instances import MOE

MODELS = {"dense": GQA, "experts": MOE}

JOBS: dict[str, tuple[str, MuonOptions]] = {
    "sgd": ("sgd", MuonOptions()),
    "muon": ("muon", MuonOptions()),
    "shares of the Gram matrix": ("muon", MuonOptions(tp_mode="distributed")),
    "blocks": ("muon", MuonOptions(tp_mode="blockwise", use_syrk=True)),
    "homes": ("muon", MuonOptions(tp_mode="layer-sharded", num_ns_steps=3)),
    "whole gradients": ("muon", MuonOptions(param_layout=False)),
    "soap": ("soap", MuonOptions()),
}


def of_job(name: str, memory: float | None = None, model: str = "dense") -> Context:
    optimizer, muon = JOBS[name]
    options = replace(pins(vpp=1, mbs=(1, 2)), framework="any")
    pool = real_pool("h100", 1, 4, memory)
    c = context(MODELS[model], pool, batch=8, stack="megatron-core", options=options)
    job = replace(c.problem.job, optimizer=optimizer, muon=muon)
    assert not numerics_fault(job.numerics)
    return replace(c, problem=replace(c.problem, job=job))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", one_in(4, JOBS))
def test_plans_are_those_of_the_oracle(name, model):
    c = of_job(name, model=model)
    plans = thinned(legal_plans(c), 60)
    assert {x.layout.zero for x in plans} >= ({0, 1} if name != "sgd" else {0, 1, 2, 3})
    for plan in plans:
        one = oracle.micro_batch(c.problem, plan.layout)
        priced = oracle.price(c.problem, plan.layout, one)
        assert plan.peak_bytes == pytest.approx(priced.peak_bytes, rel=CLOSE), plan.layout
        assert plan.closed_form_s == pytest.approx(priced.closed_form_s, rel=CLOSE), plan.layout


@pytest.mark.parametrize(
    ("name", "model"),
    one_row_in(
        4,
        [(name, model) for name in ("muon", "sgd", "soap", "whole gradients") for model in MODELS],
    ),
)
def test_a_search_finds_what_the_oracle_finds(name, model):
    c = of_job(name, model=model)
    free = with_options(c, bound=False)
    check_against_oracle(free)
    best = [search(x).finalists[0] for x in (c, free)]
    assert best[0].layout == best[1].layout


@pytest.mark.parametrize("name", ["muon", "soap"])
def test_the_memory_bound_leaves_nothing_out_that_fits(name):
    c = of_job(name, {"muon": 6 * GB, "soap": 9 * GB}[name])
    free = with_options(c, memory_bound=False)
    fitting = {x.layout for x in legal_plans(free) if x.peak_bytes <= c.problem.pool.usable_bytes}
    assert fitting
    assert fitting <= {x.layout for x in legal_plans(c)}


@pytest.mark.parametrize("name", ["muon", "soap"])
def test_whole_matrices_are_shared_out_with_zero_1_over_all_ranks_alone(name):
    layouts = [x.layout for x in legal_plans(of_job(name))]
    assert max(x.zero for x in layouts) == 1
    assert all(x.shard in (0, x.dp * x.cp) for x in layouts)
