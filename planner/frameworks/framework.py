"""What the product knows of one training framework, in one record.

Every framework has a folder with its `FRAMEWORK`; `planner.frameworks.registry` finds it, and all
lists of frameworks are made of the records. Paths are `module:attribute`, imported when the part
is first used, so that a record costs nothing where only names are listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from searches.frameworks.registry import FrameworkRules


@dataclass(frozen=True, slots=True)
class FrameworkGrid:
    """How a framework numbers its ranks, in its own words, the outermost axis first."""

    dense: str
    expert: str
    """The grid of the routed experts, folded into the same ranks; empty where it has none."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One training framework: only `rules` and `emitter` have to be there."""

    rules: FrameworkRules
    """Its name, title, release, and what it does not run."""
    emitter: str
    """What writes its files: takes an `EmitRequest`, returns texts by file name."""
    stack: str = "megatron-core"
    """Profile (`costmodels.stacks`) that prices its plans unless another is named."""
    run_formats: str = ""
    """Files of existing runs that it reads: a sequence of `planner.frameworks.runs.format`'s
    `RunFormat`."""
    script_formats: str = ""
    """Launch scripts that it reads: a sequence of `ScriptFormat`."""
    named_run: str = ""
    """Published runs that go by a name: returns the text of one, None for no such name."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What writes a plan as flags or keys, by the format of the run that is changed; the empty
    name stands for all others. Takes a layout and a problem, returns texts by flag or key."""
    changes: str = ""
    """What says a change of plan as settings, where it is more than those that differ. Takes a
    run, the old and the new layout and the settings of the new one; None takes a setting away."""
    joint: str = " = "
    """What stands between a key and its value."""
    grid: FrameworkGrid | None = None
    """How it numbers its ranks; None where that is not known."""
    start_command: str = ""
    """What starts the run of a plan in the folder of its files, with the flags that a timing trial
    adds."""
    log_note: str = ""
    """What it prints of the time of a step."""
    says_adapters: bool = False
    """Whether its own files say adapters beside frozen weights."""
    smoke_programs: tuple[str, ...] = ()
    """Programs beside the launcher (`planner/data/programs`) that a job on GPUs does not need."""

    @property
    def name(self) -> str:
        """As `--framework` takes it."""
        return self.rules.name

    @property
    def title(self) -> str:
        """Its name as its users write it."""
        return self.rules.title
