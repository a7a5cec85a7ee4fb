"""Errors about a sweep document, each with its place."""

from dataclasses import dataclass, replace

from planner.errors import BadValue, SpecError
from planner.specs.yaml.document import Document, KeyPath


@dataclass(frozen=True, slots=True)
class Faults:
    """Makes the errors about one document: with the file and the line, or the option."""

    document: Document

    def fail(self, path: KeyPath, error: BadValue, *, at_key: bool = False) -> SpecError:
        """Return what is wrong with the value at a path; with `at_key`, with its key."""
        problem = self.document.problem(path, error.message, error.hint, at_key=at_key)
        # An option says by itself which field it is about.
        return SpecError(replace(problem, path="") if problem.file.startswith("--") else problem)

    def say(self, path: KeyPath, message: str, fix: str = "") -> SpecError:
        """Return the error of a key, in words."""
        return self.fail(path, BadValue(message, fix), at_key=True)
