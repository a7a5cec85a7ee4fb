"""What the logs of a run are taken for before anything is ranked with them."""

import pytest

import planner
from planner.measure.trial.logs import Reading
from planner.measure.trial.rerank import Trialled, merged, mismatch, trial_runs_of
from planner.specs.loader import load_cluster, load_model

STEPS_S = (2.0,) * 10


@pytest.fixture(scope="module")
def pipeline() -> Trialled:
    """A plan of four stages on 8 devices, ranks 0 and 1 the first stage."""
    pins = {"tp": 2, "pp": 4, "mbs": 1}
    plan = planner.evaluate("llama3-8b", "h100-x8", pins=pins).plans[0]
    model, cluster = load_model("llama3-8b"), load_cluster("h100-x8")
    return Trialled(plan, model, cluster, None)


@pytest.mark.parametrize(
    ("ranks", "fullest"),
    [({0, 2, 4, 6}, True), ({1, 3, 5, 6}, True), ({0, 1, 2, 3}, False), ({0}, False)],
)
def test_a_peak_is_of_the_fullest_device_where_all_stages_print(
    pipeline: Trialled, ranks: set[int], fullest: bool
) -> None:
    read = Reading("megatron", STEPS_S, 0, {"reserved": 2.0**34}, frozenset(ranks))
    one = Trialled(pipeline.plan, pipeline.model, pipeline.cluster, read)
    (run,) = trial_runs_of([one], "megatron", "")
    assert run.fullest is fullest


def test_settings_that_the_log_of_another_rank_states_count(pipeline: Trialled) -> None:
    arguments = Reading("", (), 0, facts={"gbs": 256, "tp": 2})
    steps = Reading("megatron", STEPS_S, 0, facts={"gbs": 512})
    both = merged([arguments, steps])
    assert both is not None
    assert both.steps_s == STEPS_S
    assert both.facts == {"gbs": 512, "tp": 2}
    assert mismatch(both, pipeline.plan.layout, pipeline.model) == ""
    other = merged([Reading("", (), 0, facts={"tp": 8}), steps])
    assert other is not None
    assert "tp 8, not 2" in mismatch(other, pipeline.plan.layout, pipeline.model)


def test_an_old_log_that_ran_out_does_not_count_beside_one_that_ended(
    pipeline: Trialled,
) -> None:
    out = Reading("", (), 0, ran_out=True)
    whole = Reading("megatron", (2.0,) * 24, 0)
    part = Reading("megatron", (2.0,) * 7, 0)
    assert not merged([out, whole], 25).ran_out  # type: ignore[union-attr]
    assert merged([out, part], 25).ran_out  # type: ignore[union-attr]
    assert merged([out, whole]).ran_out  # type: ignore[union-attr]
