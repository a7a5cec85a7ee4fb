"""The comparison with recipes as text and as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.measure.recipes.court import Compared
from planner.measure.recipes.report import RecipesReport, recipe_totals
from planner.units import GIB

TITLES = (
    "recipe",
    "tp pp cp ep",
    "step s",
    "fits",
    "place",
    "over first",
    "printed s",
    "error",
    "first of ours",
)


def recipes_text(report: RecipesReport) -> str:
    """Return the totals and the table, as lines."""
    rows = [_cells(one) for one in report.priced]
    widths = [max(len(row[i]) for row in (TITLES, *rows)) for i in range(len(TITLES))]
    lines = [*summary_lines(report), ""]
    for row in (TITLES, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    lines += ["", "not priced:"]
    lines += [f"  {x.recipe.name}: {'; '.join(x.missing)}" for x in report.compared if x.missing]
    return "\n".join(lines) + "\n"


def recipes_markdown(report: RecipesReport) -> str:
    """Return the totals and the table as Markdown."""
    lines = [f"- {line}" for line in summary_lines(report)]
    table = [_row(TITLES), "|" + "---|" * 2 + "---:|" * 6 + "---|"]
    table += [_row(_cells(one)) for one in report.priced]
    counted = recipe_totals(report)
    parts = ["\n".join(lines), "\n".join(table)]
    if counted["not_priced"]:
        title = "Settings that are on in recipes and have no price here"
        parts.append(_counts(title, counted["not_priced"]))
    if counted["missing"]:
        parts.append(_counts("Recipes that are not priced, for want of", counted["missing"]))
    return "\n\n".join(parts) + "\n"


def _counts(title: str, counts: Mapping[str, int]) -> str:
    lines = [_row((title, "recipes")), "|---|---:|"]
    return "\n".join(lines + [_row((text, str(n))) for text, n in counts.items()])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def summary_lines(report: RecipesReport) -> list[str]:
    """Return the totals as sentences."""
    counted: Mapping[str, Any] = recipe_totals(report)
    agree, timed = counted["agree"], counted["measured"]
    lines = [
        f"{counted['n_priced']} of {counted['n_recipes']} recipes are priced;"
        f" {counted['n_not_fitting']} of them do not fit by our count"
    ]
    if agree["share"] is not None:
        lines.append(
            f"{agree['n']} agree ({agree['share']:.0%}, asked {agree['asked']:.0%}): their"
            f" (tp, pp, cp, ep) is among our first {agree['first']} different layouts, or within"
            f" {agree['near']:.0%} of our first"
        )
        shares = [(x, agree[f"share_of_{x}"]) for x in ("dense", "moe")]
        lines[-1] += "".join(f"; {x} {share:.0%}" for x, share in shares if share is not None)
    if counted["n_overlooked"]:
        lines.append(
            f"{counted['n_overlooked']} fit and are faster than the first plan that the search"
            " comes to"
        )
    if timed["n"]:
        lines.append(
            f"{timed['n']} have a printed time: median error {timed['median_ape']:.1%} (asked"
            f" {timed['asked']:.0%}), {timed['n_inside']} inside the interval,"
            f" {timed['n_not_fitting']} said not to fit; our best is no slower in"
            f" {timed['n_best_no_slower']}"
        )
    return lines


def _cells(one: Compared) -> tuple[str, ...]:
    plan, measured = one.plan, one.recipe.measured
    assert plan is not None
    degrees = plan.layout.tp, plan.layout.pp, plan.layout.cp, plan.layout.ep
    lacking = f"{one.lacking_bytes / GIB:.1f} GiB over"
    marks = {True: "", False: " out", None: ""}
    return (
        one.recipe.name.removesuffix("_config"),
        " ".join(map(str, degrees)),
        f"{plan.step_time_s:.3f}",
        "yes" if one.fits else lacking,
        str(one.rank) if one.rank else "-",
        f"{one.regret:+.1%}" if one.regret is not None else "-",
        f"{measured[0]:.3f}" if measured else "",
        f"{one.error:+.1%}{marks[one.is_inside]}" if one.error is not None else "",
        " ".join(map(str, one.first[0].degrees)) if one.first else "nothing fits",
    )
