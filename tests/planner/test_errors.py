import ast
import subprocess
import sys
from pathlib import Path

import pytest

import planner
from planner import errors
from planner.errors import DETAILS, BadValue, InputProblem, PlannerError, SpecError, UsageError
from planner.option_names import option


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("PlannerError", 1),
        ("SpecError", 1),
        ("CatalogError", 1),
        ("SearchError", 1),
        ("EmitError", 1),
        ("InfeasibleError", 3),
        ("UsageError", 2),
    ],
)
def test_every_error_is_in_the_tree_and_has_an_exit_code(name, code):
    error = getattr(errors, name)
    assert issubclass(error, PlannerError)
    assert error.exit_code == code
    assert f"{name} " in errors.__doc__


def test_a_problem_reads_as_one_block():
    problem = InputProblem(
        "unknown accelerator 'h1000'", "did you mean h100?", "c.yaml", 7, 12, "pools.0"
    )
    assert str(problem) == (
        "c.yaml:7:12: pools.0: unknown accelerator 'h1000'\n  fix: did you mean h100?"
    )
    assert str(InputProblem("is empty", file="c.yaml")) == "c.yaml: is empty"
    assert str(InputProblem("bad", file="c.yaml", line=3)) == "c.yaml:3: bad"
    assert str(InputProblem("bad", path="a.b")) == "a.b: bad"


def test_a_spec_error_lists_ten_problems_and_counts_the_rest():
    error = SpecError([InputProblem(f"p{i}") for i in range(13)])
    assert len(error.problems) == 13
    lines = str(error).splitlines()
    assert lines[0] == "p0"
    assert lines[9:] == ["p9", "... and 3 more"]
    assert error.message == "p0"


def test_a_planner_error_shows_its_fix():
    assert str(PlannerError("wrong", "do right")) == "wrong\n  fix: do right"
    assert str(BadValue("wrong", "do right")) == "wrong; do right"


def test_the_light_modules_import_neither_pydantic_nor_numpy():
    code = (
        "import sys, planner.errors, planner.units, planner.specs.yaml.document;"
        "print([m for m in ('pydantic', 'numpy', 'ortools', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class TestCodes:
    def test_every_error_has_a_kind_a_place_and_a_field(self):
        refused = UsageError(option("max") + ": recompute has no order", "", code="bad-value")
        assert (refused.code, refused.field) == ("bad-option.bad-value", "at_most")
        assert refused.location is None
        wrong = SpecError(InputProblem("is wrong", "", "c.yaml", 7, 18, "pools.0.nodes"))
        assert (wrong.code, wrong.field) == ("bad-specification", "pools.0.nodes")
        assert str(wrong.location) == "c.yaml:7:18"

    def test_the_second_words_of_all_codes_are_explained(self):
        words = {
            keyword.value.value
            for path in Path(planner.__file__).parent.rglob("*.py")
            if "code=" in (text := path.read_text())
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error")
            for keyword in node.keywords
            if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
        }
        assert words <= DETAILS.keys()
        assert DETAILS.keys() - words <= {"file"}  # `FileError` has it of itself
