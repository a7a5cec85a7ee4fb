"""The certificate of a search, checked plan by plan by a program of its own."""

from dataclasses import replace

import pytest

from costmodels.plans import Layout
from searches.options import SearchOptions
from searches.pricing.outcome import Outcome
from searches.rules import Context
from searches.search import search
from searches.space import shards
from tests.searches.certificate import Checked, check_certificate, with_bounds
from tests.searches.instances import (
    GB,
    GQA,
    INSTANCES,
    TWO_TIERS,
    context,
    one_in,
    real_pool,
    toy_pool,
)
from tests.searches.wider_instances import FAST, MOE

LLAMA = replace(GQA, layers=24, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LARGE: dict[str, Context] = {
    "experts on 64 H100": context(
        replace(MOE, n_experts=8, layers=8),
        real_pool("h100", 8, 8, memory=20 * GB),
        batch=128,
        seq_len=4096,
        stack="megatron-core",
    ),
    "any framework on 64 H100": context(
        LLAMA,
        real_pool("h100", 8, 8, memory=30 * GB),
        batch=128,
        seq_len=4096,
        fabric=TWO_TIERS,
        options=SearchOptions(framework="any"),
    ),
}
"""Some 60,000 and 200,000 legal plans, most of them left out. On 128 devices with 8,192 tokens a
sequence the second has 1,171,591: the same check holds there, in minutes."""
SMALL = (
    "toy-8",
    "toy-8-tight",
    "toy-8-hopeless",
    "toy-24-tight",
    "toy-12-odd-batch",
    "deepspeed",
    "zero3-by-tensor",
    "long-run",
    "host",
    "either-order-over-tiers",
    "cp-by-default",
)
WIDER = (
    "experts-4",
    "experts-with-a-capacity",
    "latent",
    "two-tokens-ahead",
    "split-backward",
    "every-schedule",
    "every-switch-on-odd-24",
    "gb200-nvl72",
)


def certified(c: Context, n_finalists: int) -> tuple[Outcome, Checked]:
    """Return a search with its bounds on, and what the walk over its space counted."""
    c = with_bounds(c, n_finalists)
    outcome = search(c)
    return outcome, check_certificate(c, outcome)


@pytest.mark.parametrize("name", one_in(18, [*SMALL, *WIDER]))
def test_no_plan_that_was_left_out_beats_the_first(name):
    c = {**INSTANCES, **FAST}[name]
    _, checked = certified(c, 3)
    everything = search(with_bounds(c, 3, bound=False))
    assert (checked.n_legal, checked.n_fit) == (everything.n_legal, everything.n_fit)
    if everything.finalists:
        assert checked.first_s == pytest.approx(everything.finalists[0].step_s, rel=1e-9)


@pytest.mark.slow
def test_the_walk_meets_plans_left_out_and_plans_that_need_simulation():
    """Or the test above would look at nothing."""
    every = {**INSTANCES, **FAST}
    left_out = [certified(every[name], 3)[1].n_excluded for name in ("toy-8", "experts-4")]
    assert min(left_out) > 100
    assert certified(every["every-schedule"], 3)[1].n_simulated > 10


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("experts on 64 H100", marks=pytest.mark.fit),
        pytest.param("any framework on 64 H100", marks=pytest.mark.fit),
    ],
)
def test_the_certificate_of_a_large_space_holds(name):
    outcome, checked = certified(LARGE[name], 64)
    assert checked.n_excluded > checked.n_legal / 2
    assert outcome.n_excluded + outcome.n_fit <= checked.n_legal


# The checker finds what is wrong ----------------------------------------------------------------


def small() -> tuple[Context, Outcome]:
    c = with_bounds(context(GQA, toy_pool(4), batch=16), 3)
    return c, search(c)


@pytest.mark.slow
def test_a_wrong_count_is_found():
    c, outcome = small()
    check_certificate(c, outcome)
    for wrong in (
        replace(outcome, n_legal=outcome.n_legal + 1),
        replace(outcome, n_excluded=outcome.n_excluded - 1),
        replace(outcome, n_fit=outcome.n_fit + 1),
        replace(outcome, bound_s=2 * outcome.bound_s),
        replace(outcome, bound_s=float("inf")),
    ):
        with pytest.raises(AssertionError):
            check_certificate(c, wrong)


def test_a_first_that_is_beaten_is_found():
    c, outcome = small()
    second: Layout = outcome.finalists[-1].layout
    assert outcome.finalists[-1].step_s > outcome.finalists[0].step_s
    with pytest.raises(AssertionError, match="dp="):
        check_certificate(c, replace(outcome, finalists=outcome.finalists[-1:]))
    assert second != outcome.finalists[0].layout
    first = replace(outcome.finalists[0], step_s=0.99 * outcome.finalists[0].step_s)
    with pytest.raises(AssertionError):
        check_certificate(c, replace(outcome, finalists=(first,)))


def test_a_bound_that_is_too_high_is_found(monkeypatch):
    c, _ = small()
    right = shards.batch_bounds_s
    monkeypatch.setattr(shards, "batch_bounds_s", lambda *x: 1.5 * right(*x))
    monkeypatch.setattr("tests.searches.certificate.batch_bounds_s", lambda *x: 1.5 * right(*x))
    with pytest.raises(AssertionError):
        check_certificate(c, search(c))
