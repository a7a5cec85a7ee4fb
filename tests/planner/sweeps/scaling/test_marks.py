"""What a curve says, against curves made by hand."""

from typing import Any

import pytest

from planner.sweeps.scaling.marks import cheapest, fastest, knee, marks, takeover, wall


def curve(step_s: dict[int, float | None], waits: float = 0.0) -> list[dict[str, Any]]:
    """Rows of 1000 tokens a step; `waits`: share of the step at 100 devices, growing with n."""
    rows = []
    for n, time_s in step_s.items():
        rate = 1000.0 / time_s if time_s else None
        rows.append(
            {
                "scale.size": n,
                "status": "ok" if time_s else "infeasible",
                "best.step_time_s": time_s,
                "best.tokens_per_s": rate,
                "scale.wall_tokens_per_s": rate,
                "scale.device_s_per_token": n / rate if rate else None,
                "scale.exposed_comm_s": (time_s or 0.0) * waits * n / 100,
                "scale.compute_s": (time_s or 0.0) * (1 - waits * n / 100),
                "scale.tokens_per_device": 1000 / n,
            }
        )
    return rows


def amdahl(serial: float) -> list[dict[str, Any]]:
    """Step 1/n of the work plus `serial` of it: E/T is largest where both are equal."""
    return curve({n: 1.0 / n + serial for n in (1, 2, 5, 10, 20, 50, 100)})


@pytest.mark.parametrize(("serial", "at"), [(0.05, 20), (0.1, 10), (0.5, 2), (1e-6, None)])
def test_knee_of_amdahls_law(serial: float, at: int | None) -> None:
    """S^2/n = n / (1 + s n)^2 is largest at n = 1/s."""
    assert knee(amdahl(serial)) == at


def test_more_devices_stop_paying() -> None:
    rows = curve({8: 10.0, 16: 4.0, 32: 2.2, 64: 2.0, 128: 2.5})
    assert fastest(rows) == 64
    assert cheapest(rows) == 16  # 64 device seconds a step; 80 at 8, 70.4 at 32
    assert fastest(curve({8: 10.0, 16: 5.0})) is None
    assert cheapest(curve({8: 10.0, 16: 4.0})) is None
    assert cheapest(curve({8: 10.0})) is None


def test_takeover_is_where_waiting_is_longer_from_there_on() -> None:
    rows = curve(dict.fromkeys((10, 20, 40, 60, 80), 1.0), waits=1.0)  # n % of the step
    found = takeover(rows)
    assert found is not None
    assert (found["scale.size"], found["scale.tokens_per_device"]) == (60, 1000 / 60)
    assert takeover(rows[:3]) is None
    assert takeover(rows[::-1]) is None  # long at the start, not at the end
    assert takeover(rows[3:]) is rows[3]
    said = marks(rows, "devices", "strong")
    assert (said["takeover"], said["critical_tokens_per_device"]) == (60, 1000 / 60)


def test_wall_is_between_what_fits_and_what_does_not() -> None:
    rows = curve({8: 1.0, 16: 2.0, 18: 2.2, 32: None})
    assert wall(rows) == 18
    assert wall(rows[:3]) is None
    assert wall(rows[3:]) is None
    assert marks(rows, "layers", "strong")["wall"] == 18


def test_sizes_without_a_plan_say_nothing() -> None:
    rows = curve({8: None, 16: 4.0, 32: 2.0, 64: 1.8})
    assert fastest(rows) is None
    assert knee(rows) == 32
    assert knee(rows[:3]) is None
