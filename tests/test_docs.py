"""The documentation: complete, linked, current, and right in every number that it works out."""

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest
import yaml

import planner
from costmodels.documentation.terms import TERMS
from planner.analyze.recommend.questions import QUESTIONS
from planner.specs.loader import cluster_from_dict, model_from_dict
from searches.rules import RULES
from tests.planner.analyze.test_recommend import answer

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
NAMES = [str(page.relative_to(DOCS)) for page in PAGES]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOCAL = re.compile(r"(?<![\w./~-])/(?:[a-z]+/)+\w|\bfile://")
"""A path of somebody's machine: places that a reader of the repository does not have."""


def docs_generator():
    """The script that writes the generated parts, imported from the docs folder."""
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _links(page: Path) -> list[str]:
    """Relative link targets of a page, outside code blocks, without anchors."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [x.split("#")[0] for x in LINK.findall(text) if "://" not in x and x.split("#")[0]]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_worked_numbers(page):
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    examples = "\n".join(block for block in blocks if ">>>" in block)
    test = doctest.DocTestParser().get_doctest(examples, {}, page.name, str(page), 0)
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)


BASIS = ("parameters", "flops", "collectives", "placement")


@pytest.mark.parametrize("term", [*TERMS, *BASIS])
def test_every_term_has_its_page_with_a_worked_number(term):
    text = (DOCS / "terms" / f"{term}.md").read_text(encoding="utf-8")
    for part in (
        "## Equation",
        "## Worked number",
        "## Source" if term in BASIS else "| source |",
    ):
        assert part in text
    assert ">>>" in text
    if term in TERMS:
        assert text.startswith(f"# {term}: ")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_resolve(page):
    broken = [target for target in _links(page) if not (page.parent / target).exists()]
    assert not broken


def test_every_page_is_reached_from_the_index():
    reached, open_pages = set(), [DOCS / "index.md"]
    while open_pages:
        page = open_pages.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            open_pages += [(page.parent / target).resolve() for target in _links(page)]
    assert not set(PAGES) - reached


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_name_no_local_paths(page):
    assert not LOCAL.findall(page.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_generated_parts_are_current():
    for path, text in docs_generator().pages().items():
        current = path.read_text(encoding="utf-8")
        assert current == text, f"{path.name} is not current: run python docs/generate.py"


def test_every_rule_is_explained():
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert not [code for code in RULES if f"## {code}" not in text]


def _keys(value: object) -> set[str]:
    """Every key of nested JSON, free-form inputs left out."""
    if isinstance(value, dict):
        free = {"inputs", "time"}
        inner = (_keys(v) for k, v in value.items() if k not in free)
        return set(value).union(*inner)
    return set().union(*(_keys(v) for v in value)) if isinstance(value, list) else set()


def test_the_files_shown_are_read_without_a_problem():
    shown = re.findall(
        r"^```yaml\n(.*?)^```$", (DOCS / "files.md").read_text(encoding="utf-8"), re.M | re.S
    )
    assert len(shown) == 8
    model = yaml.safe_load(shown[0])
    for text in shown:
        data = yaml.safe_load(text)
        data = {**model, **data} if "search" in data else data  # a section of that file
        read = model_from_dict if "model" in data else cluster_from_dict
        assert read(data).document


@pytest.mark.slow
def test_every_field_of_a_result_is_described():
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    pins = {"tp": 4, "pp": 2}
    keys = _keys(
        planner.solve("llama3-70b", "h100-x512", top=1, pins={"tp": 8, "pp": 4}).to_json()
    )
    keys |= _keys(planner.solve("llama3-70b", "h100-x8", top=1, pins=pins).to_json())
    assert not [key for key in sorted(keys) if f"`{key}`" not in text]


def test_every_field_of_a_comparison_and_of_neighbours_is_described(tmp_path):
    from planner.analyze.comparison import compare
    from planner.analyze.single_changes import plan_changes
    from planner.solver.answer.result_store import open_plan

    text = (DOCS / "looking.md").read_text(encoding="utf-8")
    path = tmp_path / "result.json"
    path.write_text(planner.solve("llama3-8b", "h100-x8", top=2).dumps(), encoding="utf-8")
    one, two = open_plan(f"{path}#1"), open_plan(f"{path}#2")
    keys = set(compare(one, two).to_json())
    found = plan_changes(one[2], one[3]).to_json()
    keys |= set(found).union(*found["changes"])
    assert not [key for key in sorted(keys) if f"`{key}`" not in text]


def _corrections() -> dict[str, str]:
    """The corrections by title."""
    text = (DOCS / "corrections.md").read_text(encoding="utf-8")
    found = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], (text.split("\n## ")[0] for text in found[2::2]), strict=True))


@pytest.mark.parametrize("title", _corrections())
def test_every_correction_calls_the_function_that_it_names(title):
    text = _corrections()[title]
    for part in ("- Seen: ", "- Where: ", "- Right: ", "- Error: ", "- Ours: "):
        assert f"\n{part}" in text
    named = re.findall(r"`((?:costmodels|hardware)\.[\w.]+)`", text.split("- Ours: ")[1])
    assert named
    for name in named:
        assert callable(pkgutil.resolve_name(name)), name
    code = "".join(BLOCK.findall(text))
    assert ">>>" in code
    functions = [name.rpartition(".")[2] for name in named]
    # `transfers` is reached through the breakdown of a plan
    assert any(f"{name}(" in code or f").{name}" in code for name in functions)


@pytest.mark.slow
def test_every_field_of_a_recommendation_is_described():
    text = (DOCS / "recommend.md").read_text(encoding="utf-8")
    for question in set(QUESTIONS) - {"rank"}:  # which asks about adapters, and has one field
        data = answer(question).to_json()
        keys = set(data) | _keys(data["answer"])
        assert not [key for key in sorted(keys) if f"`{key}`" not in text]


def test_source_names_in_rules_exist():
    # Rules name pages of the documentation as their source.
    named = [rule.source for rule in RULES.values()]
    pages = [
        word.strip(",") for text in named for word in text.split() if word.startswith("docs/")
    ]
    assert pages
    assert all((ROOT / page).is_file() for page in pages)


def test_case_studies_are_what_the_script_writes():
    text = (DOCS / "case-studies.md").read_text(encoding="utf-8")
    entries = yaml.safe_load((DOCS / "case_studies" / "layouts.yaml").read_text(encoding="utf-8"))
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == [x["title"] for x in entries]
    assert "Not priced" not in text
    last = entries[-1]
    plan = planner.evaluate(
        last["model"], last["cluster"], pins=last["pins"], framework="any"
    ).best
    assert f"| {plan.step_time_s:.2f} | {plan.mfu:.1%} |" in text
