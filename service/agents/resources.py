"""Resources: pages of the documentation, examples, results that were kept."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from planner.errors import FileError
from planner.specs.examples import example_content, example_names
from planner.specs.yaml.faults import Kind
from service.agents.results import Results

SCHEME = "planner://"
PAGES: Mapping[str, str] = {
    "SKILL": "How an agent uses planner: which tool for which question, units, refusals",
    "agents": "Tools, resources, set-up of clients, the evaluation",
    "questions": "Ten questions that people ask, a command each",
    "results": "Answers: the table, the JSON, plan ids, exit codes",
    "files": "Model and cluster files: every field, unit and default",
    "search": "Axes of a layout, how plans are enumerated, pruned and ranked",
    "rules": "Every reason for which a layout is not in the answer",
    "objectives": "Cost, energy, goodput, fewest devices, deadlines, fronts",
    "recommend": "Inverse questions",
    "scale": "Scaling curves: knee, break-even, walls",
    "check": "Existing runs judged",
    "explain": "What binds a plan, what would relax it",
    "replan": "Nodes lost or gained",
    "emit": "Files for frameworks",
    "finetuning": "LoRA, QLoRA, DPO, packed samples",
    "memory": "What fills a device",
    "learn": "Calculators",
    "errors": "Errors and their codes",
    "glossary": "Terms, units, directions",
}
"""Pages of docs/ that agents can read, by name without `.md`."""
KINDS: tuple[Kind, Kind] = ("model", "cluster")


def page_path(name: str) -> Path | None:
    """Return where a page lies: inside the package (wheel) or in docs (checkout)."""
    package = Path(str(files("planner")))
    checkout = package.parent
    places = (package / "docs", checkout / "docs", checkout)
    found = (place / f"{name}.md" for place in places)
    return next((path for path in found if path.is_file()), None)


def resource_list(results: Results) -> list[tuple[str, str, str]]:
    """Return address, name, MIME type of every resource: pages, examples, over stdio results."""
    pages = [
        (f"{SCHEME}docs/{name}", about, "text/markdown")
        for name, about in PAGES.items()
        if page_path(name)
    ]
    examples = [
        (f"{SCHEME}examples/{kind}s/{name}", f"Example of a {kind} file: {name}", "text/yaml")
        for kind in KINDS
        for name in example_names(kind)
    ]
    # Over HTTP callers are strangers to each other: who asked knows the id of the answer.
    kept = [
        (f"{SCHEME}results/{result_id}", f"Result {result_id}", "application/json")
        for result_id in (results.ids() if results.shares_cache else ())
    ]
    return [*pages, *examples, *kept]


def read_resource(address: str, results: Results) -> tuple[str, str]:
    """Return text and MIME type of a resource; `FileError` where there is none.

    Names are looked up, never joined to a path.
    """
    kind, _, name = address.removeprefix(SCHEME).partition("/")
    if address.startswith(SCHEME):
        if kind == "docs" and name in PAGES and (path := page_path(name)):
            return path.read_text(encoding="utf-8"), "text/markdown"
        if kind == "results":
            return results.text(name), "application/json"
        for one in KINDS:
            example = name.removeprefix(f"{one}s/")
            if kind == "examples" and name != example and example in example_names(one):
                return str(example_content(one, example).content), "text/yaml"
    raise FileError(
        f"no resource {address[:120]!r}",
        f"{SCHEME}docs/agents, {SCHEME}examples/models/llama3-8b, {SCHEME}results/RESULT_ID",
    )
