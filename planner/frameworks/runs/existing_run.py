"""An existing run: what somebody's script or configuration says, in the words of our layouts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.specs.importers.imported import Imported

PAIR_SEQUENCES = 2
"""Sequences of a pair of answers (DPO), which training programs count as one sample."""

NO_KEY = "no key"
"""Stands for what a framework's file, or one of a tool on it, cannot say."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A setting of the framework that changes how fast a layout runs, not the layout."""

    change: str
    """What to write, in the framework's words: `add --overlap-grad-reduce`."""
    sets: tuple[tuple[str, object], ...]
    """The same as settings, with which the run is read and judged again; None takes one away."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something of the files that is not understood; the run is judged in part."""

    what: str
    """As written: a flag, a key, the name of a file."""
    why: str
    """Whose it is, or what is missing."""
    assumed: str
    """What is taken in its place."""
    line: int = 0
    """0 where it has none."""

    @property
    def text(self) -> str:
        """The doubt as one sentence."""
        where = f" (line {self.line})" if self.line else ""
        return f"{self.what}{where}: {self.why}; {self.assumed}"


@dataclass(frozen=True, slots=True)
class ExistingRun:
    """A run as its files describe it. A layout field that they do not state is left out."""

    framework: str
    """One of `searches.options.FRAMEWORKS`."""
    source: str
    """File as the user named it."""
    format: str
    """What the file is, in words: `Megatron-LM launch script`."""
    settings: Mapping[str, Any]
    """The framework's own flags or keys, only those that are set."""
    layout: Mapping[str, Any]
    """Stated fields of `costmodels.plans.Layout`, and `gas` (micro-batches where no batch is
    stated), `replicas` (copies of a ZeRO group) and `counts` (layers of each virtual stage)."""
    release: str = ""
    """Release that the form of the file belongs to; empty: the one that plans are written for."""
    env: Mapping[str, str] = field(default_factory=dict)
    n_nodes: int | None = None
    per_node: int | None = None
    """Processes of a node."""
    n_devices: int | None = None
    segment_nodes: int | None = None
    """Nodes that it takes of every scale-up domain, where its scheduler is told."""
    model: Imported | None = None
    """None where the file does not describe the model."""
    model_unread: str = ""
    """Why the model that it describes is not read; empty where it is, or where it has none."""
    job: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `training:` that the run states; they win over those of a model file."""
    stack: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the framework's stack profile that its settings change; `compiled` where they run
    it through a compiler."""
    stack_name: str = ""
    """Profile that prices it; empty for the framework's own."""
    switches: tuple[Switch, ...] = ()
    """Settings that would make it faster and are not set."""
    assumed: tuple[str, ...] = ()
    """Layout fields that the files do not state and what was taken: `mbs = 1: ...`."""
    notes: tuple[str, ...] = ()
    """What is not modelled, what was ignored."""
    unknown: tuple[str, ...] = ()
    """Flags or keys that the framework does not know."""
    refused: tuple[str, ...] = ()
    """What the framework's own parser refuses, in words: values of the wrong kind, keys twice."""
    written: Mapping[str, str] = field(default_factory=dict)
    """Flags or keys as written, by name in `settings`."""
    key_names: Mapping[str, str] = field(default_factory=dict)
    """What the file calls settings of the framework, where it has other names for them; empty for
    one that follows from the others, `NO_KEY` for one that it has not."""
    has_named_keys_alone: bool = False
    """Whether its files can set nothing of the framework but what `key_names` has."""
    held_values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Values by axis to which its files hold plans, where the framework has more."""
    doubts: tuple[Doubt, ...] = ()
    """What was not understood; empty where all was."""
    fork: str = ""
    """Fork or other release of the framework that its flags belong to; rules of settings are not
    held against it."""
    sample_sequences: int = 1
    """Sequences of what its files count as one sample of a batch."""
    overestimated: str = ""
    """What keeps memory off the device and has no price: that it does not fit is not known."""
