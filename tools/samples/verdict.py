"""What `planner check` says of files that the frameworks are asked about, without pricing them."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from costmodels.shapes import TrainingJob
from planner.analyze.check.verdict import describe, judge
from planner.errors import PlannerError
from planner.frameworks.megatron.layer_kinds import kinds_of_runs
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.specs.inputs import ModelInput
from planner.specs.model import canonical_model
from searches.frameworks.registry import framework_rules
from tools.samples.draw import Drawn

READ = {
    "megatron": "megatron.sh",
    "deepspeed": "deepspeed.sh",
    "torchtitan": "torchtitan.sh",
    "torchtitan-toml": "torchtitan.toml",
    "accelerate": "accelerate.sh",
}
"""The file that `planner check` is given, by checker."""
SAYS_MODEL = ("megatron", "torchtitan", "torchtitan-toml")
"""Files that describe the model; with the others it is named on the command line."""

AT_REST = {f"training.{x.name}": x.default for x in fields(TrainingJob)}
"""What a document says of a job where it says nothing."""
NOT_WRITTEN = frozenset(("model.name", "training.tokens"))
"""What no framework is told."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rules that files break."""

    refused: tuple[tuple[str, str], ...]
    """Code and reason of each rule that the framework itself enforces."""
    error: str = ""
    """Why the files could not be read; empty where they could."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """What was read of the layout, under the names of `Layout` and of its properties."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The model and the job that were read, as the document of a model file."""

    def to_json(self) -> dict[str, Any]:
        """Return the verdict for a line of a sample."""
        rules = [{"code": code, "reason": reason} for code, reason in self.refused]
        return {"refused": rules, "error": self.error}


def verdict(checker: str, files: Mapping[str, str], drawn: Drawn, n_devices: int = 0) -> Verdict:
    """Return what `planner check` says of the files of one checker, which a plan was changed to.

    `n_devices` is the cluster's, for files that do not say how many processes they start; 0: the
    plan's.
    """
    document = document_of(drawn)
    own = ModelInput(drawn.shape, drawn.job, document, "", details=drawn.details)
    given = None if checker in SAYS_MODEL else own
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        named = framework_rules("megatron").release if checker == "megatron" else ""
        n = n_devices or drawn.layout.n_devices
        asked = RunQuery(given, n_devices=n, all_devices=True, version=named)
        try:
            run = read_run(str(Path(folder, READ[checker])), asked)
            model, _ = describe(run, given)
            release = run.release or framework_rules(run.framework).release
            accelerator = drawn.pool.accelerator
            # The release is known here: a flag that it does not know is refused.
            refused, ignored, _ = judge(run, model, accelerator, release, given, asserted=True)
        except PlannerError as error:
            return Verdict((), str(error).replace(folder, ""))
    # The checkers name what a framework passes over, too: our own files must not hold it.
    codes = tuple((broken.rule.code, broken.reason) for broken in (*refused, *ignored))
    return Verdict(codes, layout=run.layout, model=model.document if model else {})


def misread(found: Verdict, drawn: Drawn) -> list[str]:
    """Return what was read of a plan's layout, model or job as something else."""
    layout = drawn.layout
    lines = []
    for name, value in found.layout.items():
        wanted = (
            layout.stage_layers
            if name in ("counts", "stage_layers")
            else getattr(layout, name, value)
        )
        alone = layout.dp * layout.cp == 1 and name in ("zero", "dp_overlap")
        if name == "split" or wanted == value or alone:
            continue
        lines.append(f"{name} is {value}, the plan says {wanted}")
    if found.model:
        planned, read = flat(document_of(drawn)), flat(found.model)
        # Where every layer has experts no file has the width of the others.
        unused = {"model.ffn"} if all(drawn.shape.expert_layers) else set()
        if drawn.job.optimizer != "muon":  # no file has what another optimizer would do
            unused |= {name for name in planned if name.startswith("training.muon.")}
        lines += [
            f"{name} is {read.get(name)}, the plan says {planned.get(name)}"
            for name in sorted({*planned, *read} - NOT_WRITTEN - unused)
            if planned.get(name) != read.get(name, AT_REST.get(name))
        ]
    return lines


def document_of(drawn: Drawn) -> dict[str, Any]:
    """Return the model and job of a plan as the document of a model file."""
    return {
        "model": canonical_model(drawn.shape, drawn.details),
        "training": {k: v for k, v in asdict(drawn.job).items() if k != "tokens" or v},
    }


def flat(document: Mapping[str, Any], under: str = "") -> dict[str, Any]:
    """Return the values of nested mappings under their dotted names; of layers the kind of each.

    >>> flat({"model": {"layers": 32, "moe": {"top_k": 2}}})
    {'model.layers': 32, 'model.moe.top_k': 2}
    """
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{under}{name}.")
        elif name == "layer_kinds":
            found[f"{under}{name}"] = kinds_of_runs(value or ())
        else:
            found[f"{under}{name}"] = value
    return found
