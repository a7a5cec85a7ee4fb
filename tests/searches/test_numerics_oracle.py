"""Every recipe, width of gradients and states, and layer left in bf16, against the oracle."""

from dataclasses import replace

import pytest

from costmodels.precision import numerics_fault
from costmodels.shapes import TrainingJob
from searches.rules import Context
from tests.searches import oracle
from tests.searches.instances import (
    GB,
    GQA,
    context,
    of_which,
    one_in,
    pins,
    real_pool,
    with_options,
)
from tests.searches.test_oracle import CLOSE, legal_plans, thinned
from tests.searches.wider_instances import EVERYTHING, LATENT, MIXED, MOE

CUT = pins(vpp=1, mbs=(1, 2))
MODELS = {"dense": GQA, "latent": LATENT, "experts": MOE, "mixed": MIXED, "all": EVERYTHING}
JOBS: dict[str, tuple[str, str, dict[str, object]]] = {
    "current on hopper": ("h100", "megatron-core", {"precision": "fp8-tensorwise"}),
    "delayed on hopper": ("h100", "fused", {"precision": "fp8-delayed"}),
    "kept in bf16": ("h100", "eager", {"precision": "fp8-blockwise"}),
    "blocks, bf16 gradients": (
        "h100",
        "megatron-core",
        {"precision": "fp8-blockwise", "grad_dtype": "bf16"},
    ),
    "two layers in bf16": (
        "b200",
        "megatron-core",
        {"precision": "fp8-mxfp8", "bf16_layers": (1, 1), "fp8_output": True},
    ),
    "gathered at a byte": (
        "b200",
        "megatron-core",
        {"precision": "fp8-tensorwise", "fp8_param_gather": True, "bf16_layers": (0, 1)},
    ),
    "gathered as mxfp8": (
        "b200",
        "megatron-core",
        {"precision": "fp8-mxfp8", "fp8_param_gather": True, "optimizer_states": "bf16-moments"},
    ),
    "attention in fp8": ("h100", "fused", {"precision": "fp8-tensorwise", "fp8_attention": True}),
    "fp4": ("b200", "megatron-core", {"precision": "nvfp4", "grad_dtype": "bf16"}),
    "fp4 gathered": ("b200", "fused", {"precision": "nvfp4", "fp8_param_gather": True}),
    "narrow moments": (
        "h100",
        "megatron-core",
        {"grad_dtype": "bf16", "optimizer_states": "bf16-moments"},
    ),
}


def of_job(model: str, name: str, memory: float | None = None) -> Context:
    part, stack, fields = JOBS[name]
    c = context(MODELS[model], real_pool(part, 1, 4, memory), batch=8, stack=stack, options=CUT)
    job = replace(c.problem.job, **fields)
    assert not numerics_fault(job.numerics)
    return replace(c, problem=replace(c.problem, job=job))


@pytest.mark.parametrize("model", of_which(("dense", "experts"), MODELS))
@pytest.mark.parametrize("name", one_in(4, JOBS))
def test_plans_are_those_of_the_oracle(model, name):
    c = of_job(model, name)
    for plan in thinned(legal_plans(c), 40):
        one = oracle.micro_batch(c.problem, plan.layout)
        priced = oracle.price(c.problem, plan.layout, one)
        assert plan.peak_bytes == pytest.approx(priced.peak_bytes, rel=CLOSE), plan.layout
        assert plan.closed_form_s == pytest.approx(priced.closed_form_s, rel=CLOSE), plan.layout


@pytest.mark.parametrize("name", ["gathered at a byte", "gathered as mxfp8", "narrow moments"])
def test_the_memory_bound_leaves_nothing_out_that_fits(name):
    c = of_job("dense", name, 12 * GB)
    bound, free = c, with_options(c, memory_bound=False)
    fitting = {x.layout for x in legal_plans(free) if x.peak_bytes <= c.problem.pool.usable_bytes}
    assert fitting
    assert fitting <= {x.layout for x in legal_plans(bound)}


def of(precision: str, **fields: object) -> TrainingJob:
    return replace(TrainingJob(1024, 8, precision), **fields)


PAIRS = {
    "bf16 gradients": (of("fp8-blockwise"), of("fp8-blockwise", grad_dtype="bf16")),
    "bf16 moments": (of("bf16"), of("bf16", optimizer_states="bf16-moments")),
    "moments of mxfp8": (of("fp8-mxfp8"), of("fp8-mxfp8", optimizer_states="bf16-moments")),
    "gathered": (of("fp8-tensorwise"), of("fp8-tensorwise", fp8_param_gather=True)),
    "gathered fp4": (of("nvfp4"), of("nvfp4", fp8_param_gather=True)),
}


@pytest.mark.parametrize("model", of_which(("dense", "experts"), MODELS))
@pytest.mark.parametrize("name", one_in(3, PAIRS))
def test_narrower_numbers_never_need_more_memory(model, name):
    wide, narrow = PAIRS[name]
    c = context(MODELS[model], real_pool("b200", 1, 4), batch=8, options=CUT)
    c = replace(c, options=replace(CUT, memory_bound=False))
    plans = [
        {x.layout: x for x in legal_plans(replace(c, problem=replace(c.problem, job=job)))}
        for job in (wide, narrow)
    ]
    both = plans[0].keys() & plans[1].keys()  # frameworks have some numbers in fewer layouts
    assert len(both) > 20
    for layout in both:
        plan = plans[0][layout]
        assert plans[1][layout].peak_bytes <= plan.peak_bytes, layout
        assert plans[1][layout].closed_form_s <= plan.closed_form_s * (1 + 1e-12), layout
