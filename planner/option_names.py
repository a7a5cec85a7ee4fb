"""Options as messages name them: `--pin tp=8`, `"pins": {"tp": 8}` in a request of a service.

Who writes a message joins texts and references: `option("pin", "tp=8") + ": ..."`, and for a
command that tells more `command("catalog list")`. The result is an `OptionMessage`: a text with
the names of the command line, which each interface renders with its own.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

JOB_FIELDS = {
    "task": "training.task",
    "rank": "training.lora.rank",
    "seq": "training.seq_len",
    "batch": "training.global_batch",
    "tokens": "training.tokens",
    "precision": "training.precision",
}
"""Options that say a field of the job in short, by the path that `--set` has for it."""


@dataclass(frozen=True, slots=True)
class SearchField:
    """One option of a search: what it means, and what each interface calls it."""

    keyword: str
    """Argument of `planner.solve`, and field of `planner.SolveRequest`."""
    meaning: str
    """As the schema of the service and the documentation say it."""
    help: str
    """As `planner solve --help` says it."""
    metavar: str = ""
    option: str = ""
    """On the command line, without its dashes; empty: the keyword."""
    field: str = ""
    """In requests of a service; empty: the keyword."""
    section: str = ""
    """Key of the `search:` section of a model or sweep file; empty: none."""

    @property
    def option_name(self) -> str:
        """Its name on the command line, without dashes."""
        return self.option or self.keyword

    @property
    def field_name(self) -> str:
        """Its name in requests of a service."""
        return self.field or self.keyword


JOB_OPTIONS: Mapping[str, str] = {path: f"--{name}" for name, path in JOB_FIELDS.items()}
"""Options of the command line that say a field of the job in short, by the path of `--set`."""

SEARCH_FIELDS: Mapping[str, SearchField] = {
    field.keyword: field
    for field in (
        SearchField(
            "pins",
            'Fix axes: `{"tp": 8}`.',
            "Fix axes: tp=8,pp=4,devices=512; a wrong one lists them all.",
            "AXIS=V,...",
            option="pin",
            section="pin",
        ),
        SearchField(
            "only",
            'Allowed values by axis: `{"tp": [4, 8]}`.',
            "Allowed values: tp=4,8.",
            "AXIS=A,B",
            section="only",
        ),
        SearchField(
            "at_most",
            'Largest values by axis: `{"pp": 16}`.',
            "Largest values: pp=16.",
            "AXIS=N",
            option="max",
            field="max",
            section="max",
        ),
        SearchField(
            "framework",
            "Plans that this framework runs: one by its name, also at a release (`megatron@0.17`),"
            " `any` of them, or the `default`.",
            "One by its name, any, or default.",
            section="framework",
        ),
        SearchField(
            "stack",
            "Software profile to price with; the framework's own by default.",
            "Software profile to price with; the framework's own by default.",
        ),
        SearchField(
            "allow",
            "`tp-across-domains`: accepted, always on.",
            "tp-across-domains: accepted, always on; --max tp=8 closes it.",
            section="allow",
        ),
        SearchField(
            "overrides",
            'Fields to change, by path: `{"pools.0.nodes": 16}`.',
            "Change a field: pools.0.nodes=16.",
            "PATH=VALUE",
            option="set",
            field="set",
        ),
        SearchField(
            "pool",
            "Plan for this pool of the cluster only.",
            "Plan for this pool of the cluster only.",
            "NAME",
            section="pool",
        ),
        SearchField(
            "pools",
            "`apart`: each plan uses one pool (the default); `together`: one job may use several.",
            "apart (the default), or together: one job over several too.",
            "HOW",
            section="pools",
        ),
        SearchField(
            "objective",
            "What is to be best: step_time, tokens_per_s, cost, energy, devices, memory or"
            " goodput.",
            "step_time, tokens_per_s, cost, energy, devices, memory or goodput.",
            "X",
            section="objective",
        ),
        SearchField(
            "within",
            "For the objective memory: how much slower than the fastest, a factor.",
            "--objective memory: at most F times the fastest (1.05).",
            "F",
            section="within",
        ),
        SearchField(
            "memory_margin",
            "Fraction of the usable memory that the first plan leaves free where one within 3 % of"
            " the fastest does (0.05); 0: time alone ranks.",
            "Fraction of memory the first plan leaves free (0.05), at 3 % of time at most.",
            "FRACTION",
            option="memory-margin",
            section="memory_margin",
        ),
        SearchField(
            "deadline",
            "Longest run, failures included: `30d`, or a number of days.",
            "Longest run, failures included: 30d, 36h.",
            "TIME",
            section="deadline",
        ),
        SearchField(
            "budget",
            "Most money for the run, US dollars, failures included: `2.5M`, or a number.",
            "Most dollars for the run, failures included: 2.5M.",
            "USD",
            section="budget",
        ),
        SearchField(
            "step_limit_s",
            "Longest step, seconds; 0: any.",
            "Longest step, seconds.",
            "S",
            option="step-limit",
            section="step_limit_s",
        ),
        SearchField(
            "pareto",
            "Two or three objectives whose front is wanted instead of a ranking.",
            "The front of two or three objectives instead, such as step_time,memory.",
            "X,Y[,Z]",
            section="pareto",
        ),
        SearchField(
            "time_limit_s",
            "Stop the search after so many seconds with the best so far; 0: no limit of its own.",
            "Stop after S seconds, best so far.",
            "S",
            option="time-limit",
            section="time_limit_s",
        ),
        SearchField("top", "Plans in the answer (10).", "Plans to show (10).", section="top"),
        SearchField(
            "all_variants",
            "Every variant of a layout (vpp, micro-batch, ZeRO, recompute) is a plan of its own;"
            " else the best of each (tp, pp, cp, ep) and of values listed in `only`.",
            "List all variants of a layout, not the best of each tp, pp, cp, ep.",
            option="all-variants",
        ),
        SearchField(
            "calibration",
            "Numbers to price with; those that ship without it.",
            "Numbers to price with; those that ship without it.",
            "FILE",
        ),
        SearchField(
            "reference",
            "One to three measured runs of one's own that set the scale.",
            "One to three measured steps that set the scale.",
            "RUN.yaml",
        ),
    )
}
"""By keyword."""
_SAME = (
    "from",
    "to",
    "points",
    "over",
    "scaling",
    "via",
    "lost",
    "gained",
    "hosts",
    "launcher",
    "for",
    "term",
    "model",
    "version",
    "env",
)
_SWEEP_SAME = ("vary", "design", "samples", "seed", "where", "let", "set", "stack")
_POINT_LIMIT = {"point-limit": "point_limit_s"}
REQUEST_FIELDS: Mapping[str, str] = {
    **{field.option_name: field.field_name for field in SEARCH_FIELDS.values()},
    **{name: name for name in _SAME},
    **_POINT_LIMIT,
}
"""Fields of a service's requests by the options of the command line that say the same."""
SWEEP_FIELDS: Mapping[str, str] = {
    **{field.option_name: field.section for field in SEARCH_FIELDS.values() if field.section},
    **{name: name for name in _SWEEP_SAME},
    **_POINT_LIMIT,
}
"""Keys of a sweep's `spec`, its section `search` included, by the same options."""
KEYWORDS: Mapping[str, str] = {
    **REQUEST_FIELDS,
    **{field.option_name: field.keyword for field in SEARCH_FIELDS.values()},
    "from": "least",
    "to": "most",
}
"""Arguments of the library by the same options."""
CALLS: Mapping[str, str] = {
    "catalog list": "GET /v1/catalogue",
    "rule": "GET /v1/rules",
}
"""Calls of a service that say what commands do; `rule TP002` is that of `rule` with the code."""
_MAPPINGS = ("pin", "set", "max", "only", "env", "vary", "let")
_LISTS = ("allow", "pareto", "launcher", "for", "where")


@dataclass(frozen=True, slots=True)
class OptionRef:
    """An option that a message names, and the value that it shows it with."""

    name: str
    """Without its dashes."""
    value: str = ""
    """As the command line writes it."""

    def on_command_line(self) -> str:
        """Return the option as it is typed: `--pin tp=8`."""
        return f"--{self.name} {self.value}" if self.value else f"--{self.name}"

    def in_request(self, fields: Mapping[str, str]) -> str:
        """Return the field of a request that says the same; the option where none does.

        >>> OptionRef("pin", "tp=8").in_request(REQUEST_FIELDS)
        '"pins": {"tp": 8}'
        """
        if self.name not in fields:
            return self.on_command_line()
        field, value = fields[self.name], self.value
        if not value:
            return field
        if value.startswith("'") and value.endswith("'"):
            value = value[1:-1]  # of a shell
        if self.name in _MAPPINGS:
            key, equals, text = value.partition("=")
            if not equals:
                return f"{field} {value}"
            items = [_scalar(x) for x in text.split(",")]
            inner = f"[{', '.join(items)}]" if self.name in ("only", "vary") else _scalar(text)
            return f'"{field}": {{{json.dumps(key, ensure_ascii=False)}: {inner}}}'
        if self.name in _LISTS:
            return f'"{field}": [{", ".join(_scalar(x.strip()) for x in value.split(","))}]'
        return f'"{field}": {_scalar(value)}'


@dataclass(frozen=True, slots=True)
class CommandRef:
    """A command that a message names: one of `CALLS`, `rule TP002`."""

    text: str

    def on_command_line(self) -> str:
        """Return the command as it is typed."""
        return f"planner {self.text}"

    def in_request(self, fields: Mapping[str, str]) -> str:
        """Return the call of a service that says what the command does."""
        name = next(name for name in CALLS if f"{self.text} ".startswith(f"{name} "))
        code = self.text.removeprefix(name).strip()
        return f"{CALLS[name]}?code={code}" if code else CALLS[name]


Part = str | OptionRef | CommandRef


class OptionMessage(str):
    """A text with the names of the command line, which knows where it names options.

    Joined with `+` it stays one; inside an f-string only its text is left.

    >>> message = option("pin") + " tp twice; such as " + option("pin", "tp=8")
    >>> message
    '--pin tp twice; such as --pin tp=8'
    >>> message.in_request(REQUEST_FIELDS)
    'pins tp twice; such as "pins": {"tp": 8}'
    """

    __slots__ = ("parts",)
    parts: tuple[Part, ...]

    def __new__(cls, *parts: Part) -> "OptionMessage":
        """Join texts and references."""
        message = super().__new__(
            cls, "".join(x if isinstance(x, str) else x.on_command_line() for x in parts)
        )
        message.parts = parts
        return message

    def __getnewargs__(self) -> tuple[Part, ...]:  # type: ignore[override]
        """Return what makes a copy."""
        return self.parts

    def __add__(self, other: str) -> "OptionMessage":
        """Return the text followed by another."""
        return OptionMessage(*self.parts, *_parts(other))

    def __radd__(self, other: str) -> "OptionMessage":
        """Return the text after a plain one."""
        return OptionMessage(other, *self.parts)

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options, in the order of the text."""
        return tuple(x.name for x in self.parts if isinstance(x, OptionRef))

    def in_request(self, fields: Mapping[str, str]) -> str:
        """Return the text with fields of JSON in the place of options; others stay."""
        return "".join(x if isinstance(x, str) else x.in_request(fields) for x in self.parts)


def option(name: str, value: str = "") -> OptionMessage:
    """Return an option for a message, as the command line writes its value."""
    return OptionMessage(OptionRef(name.removeprefix("--"), value))


def command(text: str) -> OptionMessage:
    """Return a command for a message: one of `CALLS`, `rule TP002`."""
    return OptionMessage(CommandRef(text))


def option_or_section(place: str, value: str = "") -> str:
    """Return an option where `place` is one (`--pin`), else a section of a file by its name."""
    if place.startswith("--"):
        return option(place, value)
    return f"{place} {value}" if value else place


def joined(separator: str, texts: Iterable[str]) -> OptionMessage:
    """Return texts and messages in one, parted by a separator.

    >>> joined(" or ", [option("pin"), option("only")]).in_request(REQUEST_FIELDS)
    'pins or only'
    """
    parts: list[Part] = []
    for text in texts:
        parts += [separator] if parts else []
        parts += _parts(text)
    return OptionMessage(*parts)


def in_request(text: str, fields: Mapping[str, str]) -> str:
    """Return a text with fields in the place of the options that it names."""
    return text.in_request(fields) if isinstance(text, OptionMessage) else text


def _parts(text: str) -> tuple[Part, ...]:
    return text.parts if isinstance(text, OptionMessage) else (text,)


def _scalar(text: str) -> str:
    """Return a value as JSON: a number or a switch as such, all else as a text."""
    text = text.strip("'")
    if text in ("true", "false") or re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text):
        return text
    return json.dumps(text, ensure_ascii=False)
