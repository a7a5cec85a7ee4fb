"""An algorithm that is added is found by everything that prices or lists collectives."""

import numpy as np
import pytest

import planner
from costmodels.comm.collectives import (
    ALGORITHMS,
    CollectiveAlgorithm,
    collective_s,
    direct_all_to_all_s,
    register_algorithm,
    temporary_algorithm,
)
from costmodels.comm.placement import place_group
from planner.analyze.explain import Explanation
from planner.learn import calculators
from planner.render.answers.explanation import explanation_json
from planner.solver.answer.result_store import open_plan
from planner.specs.loader import load_cluster
from tests.test_docs import docs_generator

PINS = {"tp": 2, "pp": 1, "ep": 8, "etp": 1, "cp": 1, "zero": 1, "mbs": 1}


def quick_all_to_all_s(exchange, group, pool):
    """Return the time of an exchange with half of the bytes.

    t = half of the direct one

    Source: made up.
    """
    return direct_all_to_all_s(exchange, group, pool) / 2


def quick(operation="all-to-all", **more) -> CollectiveAlgorithm:
    return CollectiveAlgorithm("quick", operation, "by magic", quick_all_to_all_s, **more)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    """Returns the plan of Mixtral on 64 devices, priced anew."""
    path = tmp_path_factory.mktemp("plans") / "result.json"

    def priced():
        result = planner.evaluate("mixtral-8x7b", "h100-x512", pins=PINS)
        path.write_text(result.dumps(), encoding="utf-8")
        opened = open_plan(f"{path}#1")
        return opened[2], opened[3]

    return priced


def test_a_new_all_to_all_changes_plans_with_experts(mixtral):
    _, usual = mixtral()
    with temporary_algorithm(quick()):
        problem, plan = mixtral()
        text = explanation_json(Explanation(problem, plan, "ep", None))["text"]
    exchanges = [x for x in plan.breakdown.transfers if x.collective == "all-to-all"]
    assert {x.algorithm for x in exchanges} == {"quick"}
    before, after = (x.breakdown.time_s["ep"] for x in (usual, plan))
    assert after == pytest.approx(before / 2)
    assert plan.step_time_s < usual.step_time_s
    assert "quick" in text
    assert mixtral()[1].breakdown.time_s["ep"] == before


def test_calculators_and_the_documentation_list_it():
    inputs = {"collective": "all-to-all", "ranks": "32"}
    usual = calculators()["collectives"].answer(inputs).number("expected_s")
    with temporary_algorithm(quick()):
        expected = calculators()["collectives"].answer(inputs).number("expected_s")
        table = docs_generator().algorithms_table()
    assert "by magic" in expected.put
    assert expected.value == pytest.approx(usual.value / 2)
    assert "| `quick`, by magic | any group | `t = half of the direct one` | made up |" in table


def test_it_runs_only_where_it_can():
    cluster = load_cluster("h100-x512").cluster
    pool = cluster.pools[0]
    groups = [place_group(n, 1, pool, cluster.fabric) for n in (8, 16)]
    before = [collective_s("all-to-all", 1e6, group, pool).item() for group in groups]
    with temporary_algorithm(quick(runs_on=lambda group, pool: np.asarray(group.n_domains > 1))):
        after = [collective_s("all-to-all", 1e6, group, pool).item() for group in groups]
    assert after == [before[0], pytest.approx(before[1] / 2)]


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="direct"):
        register_algorithm(ALGORITHMS["all-to-all"]["direct"])
