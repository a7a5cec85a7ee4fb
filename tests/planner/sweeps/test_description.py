"""What is said of a sweep before it runs."""

from planner.specs.loader import read_document
from planner.sweeps.spec.description import left_aside, remarks
from planner.sweeps.spec.spec import sweep_from_dict


def test_options_of_a_model_file_that_sweeps_do_not_follow_are_told():
    text = read_document("llama3-8b", "model").data
    own = {**text, "search": {"time_limit_s": 5, "pareto": ["step_time", "cost"]}}
    sections = {"model": own, "cluster": "h100-x512", "vary": {"pools.0.nodes": [1, 2]}}
    sweep = sweep_from_dict(sections)
    limit, front = left_aside(sweep)
    assert limit.startswith("search.time_limit_s of ")
    assert "--point-limit" in limit
    assert front.startswith("search.pareto of ")
    assert remarks(sweep) == [limit, front]
    assert sweep.time_limit_s == 0.0
