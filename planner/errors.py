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
field of its request instead; a command by `planner.option_names.command`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.option_names import said

MAX_PROBLEMS_SHOWN = 10
"""Problems of one file that a message lists; the rest is counted."""


class BadValue(ValueError):
    """A value that cannot be read, before it is known where it stands in which file.

    Raised by `planner.units` and by the schemas; the loaders turn it into a `SpecError`.
    """

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = said(message)
        self.fix = said(fix)

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class PlannerError(Exception):
    """Base class of all errors meant for the user: a message and, where known, what to change."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "", about: str = "") -> None:
        super().__init__(message)
        self.message = said(message)
        self.fix = said(fix)
        self.about = about
        """What is wrong, where the message does not name it: an option without its dashes, or a
        field of a service's request."""

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in an input."""

    message: str
    """What is wrong, with what was given and what is allowed."""
    fix: str = ""
    """What to change; empty when the message says it all."""
    file: str = ""
    """File as the user named it, or the option (`--set pools.0.nodes=x`) that gave it."""
    line: int = 0
    """Line from 1; 0 when unknown."""
    column: int = 0
    """Column from 1; 0 when unknown."""
    path: str = ""
    """Place in the document, such as `pools.0.nodes`."""

    def __post_init__(self) -> None:
        for name in ("message", "fix", "file"):
            object.__setattr__(self, name, said(getattr(self, name)))

    def __str__(self) -> str:
        where = self.file
        if self.file and self.line:
            where += f":{self.line}:{self.column}" if self.column else f":{self.line}"
        head = ": ".join(part for part in (where, self.path, self.message) if part)
        return f"{head}\n  fix: {self.fix}" if self.fix else head


class SpecError(PlannerError):
    """A model or cluster specification is wrong: one or more problems, the most useful first."""

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__(self.problems[0].message, self.problems[0].fix)

    def __str__(self) -> str:
        blocks = [str(problem) for problem in self.problems[:MAX_PROBLEMS_SHOWN]]
        n_left_out = len(self.problems) - len(blocks)
        if n_left_out:
            blocks.append(f"... and {n_left_out} more")
        return "\n".join(blocks)


class CatalogError(PlannerError):
    """The catalogue has no such entry, or an entry is wrong."""


class NoPartError(CatalogError):
    """A part was asked for by a name that the catalogue does not have."""

    exit_code = 2


class SearchError(PlannerError):
    """The search cannot be run as asked."""


class EmitError(PlannerError):
    """A plan cannot be expressed in the configuration of a framework."""


class SweepFileError(PlannerError):
    """The file of a sweep cannot be written, continued or read."""


class InfeasibleError(PlannerError):
    """The best plan was asked of a result without plans; the result holds the reasons."""

    exit_code = 3


class UsageError(PlannerError):
    """An option, argument or call that does not make sense."""

    exit_code = 2


class FileError(UsageError):
    """A file that a command is given is not there, cannot be read, or is not what it reads."""

    exit_code = 1
