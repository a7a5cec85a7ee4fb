"""What explains a plan over several pools."""

import json
from dataclasses import replace

import pytest

from costmodels.mixed.prices import price
from planner.analyze.joined.explanation import explain_joined
from planner.analyze.joined.terms import TERM_TEXTS, term_values
from planner.cli.commands.plans import run_explain
from planner.errors import SearchError, UsageError
from planner.render.answers.joined.explanation import joined_explanation_json
from planner.render.document import text_of
from planner.solver.answer.result_store import joined_plan_of
from planner.solver.together.opened import open_joined
from planner.solver.together.plans import TERMS
from tests.planner.analyze.joined.conftest import opened_plans


@pytest.mark.parametrize("name", ["data", "wider"])
def test_plans_are_priced_as_the_answer_has_them(name, request):
    for opened in opened_plans(request.getfixturevalue(name)):
        assert opened.note == ""
        assert opened.plan.step_time_s == pytest.approx(opened.saved.step_time_s, rel=1e-12)
        assert opened.plan.kinds == opened.saved.kinds or all(
            a.time == pytest.approx(b.time, rel=1e-9)
            for a, b in zip(opened.plan.kinds, opened.saved.kinds, strict=True)
        )


def test_a_plan_that_was_edited_is_refused(data):
    plan = joined_plan_of(data, "t1")
    kind = plan.kinds[0]
    more = replace(plan, kinds=(replace(kind, mbs=2 * kind.mbs), *plan.kinds[1:]))
    with pytest.raises(SearchError, match="edited by hand"):
        open_joined(data, more, "answer")
    gone = json.loads(json.dumps(data))
    gone["inputs"]["cluster"]["pools"][0]["name"] = "other"
    with pytest.raises(SearchError, match="has no pool new"):
        open_joined(gone, plan, "answer")


def test_what_binds_is_the_slowest_stage_of_the_slowest_kind(wider):
    plans = opened_plans(wider)
    assert any(len(x.plan.kinds) > 1 for x in plans)
    for opened in plans:
        found = explain_joined(opened)
        kind = opened.plan.kinds[found.binding_kind - 1]
        assert kind.step_time_s == opened.plan.step_time_s
        times = [x.time_s for x in kind.stages]
        assert found.binding_stage.time_s == max(times)
        assert kind.time["compute"] == pytest.approx(kind.n_micro * max(times))
        assert len(found.stages) == sum(len(x.stages) for x in opened.plan.kinds)
        last = max(x.sync_s + x.exchange_s + x.update_s for x in found.stages)
        assert last >= kind.time["exchange"] + kind.time["update"]


def test_layers_of_each_kind_follow_one_another(wider):
    for opened in opened_plans(wider):
        ends = {}
        for stage in explain_joined(opened).stages:
            assert stage.first_layer == ends.get(stage.kind, 0)
            ends[stage.kind] = stage.first_layer + stage.layers
        assert set(ends.values()) == {4}


def test_links_carry_what_the_plan_says(wider):
    for opened in opened_plans(wider):
        links = explain_joined(opened).links
        sent = {x.between: x.bytes for x in opened.plan.links}
        assert {x.between: x.messages_bytes + x.exchange_bytes for x in links} == pytest.approx(
            sent
        )
        if len(opened.plan.kinds) == 1:
            assert all(x.exchange_bytes == 0 for x in links)
        assert all(0.0 < x.busy_frac < 1.0 for x in links)


def test_gains_are_those_of_the_step_priced_again(data):
    opened = opened_plans(data)[0]
    gains = {(x.what, x.of): x.gain_percent for x in explain_joined(opened).gains}
    assert {what for what, _ in gains} == {"compute", "network", "link"}
    # All pools a per cent faster: compute and bubble shrink by as much, and nothing else.
    pools = {i for i, x in enumerate(opened.problem.pools) if x.name in opened.plan.devices}
    tables = tuple(
        replace(
            x, forward_s=x.forward_s.scaled(1 / 1.01), backward_s=x.backward_s.scaled(1 / 1.01)
        )
        if x.pool in pools
        else x
        for x in opened.problem.tables
    )
    both = price(opened.mixed, replace(opened.problem, tables=tables)).step_s
    total = 100.0 * (1.0 - both / opened.plan.step_time_s)
    compute = sum(x for (what, _), x in gains.items() if what == "compute")
    assert compute == pytest.approx(total, abs=0.02)
    assert max(gains, key=lambda x: gains[x])[0] == "compute"


def test_every_term_opens_with_its_numbers(data):
    opened = opened_plans(data)[0]
    assert tuple(TERM_TEXTS) == TERMS
    for term in TERMS:
        values = term_values(opened.priced, term)
        assert [x["time_s"] for x in values] == [x.time[term] for x in opened.plan.kinds]
        assert TERM_TEXTS[term].equation in text_of(explain_joined(opened, term))
    with pytest.raises(UsageError, match="has no term 'tp'"):
        explain_joined(opened, "tp")


def test_the_command_prints_it(data, tmp_path, capsys):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(data))
    run_explain(f"{path}#t1", "", "json")
    printed = json.loads(capsys.readouterr().out)
    opened = opened_plans(data)[0]
    assert printed == json.loads(json.dumps(joined_explanation_json(explain_joined(opened))))
    stages = printed["together"]["stages"]
    assert {x["part"] for x in stages} == {"h100-sxm-80gb", "a100-sxm-80gb"}
    run_explain(f"{path}#t1", "", "table")
    assert "slowest stage:" in capsys.readouterr().out
    assert explain_joined(opened)._repr_html_()
