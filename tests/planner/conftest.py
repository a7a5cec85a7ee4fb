"""What tests of several folders share."""

import fcntl
import pickle
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from planner.measure.validate.rows import Row, Used


def price_shipped(*sources: str) -> "tuple[Row, ...]":
    """Return the measured runs that ship, priced: of some families, or of all."""
    from planner.measure.validate.points import read_measured_points
    from planner.measure.validate.report import DATA, read_entries
    from planner.measure.validate.rows import price_points

    points = [
        p for p in read_measured_points(DATA / "points.csv") if not sources or p.source in sources
    ]
    entries = (read_entries(DATA / name) for name in ("models.yaml", "hardware.yaml"))
    return price_points(points, *entries)


@pytest.fixture(scope="session")
def shipped_rows(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> "tuple[Row, ...]":
    """All of them: a minute of a core, so the first worker writes what the others read."""
    if worker_id == "master":
        return price_shipped()
    file = tmp_path_factory.getbasetemp().parent / "shipped_rows.pickle"
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if file.exists():
            return tuple(pickle.loads(file.read_bytes()))
        rows = price_shipped()
        file.write_bytes(pickle.dumps(rows))
    return rows


@pytest.fixture(scope="session")
def shipped_runs(shipped_rows: "tuple[Row, ...]") -> "tuple[Used, ...]":
    """Every layout of them once, with the median of its measurements."""
    from planner.measure.validate.rows import use

    return use(shipped_rows)
