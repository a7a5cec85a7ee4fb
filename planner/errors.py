"""Every error that a user can meet, on one page.

    PlannerError                exit code 1
    ├── SpecError               1  a model or cluster file (or dict, or --set) is wrong
    ├── CatalogError            1  the catalogue of accelerators and links is wrong or incomplete
    │   └── NoPartError         2  it has no part of this name
    ├── SearchError             1  the search could not be run as asked
    ├── EmitError               1  a plan cannot be written for a framework
    ├── SweepFileError          1  the file of a sweep cannot be written, continued or read
    ├── InfeasibleError         3  the best plan was asked of a result that has none
    └── UsageError              2  the command line or the call does not make sense
        └── FileError           1  a file that a command names is not there, or not what it reads

docs/results.md has the table of exit codes: a name that is unknown is 2, what a file says 1.

A message says where, what is wrong and what to change, and never needs a traceback:

    cluster.yaml:7:18: pools.0.accelerator: unknown accelerator 'h1000'
      fix: did you mean h100-sxm-80gb? `planner catalog list` shows all names

An option in a message is named by `planner.option_names.option`, so that a service can name the
field of its request instead; a command by `planner.option_names.command`. docs/errors.md lists the
codes of errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.option_names import KEYWORDS, OptionMessage

MAX_PROBLEMS_SHOWN = 10
"""Problems of one file that a message lists; the rest is counted."""
DETAILS: Mapping[str, str] = {
    "unknown-name": "a name that does not exist: of an axis, an option's choice, a framework",
    "bad-value": "a value that its option or axis cannot have",
    "out-of-range": "a number below or above what is allowed",
    "bad-form": "a text that is not of the form that its option reads",
    "contradiction": "options that cannot hold together",
    "belongs-to": "an option that goes with another one, or with another question",
    "several": "one answer is possible, and the inputs leave several open: pools, recipes",
    "not-modelled": "hardware or a recipe that this version does not model",
    "no-devices": "no number of devices is left",
    "breaks-rule": "a layout that a rule excludes: `planner rule CODE`",
    "needs-figure": "an objective needs a figure that the inputs do not state",
    "file": "a file that is not there, cannot be read or written, or is of another kind",
}
"""Second words of error codes, and what they mean: `bad-option.contradiction`."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where something stands in a file."""

    file: str
    """As the user named it, or the option (`--set pools.0.nodes=x`) that gave it."""
    line: int = 0
    """From 1; 0 when unknown."""
    column: int = 0
    """From 1; 0 when unknown."""

    def __str__(self) -> str:
        if not (self.file and self.line):
            return self.file
        return f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")


class BadValue(ValueError):
    """A value that cannot be read, before it is known where it stands in which file.

    Raised by `planner.units` and by the schemas; the loaders turn it into a `SpecError`.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class PlannerError(Exception):
    """Base class of all errors meant for the user: what is wrong, and what to change.

    `message` and `hint` have the names of the command line where they are read as texts; a
    `planner.option_names.OptionMessage` is rendered with those of another interface.
    """

    exit_code = 1
    kind = "error"
    """First word of its codes, that of a service's problem documents."""

    def __init__(self, message: str, hint: str = "", about: str = "", code: str = "") -> None:
        """Make an error; `code` is one of `DETAILS`, or empty.

        `about` is what is wrong where the message does not name it: an option without its dashes,
        or a field of a service's request.
        """
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.about = about
        self._detail = code

    @property
    def code(self) -> str:
        """The same for the same reason, for programs: `bad-option.contradiction`."""
        return f"{self.kind}.{self._detail}" if self._detail else self.kind

    @property
    def field(self) -> str:
        """What is wrong, by its name in the library: `pins`; empty where it is not known."""
        if self.about:
            return KEYWORDS.get(self.about, self.about)
        options = self.message.options if isinstance(self.message, OptionMessage) else ()
        return next((KEYWORDS[name] for name in options if name in KEYWORDS), "")

    @property
    def location(self) -> Location | None:
        """The place in a file that is wrong; None for all that stands in none."""
        return None

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class InputProblem:
    """One thing wrong in an input."""

    message: str
    """What is wrong, with what was given and what is allowed."""
    hint: str = ""
    """What to change; empty when the message says it all."""
    file: str = ""
    """File as the user named it, or the option (`--set pools.0.nodes=x`) that gave it."""
    line: int = 0
    """Line from 1; 0 when unknown."""
    column: int = 0
    """Column from 1; 0 when unknown."""
    path: str = ""
    """Place in the document, such as `pools.0.nodes`."""

    @property
    def location(self) -> Location:
        """File, line and column."""
        return Location(self.file, self.line, self.column)

    def __str__(self) -> str:
        head = ": ".join(part for part in (str(self.location), self.path, self.message) if part)
        return f"{head}\n  fix: {self.hint}" if self.hint else head


class SpecError(PlannerError):
    """A model or cluster specification is wrong: one or more problems, the most useful first."""

    kind = "bad-specification"

    def __init__(self, problems: InputProblem | Sequence[InputProblem]) -> None:
        self.problems = (problems,) if isinstance(problems, InputProblem) else tuple(problems)
        super().__init__(self.problems[0].message, self.problems[0].hint)

    @property
    def field(self) -> str:
        """The path of the first problem: `pools.0.nodes`, `search.pin`."""
        return self.problems[0].path or super().field

    @property
    def location(self) -> Location:
        """Where the first problem stands."""
        return self.problems[0].location

    def __str__(self) -> str:
        blocks = [str(problem) for problem in self.problems[:MAX_PROBLEMS_SHOWN]]
        n_left_out = len(self.problems) - len(blocks)
        if n_left_out:
            blocks.append(f"... and {n_left_out} more")
        return "\n".join(blocks)


class CatalogError(PlannerError):
    """The catalogue has no such entry, or an entry is wrong."""

    kind = "unknown-part"


class NoPartError(CatalogError):
    """A part was asked for by a name that the catalogue does not have."""

    exit_code = 2


class SearchError(PlannerError):
    """The search cannot be run as asked."""

    kind = "bad-layout"


class EmitError(PlannerError):
    """A plan cannot be expressed in the configuration of a framework."""

    kind = "not-expressible"


class SweepFileError(PlannerError):
    """The file of a sweep cannot be written, continued or read."""

    kind = "bad-sweep-file"


class InfeasibleError(PlannerError):
    """The best plan was asked of a result without plans; the result holds the reasons."""

    kind = "no-plan"
    exit_code = 3


class UsageError(PlannerError):
    """An option, argument or call that does not make sense."""

    kind = "bad-option"
    exit_code = 2


class FileError(UsageError):
    """A file that a command is given is not there, cannot be read, or is not what it reads."""

    exit_code = 1

    @property
    def code(self) -> str:
        """That of a file, whatever is wrong with it."""
        return f"{self.kind}.file"
