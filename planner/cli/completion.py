"""Completions of the shell: examples, GPU names, saved plans, frameworks, columns of the table.

Typer asks while somebody types, so modules are imported where they are used.
"""

import re

USUAL_COUNTS = (8, 64, 512)
"""GPUs that are offered where no number is typed yet."""


def complete_models(incomplete: str) -> list[str]:
    """Return the example models that begin with what is typed; the shell adds files."""
    from planner.specs.examples import example_names

    return [name for name in example_names("model") if name.startswith(incomplete)]


def clusters(incomplete: str) -> list[str]:
    """Return clusters that begin with what is typed: examples, and `64xNAME` for every GPU."""
    from hardware.catalogue import load_catalogue
    from planner.specs.examples import example_names

    examples = [name for name in example_names("cluster") if name.startswith(incomplete)]
    typed = re.match(r"(\d+)x", incomplete)
    counts = [typed[1]] if typed else [str(n) for n in USUAL_COUNTS if incomplete]
    gpus = load_catalogue().accelerators
    words = (f"{count}x{name}" for count in counts for name in gpus)
    return examples + [word for word in words if word.startswith(incomplete)]


def plans(incomplete: str) -> list[tuple[str, str]]:
    """Return the plans of the last result that begin with what is typed, with their layouts."""
    from planner.errors import PlannerError
    from planner.render.card.sentences import degrees_words
    from planner.solver.answer.result_store import read_result
    from planner.specs.search.axis_values import layout_from_json

    try:
        saved = read_result("last")["plans"]
    except PlannerError:
        return []
    named = [
        (name, degrees_words(layout_from_json(plan["layout"])))
        for plan in saved
        for name in (f"last#{plan['rank']}", plan["plan_id"])
    ]
    return [item for item in named if item[0].startswith(incomplete)]


def complete_frameworks(incomplete: str) -> list[str]:
    """Return the frameworks that begin with what is typed."""
    from searches.frameworks.registry import ANY, DEFAULT, framework_names

    names = (*framework_names(), ANY, DEFAULT)
    return [name for name in names if name.startswith(incomplete)]


def columns(incomplete: str) -> list[str]:
    """Return the columns of the table; what stands before the last comma stays."""
    from planner.render.answers.plan_table import ALL, known_columns

    before, comma, part = incomplete.rpartition(",")
    names = (*known_columns(), *([] if comma else [ALL]))
    return [f"{before}{comma}{name}" for name in names if name.startswith(part)]


def complete_parts(incomplete: str) -> list[str]:
    """Return the parts of the catalogue that begin with what is typed."""
    from hardware.catalogue import load_catalogue

    return [name for name in load_catalogue().names() if name.startswith(incomplete)]


def rules(incomplete: str) -> list[tuple[str, str]]:
    """Return the codes of rules that begin with what is typed, with their titles."""
    from planner.analyze.catalogue import rules_json

    codes = ((rule["code"], rule["title"]) for rule in rules_json("")["rules"])
    return [item for item in codes if item[0].startswith(incomplete.upper())]


def questions(incomplete: str) -> list[str]:
    """Return the questions of `recommend` that begin with what is typed."""
    from planner.analyze.recommend.questions import QUESTIONS

    return [name for name in QUESTIONS if name.startswith(incomplete)]


def objectives(incomplete: str) -> list[str]:
    """Return the objectives that begin with what is typed."""
    from planner.specs.search.objectives import OBJECTIVES

    return [name for name in OBJECTIVES if name.startswith(incomplete)]
