"""Adapters beside frozen weights, of every base and stack, against the oracle."""

from dataclasses import replace

import pytest

from costmodels.problem import run_by
from costmodels.tuning.records import TuningJob
from searches.rules import Context
from tests.searches import oracle
from tests.searches.instances import GB, GQA, context, one_in, pins, real_pool, with_options
from tests.searches.test_oracle import CLOSE, legal_plans, thinned

CUT = pins(vpp=(1, 2), mbs=(1, 2))
JOBS: dict[str, tuple[str, TuningJob]] = {
    "queries and values": ("fused", TuningJob(8, ("q", "v"))),
    "fused layers": ("megatron-core", TuningJob(16, ("o", "qkv"))),
    "all, with dropout": (
        "megatron-core",
        TuningJob(4, ("o", "down", "qkv", "gate_up"), dropout=0.1),
    ),
    "quantized": (
        "eager",
        TuningJob(8, ("q", "k", "v", "o", "gate", "up", "down"), base="nf4"),
    ),
    "the MLP alone": ("eager", TuningJob(8, ("gate", "up"))),
    "plain scales": ("fused", TuningJob(8, ("q", "down"), base="nf4-plain")),
}


def of_job(name: str, memory: float | None = None) -> Context:
    stack, tuning = JOBS[name]
    c = context(GQA, real_pool("h100", 1, 4, memory), batch=8, stack=stack, options=CUT)
    x, task = c.problem, "qlora" if tuning.storage.is_quantized else "lora"
    job = replace(x.job, task=task, tuning=tuning)
    return replace(c, problem=run_by(x.stack, x.shape, job, x.pool, x.fabric))


@pytest.mark.parametrize("name", JOBS)
def test_plans_are_those_of_the_oracle(name):
    c = of_job(name)
    plans = thinned(legal_plans(c), 60)
    assert {plan.layout.zero for plan in plans} >= {1, 3}
    for plan in plans:
        one = oracle.micro_batch(c.problem, plan.layout)
        priced = oracle.price(c.problem, plan.layout, one)
        assert plan.peak_bytes == pytest.approx(priced.peak_bytes, rel=CLOSE), plan.layout
        assert plan.closed_form_s == pytest.approx(priced.closed_form_s, rel=CLOSE), plan.layout


@pytest.mark.parametrize("name", one_in(2, ["queries and values", "quantized"]))
def test_the_memory_bound_leaves_nothing_out_that_fits(name):
    c = of_job(name, 12 * GB)
    bound, free = c, with_options(c, memory_bound=False)
    fitting = {x.layout for x in legal_plans(free) if x.peak_bytes <= c.problem.pool.usable_bytes}
    assert fitting
    assert fitting <= {x.layout for x in legal_plans(bound)}
