"""Formats of existing runs: how one is recognised, and what reads it.

A framework's record names its formats; `planner.frameworks.runs.reader` tries them all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.launch_script import LaunchCommand, looks_like_script
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.shell.marks import unmarked

FindFile = Callable[[str], str | None]
"""Returns the text of a file that a run names; None where it is not there."""

FOREIGN = 20
"""Formats of a smaller precedence are tried before files of trainers that are not read are refused
(`planner.frameworks.runs.foreign`)."""


@dataclass(frozen=True)
class RunFile:
    """A file of a run."""

    text: str
    name: str
    """Path or name as the user gave it; faults are told with it."""
    query: RunQuery
    find: FindFile
    """Finds files beside this one."""
    part: str = ""
    """The recipe that is meant, where a file has several."""

    @cached_property
    def is_script(self) -> bool:
        """Whether the text looks like a launch script or a list of flags."""
        return looks_like_script(self.text)

    def has_ending(self, *endings: str) -> bool:
        """Tell whether the name ends in one of some endings."""
        return self.name.endswith(endings)


@dataclass(frozen=True)
class LaunchedRun:
    """A launch script: its training command, with what the command says."""

    file: RunFile
    launch: LaunchCommand
    arguments: Mapping[str, Any]
    """Arguments of the training script by name, those of the query over them."""
    find: FindFile
    """Finds files that the script writes, and files beside it."""

    @cached_property
    def argv(self) -> list[str]:
        """What follows the training script, without marks."""
        return [unmarked(word) for word in self.launch.argv]

    @property
    def query(self) -> RunQuery:
        """What besides the files decides how the run is read."""
        return self.file.query

    @property
    def launched_query(self) -> RunQuery:
        """The query with the arguments and the number of devices that the script states."""
        return self.query.launched(self.arguments, self.launch.n_devices)

    def named_file(self, name: str) -> str:
        """Return the text of a file that the script needs; `SpecError` where it is not there."""
        text = self.find(name)
        if text is None:
            fix = f"put it beside {self.file.name}, or check that file itself"
            raise SpecError(
                InputProblem(f"names {name}, which cannot be read", fix, self.file.name)
            )
        return text


@dataclass(frozen=True, slots=True)
class RunFormat:
    """A kind of file that describes a run."""

    matches: Callable[[RunFile], bool]
    read: Callable[[RunFile], ExistingRun]
    """May raise `SpecError` for a file that is of this kind and no run."""
    title: str = ""
    """What such a file is, as it is named where a file is none of them: "a DeepSpeed JSON"."""
    precedence: int = 0
    """The smaller is tried first; those of other packages come before all that are known here."""


@dataclass(frozen=True, slots=True)
class ScriptFormat:
    """A kind of training command in a launch script."""

    matches: Callable[[LaunchedRun], bool]
    read: Callable[[LaunchedRun], ExistingRun]
    title: str = ""
    """As of a `RunFormat`."""
    precedence: int = 0
    """As of a `RunFormat`."""
