"""All recipes of a table beside the planner: totals, and JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from planner.frameworks.bridge.recipe_table import BridgeRecipe
from planner.measure.recipes.court import (
    N_FIRST,
    NEAR_FRAC,
    Compared,
    RecipeSearches,
    compare_recipe,
)
from planner.solver.calibration.file import Calibration
from planner.specs.progress import Progress
from planner.specs.search.axis_values import layout_to_json

SHARE_ASKED, ERROR_ASKED = 0.8, 0.12
"""What the totals are held against: recipes that agree, median error of printed times."""


@dataclass(frozen=True, slots=True)
class RecipesReport:
    """What `planner validate --recipes` says."""

    calibration: Calibration
    """The numbers that priced the recipes."""
    compared: tuple[Compared, ...]

    @property
    def priced(self) -> tuple[Compared, ...]:
        """Recipes that are read and priced."""
        return tuple(one for one in self.compared if one.plan)

    def to_json(self) -> dict[str, Any]:
        """Return the report: seconds, bytes, shares."""
        return {
            "schema_version": 1,
            "calibration": {
                "name": self.calibration.name,
                "hash": self.calibration.content_hash,
                "anchored": self.calibration.anchored,
            },
            "recipes": [recipe_json(one) for one in self.compared],
            "totals": recipe_totals(self),
        }


def recipes_report(
    recipes: Sequence[BridgeRecipe], calibration: Calibration, progress: Progress = None
) -> RecipesReport:
    """Return every recipe compared: a third of a second each; `progress` is told how many are."""
    searches, compared = RecipeSearches(calibration), []
    for i, recipe in enumerate(recipes, start=1):
        compared.append(compare_recipe(recipe, searches))
        if progress is not None:
            progress(i, len(recipes))
    return RecipesReport(calibration, tuple(compared))


def recipe_json(one: Compared) -> dict[str, Any]:
    """Return one recipe; what is not known is null."""
    recipe, plan, measured = one.recipe, one.plan, one.recipe.measured
    axes = recipe.axes
    out: dict[str, Any] = {
        "recipe": recipe.name,
        "model": recipe.row["model"],
        "hardware": recipe.row["hardware"],
        "n_devices": recipe.number("n_gpus"),
        "precision": recipe.row["precision"],
        "missing": list(one.missing),
        "not_priced": list(axes.not_priced),
        "layout": plan and layout_to_json(plan.layout),
        "fits": one.fits,
        "lacking_bytes": round(one.lacking_bytes) if plan else None,
        "peak_bytes": plan and round(plan.breakdown.peak_bytes),
        "usable_bytes": plan and round(plan.usable_bytes),
        "predicted_s": plan and plan.step_time_s,
        "predicted_p10_s": plan and plan.step_time_p10_s,
        "predicted_p90_s": plan and plan.step_time_p90_s,
        "measured_s": measured and measured[0],
        "measured_in": measured and measured[1],
        "error": one.error,
        "inside": one.is_inside,
        "regret": one.regret,
        "rank": one.rank,
        "ratio": one.ratio,
        "agrees": one.agrees if plan else None,
        "best_no_slower": one.is_best_no_slower,
        "first": [
            {"step_time_s": x.step_s, "layout": layout_to_json(x.layout)} for x in one.first
        ],
    }
    return out


def recipe_totals(report: RecipesReport) -> dict[str, Any]:
    """Return counts, the share that agrees, errors of printed times, by what they are asked."""
    priced = report.priced
    timed = [one for one in priced if one.error is not None]
    errors = [abs(one.error) for one in timed if one.error is not None]
    missing = Counter(reason for one in report.compared for reason in one.missing)
    left_out = Counter(text for one in priced for text in one.recipe.axes.not_priced)
    return {
        "n_recipes": len(report.compared),
        "n_priced": len(priced),
        "missing": dict(sorted(missing.items(), key=lambda x: (-x[1], x[0]))),
        "not_priced": dict(sorted(left_out.items(), key=lambda x: (-x[1], x[0]))),
        "n_not_fitting": sum(not one.fits for one in priced),
        "n_overlooked": sum(one.is_overlooked for one in priced),
        "agree": {
            "first": N_FIRST,
            "near": NEAR_FRAC,
            "n": sum(one.agrees for one in priced),
            "share": _share([one.agrees for one in priced]),
            "share_of_dense": _share([x.agrees for x in priced if not x.recipe.model.get("moe")]),
            "share_of_moe": _share([x.agrees for x in priced if x.recipe.model.get("moe")]),
            "asked": SHARE_ASKED,
        },
        "measured": {
            "n": len(timed),
            "n_not_fitting": sum(not one.fits for one in timed),
            "median_ape": median(errors) if errors else None,
            "asked": ERROR_ASKED,
            "n_inside": sum(bool(one.is_inside) for one in timed),
            "n_best_no_slower": sum(bool(one.is_best_no_slower) for one in timed),
        },
    }


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None
