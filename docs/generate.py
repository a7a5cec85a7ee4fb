"""Write the parts of the documentation that follow from the code.

    python docs/generate.py

`rules.md` and `llms.txt` beside the README whole; the tables between markers in `agents.md`,
`architecture.md`, `errors.md`, `stacks.md`, `files.md`, `frameworks.md`, `index.md`, `maxtext.md`,
`search.md`, `sweeps.md`, `terms/collectives.md` and pages of terms.
`tests/test_docs.py` fails when they are not current.
"""

import ast
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

from pydantic_core import PydanticUndefined

from costmodels.axes import AXES, MAX_VALUE, MODULES_OF_AXES
from costmodels.comm.collectives import ALGORITHMS
from costmodels.documentation.terms import TERMS, Term
from costmodels.layers.kinds import LAYER_KINDS
from costmodels.stacks import EAGER, FUSED, NUMBERS, STACKS, StackProfile
from planner import errors
from planner.specs import schema as schemas
from planner.specs.importers.huggingface.families.refused import REFUSED
from planner.specs.importers.huggingface.model_types import ALIASES, TYPES
from planner.specs.importers.huggingface.rules import ModelType
from planner.sweeps.rows import COLUMNS
from planner.sweeps.spec.schema import SweepFile
from searches.frameworks.megatron.axis_flags import AXIS_FLAGS
from searches.frameworks.registry import framework_names
from searches.frameworks.rule import FrameworkRule
from searches.frameworks.table import rules_by_code
from searches.rules import RULES, SHAPE_RULES
from service.agents.tools import TOOLS

DOCS = Path(__file__).resolve().parent
sys.path.append(str(DOCS.parent))  # tools/ is no package that is installed

from tools.agent_questions.question import TESTS  # noqa: E402
from tools.maxtext_memory.cases import all_cases  # noqa: E402
from tools.maxtext_memory.compare import kept as kept_steps  # noqa: E402
from tools.maxtext_memory.compare import table as table_of_steps  # noqa: E402

PACKAGES = ("service", "planner", "searches", "costmodels", "hardware")
"""From the top down."""
LEAST_SIZE = 2.0**28
"""Numbers of a stack profile from here on are sizes; bucket sizes (elements) are below."""
LEAST_MS = 1e-3
"""Times of a stack profile from here on, in seconds, are printed in ms, shorter ones in µs."""
SECONDS = ("tp_hop_s", "host_s_per_layer", "fixed_step_s", "stalled_hop_s", "stalled_message_s")
"""Fields of a stack profile that are times."""

RULES_HEAD = """# Rules

Every reason for which a layout is not in the answer. Each candidate is counted once, under the
first rule that it breaks; `planner rule CODE` prints one entry. Rules over the coupled axes
(tp, pp, dp, vpp, split) reject *shapes*, the others *plans*; a pin can do both. See
[search](search.md) for how they are applied and [frameworks](frameworks.md) for `FRM001`.

This page is written by `python docs/generate.py` from `searches/rules.py`.
"""

BOTH = {"PIN001": "shapes and plans"}
"""Rules that are applied at both levels."""

UNITS = {
    "Size": "size (`4 GiB`)",
    "Memory": "size (`80 GiB`)",
    "Bandwidth": "bandwidth (`400 Gb/s`)",
    "Rate": "rate (`989 TFLOP/s`)",
    "Tokens": "count (`15e12`, `15T`)",
    "Ratio": "ratio (`7`, `7:1`)",
    "Factor": "number",
    "FactorOr0": "number",
    "Switch": "`true` or `false`",
    "Name": "name",
    "HostList": "host list (`n[001-016]`)",
    "SliceShape": "shape (`4x4x8`)",
    "Power": "power (`700 W`)",
    "Price": "number",
    "Duration": "time (`10 min`)",
    "Lifetime": "time (`2110 d`)",
    "Latency": "time (`2.7 us`)",
    "Axes": "mapping",
    "AxisValue": "number or word",
    "Layers": "whole number",
    "NewtonSchulzSteps": "whole number",
    "LayersOr0": "whole number",
    "Heads": "whole number",
    "Width": "whole number",
    "WidthOr0": "whole number",
    "Nodes": "whole number",
    "PerNode": "whole number",
    "Real": "number",
    "Seconds": "number",
    "Share": "number",
    "Margin": "number",
}
"""How the types of `planner.specs.schema` are written in a file."""

SECTIONS = (
    ("model", schemas.ModelSpec),
    ("moe", schemas.MoeSpec),
    ("mla", schemas.MlaSpec),
    ("layer_kinds", schemas.LayerRunSpec),
    ("layer_patterns", schemas.LayerPatternSpec),
    ("window", schemas.WindowSpec),
    ("chunk", schemas.ChunkSpec),
    ("mamba2", schemas.Mamba2Spec),
    ("delta_net", schemas.DeltaNetSpec),
    ("linear", schemas.LinearSpec),
    ("indexer", schemas.IndexerSpec),
    ("compressed", schemas.CompressedSpec),
    ("residual_streams", schemas.StreamsSpec),
    ("mamba1", schemas.Mamba1Spec),
    ("short_conv", schemas.ShortConvSpec),
    ("encoder", schemas.EncoderSpec),
    ("operators", schemas.OperatorsSpec),
    ("rglru", schemas.RglruSpec),
    ("factored", schemas.FactoredSpec),
    ("variants", schemas.VariantSpec),
    ("per_layer", schemas.PerLayerSpec),
    ("vision", schemas.VisionSpec),
    ("diffusion", schemas.DiffusionSpec),
    ("details", schemas.DetailsSpec),
    ("training", schemas.TrainingSpec),
    ("muon", schemas.MuonSpec),
    ("lora", schemas.LoraSpec),
    ("data", schemas.DataSpec),
    ("lengths", schemas.LengthsSpec),
    ("search", schemas.SearchSpec),
    ("pools", schemas.PoolSpec),
    ("accelerator", schemas.AcceleratorSpec),
    ("fabric", schemas.FabricSpec),
    ("tiers", schemas.TierSpec),
    ("links", schemas.PoolLinkSpec),
    ("operations", schemas.OperationsSpec),
    ("cluster", schemas.ClusterFile),
)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def _of(shape: bool) -> str:
    return "shapes" if shape else "plans"


def rules_page() -> str:
    """Return the whole of rules.md."""
    shapes = {code for code, _ in SHAPE_RULES}
    rows = [
        (f"[{r.code}](#{r.code.lower()})", r.title, BOTH.get(r.code) or _of(r.code in shapes))
        for r in RULES.values()
    ]
    parts = [RULES_HEAD, _table(("code", "what", "of"), rows)]
    parts += [
        f"## {r.code}\n\n{r.title[0].upper()}{r.title[1:]}.\n\n{_one_line(r.why)}\n\n"
        f"- To change: {r.relax}.\n- Source: {r.source}.\n"
        for r in RULES.values()
    ]
    return "\n".join(parts)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value >= LEAST_SIZE:
        return f"{value / 2.0**30:g} GiB"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1e4 else f"{value:g}"
    return str(value) or "-"


def _setting(name: str, value: object) -> str:
    """Return the value of one field of a profile with its unit."""
    if name in SECONDS and isinstance(value, float) and value:
        return f"{value * 1e3:g} ms" if value >= LEAST_MS else f"{value * 1e6:g} µs"
    return _shown(value)


def stacks_table() -> str:
    """Return all fields of the two class defaults, then what each profile changes."""
    names = [f.name for f in fields(FUSED) if f.name != "name"]
    classes = {profile.kind: profile for profile in (FUSED, EAGER)}

    def cell(profile: StackProfile, name: str) -> str:
        return _setting(name, getattr(profile, name))

    def span(name: str) -> str:
        return " to ".join(_setting(name, x) for x in NUMBERS[name]) if name in NUMBERS else ""

    whole = [[f"`{name}`", cell(FUSED, name), cell(EAGER, name), span(name)] for name in names]
    changed = []
    for profile in STACKS.values():
        base = classes[profile.kind]
        if profile is not base:
            found = [
                f"`{name}` {cell(profile, name)}"
                for name in names
                if getattr(profile, name) != getattr(base, name)
            ]
            changed.append((f"`{profile.name}`", profile.kind, "; ".join(found) or "nothing"))
    return "\n".join(
        (
            _table(("field", "`fused`", "`eager`", "range"), whole),
            _table(("profile", "class", "differs from its class in"), changed),
        )
    )


def _default(field: object) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.default_factory is None else "empty"
    if field.default is None:
        return "-"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, float):
        return (
            f"`{field.default / 2**30:g} GiB`" if field.default > 1e6 else f"`{field.default:g}`"
        )
    return f"`{field.default}`" if isinstance(field.default, int | str) else "empty"


def _form(spec: type, name: str) -> str:
    note = spec.__annotations__[name]
    for unit, text in UNITS.items():
        known = getattr(schemas, unit)
        if note in (known, known | None):
            return text
    origin = str(note)
    if origin.startswith("list"):
        return "list"
    return "mapping" if "Spec" in origin or "dict[" in origin else "word"


def fields_table(spec: type) -> str:
    """Return the fields of one section: form, default, meaning."""
    rows = [
        (
            f"`{name}`",
            _form(spec, name),
            _default(field),
            _one_line(schemas.field_meaning(spec, name)),
        )
        for name, field in spec.model_fields.items()
    ]
    return _table(("field", "form", "default", "meaning"), rows)


FORMS_OF_SWEEP = {
    "name": "name",
    "model": "name or content",
    "cluster": "name or content",
    "set": "value by field",
    "design": "word",
    "samples": "whole number",
    "seed": "whole number",
    "vary": "list or range by field",
    "together": "fields by value, by name",
    "points": "list",
    "family": "mapping",
    "let": "expression by name",
    "where": "list of expressions",
    "notes": "list of sentences",
    "search": "mapping",
    "stack": "word",
    "calibration": "file",
    "reference": "file",
}
"""How the sections of a sweep file are written."""


def sweep_table() -> str:
    """Return the sections of a sweep file."""
    rows = [
        (
            f"`{name}`",
            FORMS_OF_SWEEP[name],
            "-" if _default(field) == "``" else _default(field),
            _one_line(schemas.field_meaning(SweepFile, name)),
        )
        for name, field in SweepFile.model_fields.items()
    ]
    return _table(("section", "form", "default", "meaning"), rows)


def columns_table() -> str:
    """Return the columns of the rows of a sweep."""
    rows = [(f"`{c.name}`", c.kind, c.unit, _one_line(c.meaning)) for c in COLUMNS]
    return _table(("column", "kind", "unit", "meaning"), rows)


SAID = {"planner": "not written here", "ignored": "never: passed over"}
"""When a rule is met, where it is not the framework that says so."""


def _framework_row(rule: FrameworkRule) -> Sequence[str]:
    closest = rule.closest if isinstance(rule.closest, str) else "by its numbers"
    said = SAID.get(rule.when, rule.when)
    releases = f"`{rule.versions}`" if rule.versions else "all"
    return [_one_line(x) for x in (rule.code, rule.title, said, closest, releases, rule.source)]


def framework_tables(framework: str) -> str:
    """Return the rules of one framework: over layouts, then over its flags or keys."""
    parts = []
    for level, heading in (("layout", "Layouts"), ("settings", "Flags and keys")):
        rules = [
            rule
            for rule in rules_by_code().values()
            if (rule.framework, rule.level) == (framework, level)
        ]
        if rules:
            titles = ("code", "not run", "said at", "closest", "releases", "source")
            rows = [_framework_row(rule) for rule in rules]
            parts.append(f"### {heading}\n\n{_table(titles, rows)}")
    return "\n".join(parts)


def _between(text: str, name: str, inner: str) -> str:
    """Return `text` with what stands between the markers of `name` replaced."""
    start, stop = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
    head, tail = text.index(start) + len(start), text.index(stop)
    return f"{text[:head]}\n{inner}\n{text[tail:]}"


def rooms_table() -> str:
    """Return the packages with what each holds, as their docstrings say it."""
    rows = []
    for package in PACKAGES:
        for file in sorted((DOCS.parent / package).rglob("__init__.py")):
            folder = file.parent.relative_to(DOCS.parent)
            if "data" in folder.parts or "proto" in folder.parts:
                continue
            says = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            rows.append((f"`{folder}`", says.partition("\n")[0]))
    return _table(("folder", "holds"), rows)


def error_kinds() -> str:
    """Return the classes of errors with their codes."""
    classes = [x for x in vars(errors).values() if isinstance(x, type)]
    rows = [
        (f"`{x.kind}`", f"`{x.__name__}`", str(x.exit_code), (x.__doc__ or "").partition("\n")[0])
        for x in classes
        if issubclass(x, errors.PlannerError)
    ]
    return _table(("kind", "class", "exit code", "meaning"), rows)


def algorithms_table() -> str:
    """Return the algorithms of the collectives: where each runs, its time, whose form it is."""
    rows = [
        (
            operation,
            f"`{algorithm.name}`" + (f", {algorithm.title}" * (algorithm.title != algorithm.name)),
            algorithm.needs or "any group",
            f"`{algorithm.text.equation}`",
            algorithm.text.source,
        )
        for operation, by_name in ALGORITHMS.items()
        for algorithm in by_name.values()
    ]
    return _table(("collective", "algorithm", "runs on", "time", "source"), rows)


def term_table(term: Term) -> str:
    """Return what the record of a term says, as a table."""
    rows = [
        ("put together", f"`{term.equation}`"),
        ("computed by", ", ".join(f"`{part.home}`" for part in term.texts)),
        ("source", term.source),
        ("left out", term.left_out or "-"),
    ]
    return _table((term.title, ""), [(name, _one_line(text)) for name, text in rows])


def terms_table(kind: str) -> str:
    """Return the terms of the time or of the memory, each with its page."""
    rows = [
        (f"[{term.name}](terms/{term.name}.md)", term.title)
        for term in TERMS.values()
        if term.kind == kind
    ]
    return _table(("term", "what"), rows)


def term_pages() -> dict[Path, str]:
    """Return the pages of the terms, each with the table of its record, and the index."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for kind in ("time", "memory"):
        index = _between(index, f"{kind} terms", terms_table(kind))
    pages = {DOCS / "index.md": index}
    for term in TERMS.values():
        page = DOCS / "terms" / f"{term.name}.md"
        pages[page] = _between(page.read_text(encoding="utf-8"), "term", term_table(term))
    return pages


def axes_table() -> str:
    """Return the axes of a layout: values, what a layout without it has, Megatron-LM's flag."""
    rows = []
    for axis in AXES.values():
        end = "on" if axis.largest == MAX_VALUE else f"to {axis.largest}"
        values = ", ".join(axis.choices) or f"from {axis.least} {end}"
        values = "off, on" if isinstance(axis.off, bool) else values
        if axis.name in MODULES_OF_AXES:
            values = "sets of modules"
        at_rest = axis.text(axis.off) if axis.choices else _shown(axis.off)
        at_rest = ("off", "on")[axis.off] if isinstance(axis.off, bool) else at_rest
        flag = f"`{AXIS_FLAGS[axis.name]}`" if axis.name in AXIS_FLAGS else "-"
        rows.append((f"`{axis.name}`", axis.title, values, at_rest, flag))
    titles = ("axis", "what", "values", "at rest", "nothing but this flag of Megatron-LM")
    return _table(titles, rows)


def _has_window(rules: ModelType) -> bool:
    """Tell whether a type has windows unless a file says otherwise."""
    return bool(rules.defaults.get("window")) and rules.defaults.get("window_on") is not False


def _has_window_and_experts(rules: ModelType) -> bool:
    return rules.experts and _has_window(rules)


def layer_kinds_table() -> str:
    """Return the kinds of layers of a model file."""
    rows = [
        [
            f"`{kind.name}`",
            _one_line(kind.title),
            f"`{kind.equation}`",
            ", ".join(f"`{name}`" for name in kind.frameworks) or "-",
            _one_line(kind.source),
        ]
        for kind in LAYER_KINDS.values()
    ]
    return _table(("kind", "what", "computes", "frameworks", "source"), rows)


_ROWS_OF_TYPES: Sequence[tuple[str, Callable[[ModelType], bool]]] = (
    ("a state space (Mamba-2) in some layers or in all", lambda x: x.mixer == "mamba2"),
    ("a state space (the first Mamba) in some layers or in all", lambda x: x.mixer == "mamba1"),
    ("short convolutions in some layers", lambda x: x.mixer == "conv"),
    ("gated delta nets in most layers", lambda x: x.mixer == "gdn"),
    ("Kimi delta attention in most layers", lambda x: x.mixer == "kda"),
    ("linear attention in some layers", lambda x: x.mixer == "linear"),
    ("gated linear recurrences in most layers", lambda x: x.mixer == "rglru"),
    ("layers of unlike widths", lambda x: x.own_layers is not None),
    ("sparse attention with an indexer", lambda x: x.mixer == "sparse"),
    ("compressed attention and several residual streams", lambda x: x.mixer == "csa"),
    ("differential attention", lambda x: x.mixer == "differential"),
    ("attention with factored queries", lambda x: x.mixer == "factored"),
    ("two attentions a layer and experts beside the second", lambda x: x.twice),
    ("latent attention and experts", lambda x: x.latent and x.experts),
    ("latent attention", lambda x: x.latent),
    ("attention with windows or chunks in some layers, and experts", _has_window_and_experts),
    ("attention and experts", lambda x: x.experts),
    ("attention with windows in some layers", _has_window),
    ("attention", lambda x: True),
)
"""What layers of a type have, in words, and which types; the first that fits counts."""


def types_table() -> str:
    """Return which types of a config.json are read, by what their layers have, and which not."""
    names: dict[str, list[str]] = {what: [] for what, _ in _ROWS_OF_TYPES}
    bases = {**{name: name for name in TYPES}, **{k: v[0] for k, v in ALIASES.items()}}
    for name, base in sorted(bases.items()):
        what = next(what for what, fits in _ROWS_OF_TYPES if fits(TYPES[base]))
        names[what].append(f"`{name}`")
    refused: dict[str, list[str]] = {}
    for name, why in sorted(REFUSED.items()):
        if name not in bases:
            refused.setdefault(why, []).append(f"`{name}`")
    rows = [("read", what, " ".join(found)) for what, found in names.items() if found]
    rows += [("refused", why, " ".join(found)) for why, found in sorted(refused.items())]
    return _table(("", "layers have", "`model_type`"), rows)


LLMS_HEAD = """# planner

> Finds the fastest way to split an LLM training job over a cluster: which tensor, pipeline, data,
> context and expert parallelism, ZeRO stage, micro-batch; step time, memory, cost, launch files.

Agents: read [SKILL.md](SKILL.md) first, and ask through `planner mcp`, which
[docs/agents.md](docs/agents.md) describes.
"""
_ENTRY = re.compile(r"\[([^\]]+)\]\(([\w/-]+\.md)\)(:[^\[\n]*(?:\n +[a-z][^\[\n]*)*)?")
"""A page in the index, and what the index says of it."""


def llms_text() -> str:
    """Return the index of the documentation for agents, made of that for people.

    Sections and order are those of `index.md`; a page is listed once.
    """
    index = (DOCS / "index.md").read_text(encoding="utf-8").partition("### Terms of")[0]
    parts, listed = [LLMS_HEAD], set()
    for section in index.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        lines = []
        for title, page, about in _ENTRY.findall(body):
            if page not in listed:
                listed.add(page)
                says = " ".join((about or "").split()).strip(":;,. ")
                says = says.partition(". From")[0]
                lines.append(f"- [{title}](docs/{page})" + (f": {says}" if says else ""))
        parts.append(f"## {heading}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def tools_table() -> str:
    """Return the tools of `planner mcp`, what they answer, and the command that does the same."""
    rows = [
        (f"`{tool.name}`", tool.description, f"`planner {tool.command or tool.name}`")
        for tool in TOOLS.values()
    ]
    return _table(("tool", "answers", "command"), rows)


def checks_table() -> str:
    """Return what a check of a question for agents may ask of a value."""
    return _table(("test", "holds where"), [(f"`{x}`", says) for x, says in TESTS.items()])


def memory_of_steps() -> str:
    """Return our memory of MaxText's steps beside libtpu's."""
    return "\n".join([*table_of_steps(all_cases(), kept_steps()), ""])


def pages() -> dict[Path, str]:
    """Return every page with generated parts, as it should be."""
    stacks = _between((DOCS / "stacks.md").read_text(encoding="utf-8"), "stacks", stacks_table())
    files = (DOCS / "files.md").read_text(encoding="utf-8")
    for name, spec in SECTIONS:
        files = _between(files, name, fields_table(spec))
    files = _between(files, "kinds", layer_kinds_table())
    runs = (DOCS / "frameworks.md").read_text(encoding="utf-8")
    for framework in framework_names():
        # Bridge has the rules of Megatron-LM under other codes; an added one may have no section.
        if framework != "bridge" and f"<!-- generated: {framework} -->" in runs:
            runs = _between(runs, framework, framework_tables(framework))
    search = _between((DOCS / "search.md").read_text(encoding="utf-8"), "axes", axes_table())
    sweeps = (DOCS / "sweeps.md").read_text(encoding="utf-8")
    sweeps = _between(sweeps, "sweep", sweep_table())
    sweeps = _between(sweeps, "columns", columns_table())
    collectives = DOCS / "terms" / "collectives.md"
    listed = _between(collectives.read_text(encoding="utf-8"), "algorithms", algorithms_table())
    models = (DOCS / "import_models.md").read_text(encoding="utf-8")
    rooms = (DOCS / "architecture.md").read_text(encoding="utf-8")
    faults = (DOCS / "errors.md").read_text(encoding="utf-8")
    faults = _between(faults, "kinds", error_kinds())
    details = [(f"`{word}`", meaning) for word, meaning in errors.DETAILS.items()]
    faults = _between(faults, "details", _table(("word", "meaning"), details))
    agents = (DOCS / "agents.md").read_text(encoding="utf-8")
    agents = _between(_between(agents, "tools", tools_table()), "checks", checks_table())
    maxtext = (DOCS / "maxtext.md").read_text(encoding="utf-8")
    return {
        DOCS / "agents.md": agents,
        DOCS / "maxtext.md": _between(maxtext, "memory", memory_of_steps()),
        DOCS.parent / "llms.txt": llms_text(),
        DOCS / "errors.md": faults,
        DOCS / "import_models.md": _between(models, "types", types_table()),
        DOCS / "architecture.md": _between(rooms, "rooms", rooms_table()),
        DOCS / "search.md": search,
        DOCS / "sweeps.md": sweeps,
        collectives: listed,
        **term_pages(),
        DOCS / "rules.md": rules_page(),
        DOCS / "stacks.md": stacks,
        DOCS / "files.md": files,
        DOCS / "frameworks.md": runs,
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
