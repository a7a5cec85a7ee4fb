"""What the shipped calibration is worth for runs that its fit had not seen, as it was found.

`scripts/calibrate` writes the file beside the calibration: a fit takes minutes, so `planner
validate` and the page of accuracy read what it said. It holds for the calibration whose hash it
names, and for no other.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.solver.calibration.file import Calibration, rounded
from planner.solver.calibration.intervals import Coverage

FOUND = Path(str(files("planner"))) / "data" / "left_out.json"
"""Where it stands."""
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class FamilyLeftOut:
    """Errors of a family under a fit that left it out; fractions."""

    n: int
    median: float | None
    p90: float | None
    referenced: float | None
    """Median after one reference run of its stack and hardware."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """All that was found."""

    calibration: str
    """Hash of the calibration."""
    families: Mapping[str, FamilyLeftOut]
    """By name."""
    coverage: tuple[Coverage, ...]
    """Of the families left out, by the intervals that the others give: of all, then by regime."""
    families_behind: Mapping[str, tuple[str, ...]]
    """The families that a fitted number rests on, by its name."""

    @property
    def of_one_family(self) -> dict[str, list[str]]:
        """The numbers that rest on one family, by that."""
        out: dict[str, list[str]] = {}
        for name, families in self.families_behind.items():
            if len(families) == 1:
                out.setdefault(families[0], []).append(name)
        return dict(sorted(out.items()))

    def to_json(self) -> dict[str, Any]:
        """Return the document of the file."""
        return {
            "schema_version": SCHEMA_VERSION,
            "calibration": self.calibration,
            "families": {name: _short(asdict(x)) for name, x in self.families.items()},
            "coverage": [_short(asdict(one)) for one in self.coverage],
            "families_behind": {name: list(x) for name, x in self.families_behind.items()},
        }

    def to_text(self) -> str:
        """Return the text of the file: the same bytes for the same findings."""
        return json.dumps(self.to_json(), indent=1) + "\n"


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rounded(x, 4) if isinstance(x, float) else x for name, x in values.items()}


def read_left_out(calibration: Calibration, path: Path = FOUND) -> LeftOut | None:
    """Return what was found for a calibration; None where nothing was found for this one."""
    if not path.is_file():
        return None
    data = json.loads(path.read_text(encoding="utf-8"))
    if data["calibration"] != calibration.content_hash:
        return None
    return LeftOut(
        data["calibration"],
        {name: FamilyLeftOut(**x) for name, x in data["families"].items()},
        tuple(Coverage(**one) for one in data["coverage"]),
        {name: tuple(x) for name, x in data["families_behind"].items()},
    )
