"""Plots of characters: points where they belong, the fastest cell the darkest."""

import planner
from planner.render.text_plots import HEIGHT, MARKS, SHADES, front_lines, map_lines, scatter_lines


def test_points_lie_at_their_values() -> None:
    """Of three points the first lies at the left top, the last at the right bottom."""
    lines = scatter_lines([(1.0, 9.0, 1), (2.0, 5.0, 2), (3.0, 1.0, 3)], 40)
    assert len(lines) == HEIGHT + 2
    assert lines[0] == "9 │1"
    assert lines[HEIGHT - 1].startswith("1 │")
    assert lines[HEIGHT - 1].endswith("3")
    assert len(lines[HEIGHT - 1]) == len(lines[HEIGHT])
    middle = next(line for line in lines if "2" in line)
    assert lines.index(middle) == HEIGHT - 1 - HEIGHT // 2
    assert lines[-1].split() == ["1", "3"]


def test_a_front_marks_every_plan_that_no_other_hides() -> None:
    found = planner.solve("llama3-8b", "h100-x8", pareto=["step_time", "memory"], top=6)
    lines = front_lines(found, 60)
    drawn = {x for line in lines[1 : HEIGHT + 1] for x in line.partition("│")[2] if x != " "}
    assert drawn <= {MARKS[plan.rank - 1] for plan in found.plans}
    assert MARKS[0] in drawn
    assert max(map(len, lines)) <= 60


def test_the_map_holds_the_best_step_of_each_tp_and_pp() -> None:
    found = planner.solve("llama3-8b", "h100-x8", top=10, all_variants=True)
    lines = map_lines(found, 100)
    assert front_lines(found, 100) == []
    best: dict[tuple[int, int], float] = {}
    for plan in found.plans:
        key = plan.layout.tp, plan.layout.pp
        best[key] = min(plan.step_time_s, best.get(key, plan.step_time_s))
    text = "\n".join(lines)
    if len(best) < 2:
        assert lines == []
    else:
        assert all(f"{step_s:.2f}" in text for step_s in best.values())
        assert f"{SHADES[0]} {min(best.values()):.2f}" in text
