"""What neighbouring searches share changes no answer, and stays within its bounds."""

import json
import pickle
from dataclasses import fields, replace
from itertools import product
from random import Random

import numpy as np
import pytest

from planner.solver.execution import Execution
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.solver.solve import solve_inputs
from planner.solver.sources import read_inputs
from searches.executors.executor import SerialExecutor
from searches.pricing.shared_work import SharedWork, n_bytes, options_key, rates_key, shared
from tests.searches.instances import one_in

AXES = {
    "pools.0.nodes": (2, 3),
    "pools.0.scale_up_domain": (8, 16),
    "pools.0.nics_per_node": (1, 8),
    "pools.0.accelerator": tuple(
        {"like": "h100-sxm-80gb", "memory": memory} for memory in ("24 GiB", "60 GiB", "200 GiB")
    ),
}
OPTIONS = SolveRequest.of(top=2, only={"vpp": (1,)}, at_most={"mbs": 2}).options()


def answer(point: dict[str, object], work: SharedWork | None) -> str:
    model, cluster = read_inputs("llama3-8b", "h100-x512", tuple(point.items()))
    return json.dumps(
        solve_inputs(model, cluster, OPTIONS, Execution(SerialExecutor(), shared=work)).to_json()
    )


@pytest.mark.parametrize("limit_bytes", one_in(2, [2**27, 200_000]))
@pytest.mark.slow
def test_answers_are_the_same_whatever_was_searched_before(limit_bytes: int) -> None:
    points = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]
    chosen = Random(5).sample(points, 5)
    work = SharedWork(limit_bytes)
    found = [answer(point, work) for point in (*chosen, *reversed(chosen[:2]))]
    for point, one in zip(chosen, found, strict=False):
        assert one == answer(point, None)
    assert found[-2:] == [found[1], found[0]]
    assert work.used_bytes <= limit_bytes
    if limit_bytes > 2**20:
        assert work.n_found > 2 * len(chosen)
    else:
        assert len(work) < work.n_made  # some had to go


def test_what_was_used_last_stays() -> None:
    work = SharedWork(limit_bytes=3 * n_bytes(np.zeros(1000)))
    for key in "ab":
        work.get(key, lambda: np.zeros(1000))
    assert work.get("a", lambda: np.ones(1))[0] == 0.0
    work.get("c", lambda: np.zeros(1000))
    assert work.get("a", lambda: np.ones(1))[0] == 0.0
    assert work.get("b", lambda: np.ones(1))[0] == 1.0
    assert work.used_bytes <= work.limit_bytes


def test_what_is_larger_than_the_limit_is_not_kept() -> None:
    work = SharedWork(limit_bytes=1000)
    assert len(work.get("a", lambda: np.zeros(10_000))) == 10_000
    assert (len(work), work.used_bytes) == (0, 0)


def test_without_shared_work_no_key_is_asked_for() -> None:
    assert shared(None, lambda: pytest.fail("asked for"), lambda: 3) == 3


def test_another_process_starts_with_nothing() -> None:
    work = SharedWork(5000)
    work.get("a", lambda: 1)
    sent = pickle.loads(pickle.dumps(work))
    assert (len(sent), sent.limit_bytes) == (0, 5000)


def test_every_option_is_in_the_key() -> None:
    plain = OPTIONS.search_options()
    others = {
        "only": {"tp": frozenset([2])},
        "at_most": {"pp": 2},
        "open": {"ep_overlap": frozenset([0, 1])},
        "framework": "any",
        "memory_bound": False,
        "bound": False,
        "n_finalists": 3,
        "split_shapes": 1,
        "rival_s": 1.0,
        "front": True,
    }
    assert set(others) == {field.name for field in fields(plain)}
    keys = {options_key(replace(plain, **{name: value})) for name, value in others.items()}
    assert len(keys | {options_key(plain)}) == 1 + len(others)


def test_rates_leave_out_memory_and_keep_the_network() -> None:
    model, cluster = read_inputs("llama3-8b", "h100-x512")
    problem = make_problem(model, cluster, OPTIONS)
    pool = problem.pool
    part, key = pool.accelerator, rates_key(problem)
    roomy = replace(part, memory_bytes=2 * part.memory_bytes)
    assert rates_key(replace(problem, pool=replace(pool, accelerator=roomy))) == key
    for changed in (
        replace(pool, n_nodes=2),
        replace(pool, nics_per_node=1),
        replace(pool, scale_up_domain=16),
        replace(pool, nic=replace(pool.nic, p2p_latency_s=1.0)),
        replace(pool, accelerator=replace(part, hbm_bytes_per_s=1.0)),
        replace(pool, accelerator=replace(part, peak_flops_per_s={"bf16": 1.0})),
    ):
        assert rates_key(replace(problem, pool=changed)) != key
