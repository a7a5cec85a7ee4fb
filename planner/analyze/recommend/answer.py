"""The answer to one of the inverse questions of `planner recommend`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.documents import LibraryAnswer
from planner.solver.answer.result import SCHEMA_VERSION, Plan


@dataclass(frozen=True, slots=True)
class Recommendation(LibraryAnswer):
    """What was asked, what the answer is, how it was found, and the plan that shows it."""

    question: str
    """One of `planner.analyze.recommend.questions.QUESTIONS`."""
    result_id: str
    inputs: Mapping[str, Any]
    calibration: Mapping[str, Any]
    answer: Mapping[str, Any] | None
    """Figures by name in base units; None when there is no answer in the range."""
    scope: str
    """What was searched and why the answer is the extreme of it, in a sentence."""
    n_tried: int
    """Problems for which it was searched whether anything fits."""
    plan: Plan | None
    """The first plan at the answer."""
    command: str = ""
    """The `planner solve` command of that plan."""
    notes: tuple[str, ...] = ()
    """What was assumed and left out when the model was read from another format."""

    @property
    def exit_code(self) -> int:
        """What the command line returns: 0, or 3 when there is no answer."""
        return 0 if self.answer is not None else 3

    def to_json(self) -> dict[str, Any]:
        """Return the answer with the field names of docs/recommend.md."""
        return {
            "schema_version": SCHEMA_VERSION,
            "result_id": self.result_id,
            "question": self.question,
            "inputs": dict(self.inputs),
            "calibration": dict(self.calibration),
            "answer": None if self.answer is None else dict(self.answer),
            "scope": self.scope,
            "n_tried": self.n_tried,
            "command": self.command,
            "plan": self.plan.to_json() if self.plan else None,
            "notes": list(self.notes),
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same inputs."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
