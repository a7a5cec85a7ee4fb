"""docs/sailor.md, written of the kept table."""

from pathlib import Path
from typing import Any

from tools.sailor.measured import DOUBTFUL, errors

INTRO = """# Beside Sailor

[Sailor](https://github.com/eth-easl/sailor) (SOSP 25) plans training over unlike GPUs and several
zones. Its repository ships profiles, a simulator, a planner and the planners of others. This page
plans its scenarios with an exact search over its own family of plans and scores every plan by
**its** simulator, run as it is from commit `{commit}`. `scripts/compare_sailor` makes the table;
`tools/sailor/kept.json` holds it, and a test finds our plans again from
`tools/sailor/profiles.json` without the checkout.

- The family: replicas of the model in equal number at every stage, one micro-batch, any split of
  the layers, any tensor parallelism on each stage, stages on either part or over both. Sailor
  looks at one split for each number of stages, and at one tensor parallelism for each part and
  stage.
- The search is that of `tools/sailor/search.py`: stages are put together from the last, with a
  bound. It stands apart from `planner solve`: the product prices jobs by its own model, with
  shares of the batch that Sailor's simulator cannot score, so it is not asked for these plans.
- *Gap* is what the bound leaves open: no plan of the family is better than ours by more. The
  bound of a job over several zones takes the fastest link of a region for all, which leaves more
  open than there is.
- *Seconds* are those of a machine of two cores with a lot of other work on it. Of ours all is
  counted, in CPU seconds of one thread and in seconds that passed; of Sailor's its search, in
  seconds that passed, and in brackets the tables that it makes before.
"""

MEASURED = """
## Measured plans

{n} plans that Sailor's authors ran, with the step that they measured. Its simulator and our
schedule (`tools/sailor/measured.py`: 1F1B with messages that are waited for) read the same
profiles; nothing is fitted. Written anew in `tools/sailor/step.py`, the simulator's own formulas
give its predictions to rounding.
"""

SLOW = """
On the slow network of the third set (0.1 GB/s) messages take as long as layers, and waiting
for all of them is too much: Sailor's simulator, which counts fewer on the first stage, is nearer.
"""


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(x) for x in cells) + " |"


def _value(one: dict[str, Any], objective: str) -> float:
    return float(one["step_s"] if objective == "time" else one["cost"])


def _cell(one: dict[str, Any] | None, objective: str) -> str:
    if one is None:
        return "not run"
    if "reason" in one:
        return str(one["reason"])
    return f"{one['step_s']:.3f} s" if objective == "time" else f"{one['cost']:.4f} USD"


def _plans(document: dict[str, Any]) -> list[str]:
    lines = [
        "## Plans",
        "",
        "Step time by Sailor's simulator; where cost is asked for, US dollars a step.",
        "",
        _row("scenario", "Sailor", "ours", "faster by", "gap", "Sailor: search (tables)", "ours"),
        _row(*["---"] * 2, *["---:"] * 5),
    ]
    counts, sooner = {"better": 0, "equal": 0, "worse": 0}, [0, 0]
    for x in document["rows"]:
        own, theirs = x["planners"]["ours"], x["planners"].get("SAILOR")
        objective = x["objective"]
        gain = took = "—"
        if theirs and "step_s" in theirs and "step_s" in own:
            frac = 1.0 - _value(own, objective) / _value(theirs, objective)
            counts["equal" if abs(frac) < 1e-9 else "better" if frac > 0 else "worse"] += 1
            alone_s = theirs["search_s"]
            sooner[0] += own["search_s"] < alone_s
            sooner[1] += own["search_s"] < alone_s + theirs.get("tables_s", 0.0)
            gain = "equal" if abs(frac) < 1e-9 else f"{frac:.2%}"
        if theirs and "search_s" in theirs:
            took = f"{theirs['search_s']:.1f} s ({theirs.get('tables_s', 0.0):.0f} s)"
        lines.append(
            _row(
                x["scenario"],
                _cell(theirs, objective),
                _cell(own, objective),
                gain,
                f"{own['gap_frac']:.1%}" if own.get("gap_frac") else "proven",
                took,
                f"{own['cpu_s']:.1f} s CPU, {own['search_s']:.1f} s",
            )
        )
    said = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    return [
        *lines,
        "",
        f"Of the {sum(counts.values())} scenarios in which both found a plan: {said}. All of our"
        f" search took less time than Sailor's with its tables in {sooner[1]}, than its search"
        f" alone in {sooner[0]}.",
    ]


def _baselines(document: dict[str, Any]) -> list[str]:
    names: list[str] = []
    for x in document["rows"]:
        names += [k for k in x["planners"] if k not in (*names, "ours", "SAILOR")]
    lines = [
        "",
        "## What Sailor ships beside its own",
        "",
        "The same simulator; one run each, as long as the cell says. An empty cell was not run.",
        "",
        _row("scenario", "ours", *names),
        _row("---", *["---:"] * (1 + len(names))),
    ]
    for x in document["rows"]:
        found = [x["planners"].get(k) for k in names]
        if any(found):
            cells = [_cell(one, x["objective"]) if one else "" for one in found]
            lines.append(_row(x["scenario"], _cell(x["planners"]["ours"], x["objective"]), *cells))
    lines.append("")
    for name, reason in document["not_run"].items():
        lines.append(f"{name} is not run: {reason}.")
    return lines


def _measured(document: dict[str, Any]) -> list[str]:
    rows = document.get("measured", [])
    if not rows:
        return []
    theirs, own = errors(rows, "sailor_s"), errors(rows, "ours_s")
    lines = [
        *MEASURED.format(n=len(rows)).splitlines(),
        "",
        _row("median absolute error", "Sailor's simulator", "ours"),
        _row("---", "---:", "---:"),
        *(_row(k, f"{theirs[k]:.1%}", f"{own[k]:.1%}") for k in theirs),
        "",
        *SLOW.splitlines()[1:],
        "",
        _row(
            "plan", "stages", "replicas", "mbs", "batch", "measured", "Sailor's simulator", "ours"
        ),
        _row("---", *["---:"] * 7),
    ]
    for x in rows:
        mark = " \\*" if x["plan"] in DOUBTFUL else ""
        real = x["measured_s"]
        cells = [f"{x[k]:.3f} s ({x[k] / real - 1:+.1%})" for k in ("sailor_s", "ours_s")]
        figures = [x[k] for k in ("pp", "replicas", "mbs", "batch")]
        lines.append(_row(x["plan"] + mark, *figures, f"{real:.3f} s", *cells))
    lines += ["", "\\* left out of the medians:", ""]
    lines += [f"- {name}: {reason}" for name, reason in DOUBTFUL.items()]
    return lines


def page(document: dict[str, Any]) -> str:
    """Return the page of the kept table."""
    lines = [
        *INTRO.format(commit=document["commit"]).splitlines(),
        "",
        *_plans(document),
        *_baselines(document),
        *_measured(document),
    ]
    return "\n".join(lines) + "\n"


def write_page(document: dict[str, Any], path: Path) -> None:
    """Write the page."""
    path.write_text(page(document))
