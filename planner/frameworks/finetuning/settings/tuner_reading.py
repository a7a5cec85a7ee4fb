"""How a configuration of a tool is read: a record, and what it refuses of a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.errors import InputProblem, SpecError
from planner.frameworks.runs.format import FindFile

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerReading:
    """One tool: its keys, and what they say in fields of our files."""

    name: str
    """Of its record in `TUNERS`."""
    title: str
    groups: tuple[tuple[str, ...], ...]
    """Keys of which a file has one of each group."""
    strange: tuple[str, ...] = ()
    """Keys of which it has none: those of another program with the same ones."""
    defaults: Mapping[str, Any]
    """What it takes where its file says nothing."""
    arguments: Callable[[Settings], dict[str, Any]]
    """Its settings as arguments of the Trainer."""
    lora: Callable[[Settings], dict[str, Any] | None]
    """The section `training.lora`; None where all weights are trained."""
    packing: Callable[[Settings], str]
    """One of `costmodels.data.lengths.PACKINGS`."""
    reference: Callable[[Settings], str]
    """Of pairs of answers one of `costmodels.tuning.records.REFERENCES`; empty: plain samples."""
    launch: Callable[[Settings, FindFile], dict[str, Any] | None]
    """The launch configuration of Accelerate that the file itself says; None: it says none."""
    held_values: Callable[[Settings, int | None], dict[str, tuple[int, ...]]] = lambda *_: {}
    """Values by axis of plans that its files can say on so many devices, where its engine runs
    more."""
    precision: Callable[[Settings], str] = lambda _: ""
    """The precision of `training:`; empty: what the engine makes of the arguments."""
    batch_samples: int = 0
    """Samples that a step accumulates over all devices where the file does not say; 0: none."""
    stages: tuple[str, ...] = ()
    """Values of `stage` or `rl` that are read."""
    sections: tuple[str, ...] = ()
    """Settings that hold others in its files, and are none by themselves."""
    notes: Callable[[Settings], tuple[str, ...]] = lambda _: ()
    """What of its settings is priced otherwise."""
    refused: Callable[[Settings], tuple[str, ...]] = lambda _: ()
    """What of its settings the tool itself refuses, in words."""
    means: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Values that are read of settings which say what is trained and how weights are held."""
    not_training: Callable[[Settings], str] = lambda _: ""
    """What a file of another program of the tool does in place of training; empty: it trains."""
    key_names: Mapping[str, str] = field(default_factory=dict)
    """Its names of the engine's settings, where they are other ones."""
    left_out_names: Callable[[Settings], tuple[str, ...]] = lambda _: ()
    """Settings of `key_names` that a file cannot set, by those of the engine."""

    def named_keys(self, settings: Settings) -> dict[str, str]:
        """Return the settings of the engine that a file can set, by the tool's names."""
        without = self.left_out_names(settings)
        return {key: name for key, name in self.key_names.items() if key not in without}


def check_training(reading: TunerReading, settings: Settings, source: str) -> None:
    """Raise `SpecError` for a file that trains nothing."""
    if what := reading.not_training(settings):
        message = f"{reading.title}: not a training run: it {what}"
        raise SpecError(InputProblem(message, "check the configuration that trains", source))


def check_stage(reading: TunerReading, settings: Settings, source: str) -> None:
    """Raise `SpecError` for a stage that is neither samples nor pairs of answers."""
    key = next((name for name in ("rlhf_type", "stage", "rl") if settings.get(name)), "")
    stage = settings.get(key)
    if stage and str(stage) not in reading.stages:
        fix = f"{key} {' or '.join(reading.stages)}"
        message = f"{reading.title} trains by {stage} here, which is not read"
        raise SpecError(InputProblem(message, fix, source))


def check_means(reading: TunerReading, settings: Settings, source: str) -> None:
    """Raise `SpecError` for ways to train, or to hold weights, that are not read."""
    for key, known in reading.means.items():
        value = settings.get(key)
        if value and str(value) not in map(str, known):
            fix = f"{key} {' or '.join(map(str, known))}"
            raise SpecError(
                InputProblem(f"{reading.title}: {key} {value} is not read", fix, source)
            )
