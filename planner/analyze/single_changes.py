"""All single changes of a plan, and the best of them: what `planner neighbours` answers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.problem import Problem
from planner.analyze.catalogue import rule_title
from planner.analyze.neighborhood import SingleChange, single_changes
from planner.documents import LibraryAnswer
from planner.solver.answer.result import Plan
from planner.specs.search.axis_values import layout_to_json

CLOSED: Mapping[str, object] = {
    "tp_overlap": False,
    "optimizer_offload": False,
    "activation_offload_layers": 0,
    "offload_modules": "none",
    "hpz": 1,
}
"""Axes that a search leaves at this value unless they are named: what decides is known less well.
"""


@dataclass(frozen=True, slots=True)
class SingleChanges(LibraryAnswer):
    """The changes of a plan, legal or not, axis by axis."""

    plan: Plan
    changes: tuple[SingleChange, ...]
    framework: str
    """Whose rules they keep; `any` where those of none."""

    @property
    def best(self) -> SingleChange | None:
        """The fastest change that fits, if any is faster than a plan that fits.

        Of those that a search tries; where the plan does not fit and none of these makes it fit,
        of all.
        """
        return self._fastest(is_searched=True)

    @property
    def best_unsearched(self) -> SingleChange | None:
        """The same of the changes that open an axis which a search keeps closed."""
        return self._fastest(is_searched=False)

    def _fastest(self, *, is_searched: bool) -> SingleChange | None:
        plan = self.plan
        fits = plan.headroom_frac >= 0
        fitting = [
            (c.near.step_s, c)
            for c in self.changes
            if c.near and c.near.peak_bytes <= plan.usable_bytes
        ]
        own = [x for x in fitting if (x[1].new == CLOSED.get(x[1].axis, x[1].new)) == is_searched]
        if not fits and is_searched:
            own = own or fitting
        if not own:
            return None
        step_s, change = min(own, key=lambda x: x[0])
        return change if step_s < plan.step_time_s * (1 - 1e-9) or not fits else None

    def to_json(self) -> dict[str, Any]:
        """Return the changes: seconds, bytes, fractions."""
        plan = self.plan
        return {
            "plan_id": plan.plan_id,
            "framework": self.framework,
            "step_time_s": plan.step_time_s,
            "peak_bytes": round(plan.breakdown.peak_bytes),
            "usable_bytes": round(plan.usable_bytes),
            "changes": [_change_json(plan, change) for change in self.changes],
        }

    def dumps(self) -> str:
        """Return the JSON text: the same bytes for the same plan."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


def plan_changes(
    problem: Problem, plan: Plan, framework: str = "any", recipes: Sequence[str] = ()
) -> SingleChanges:
    """Return the changes of a plan; the arguments as in `neighborhood.single_changes`."""
    changes = single_changes(problem, plan.layout, framework, recipes)
    return SingleChanges(plan, changes, framework)


def _change_json(plan: Plan, change: SingleChange) -> dict[str, Any]:
    data: dict[str, Any] = {"axis": change.axis, "old": change.old, "new": change.new}
    if change.near is None:
        return data | {"legal": False, "rule": change.rule, "why_not": rule_title(change.rule)}
    near = change.near
    return data | {
        "legal": True,
        "step_time_s": near.step_s,
        "delta_s": near.step_s - plan.step_time_s,
        "delta_frac": near.step_s / plan.step_time_s - 1.0,
        "peak_bytes": round(near.peak_bytes),
        "fits": near.peak_bytes <= plan.usable_bytes,
        "layout": layout_to_json(near.layout),
    }
