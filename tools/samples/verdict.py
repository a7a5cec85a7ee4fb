"""What `planner check` says of files that the frameworks are asked about, without pricing them."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from costmodels.shapes import ModelShape, TrainingJob
from planner.checking import describe, judge
from planner.errors import PlannerError
from planner.inputs import ModelInput, _canonical_model
from planner.runs.reading import Asked, read_run
from searches.frameworks import RELEASES

READ = {
    "megatron": "megatron.sh",
    "deepspeed": "deepspeed.sh",
    "torchtitan": "torchtitan_recipe.py",
    "torchtitan-toml": "torchtitan.toml",
    "accelerate": "accelerate.sh",
}
"""The file that `planner check` is given, by checker."""
SAYS_MODEL = ("megatron", "torchtitan", "torchtitan-toml")
"""Files that describe the model; with the others it is named on the command line."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rules that files break."""

    refused: tuple[tuple[str, str], ...]
    """Code and reason of each rule that the framework itself enforces."""
    error: str = ""
    """Why the files could not be read; empty where they could."""

    def to_json(self) -> dict[str, Any]:
        """Return the verdict for a line of a sample."""
        rules = [{"code": code, "reason": reason} for code, reason in self.refused]
        return {"refused": rules, "error": self.error}


def verdict(
    checker: str,
    files: Mapping[str, str],
    shape: ModelShape,
    job: TrainingJob,
    generation: str,
    n_devices: int,
) -> Verdict:
    """Return what `planner check` says of the files of one checker.

    `n_devices` is the cluster's, for files that do not say how many processes they start.
    """
    own = None if checker in SAYS_MODEL else ModelInput(shape, job, document_of(shape, job), "")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        try:
            run = read_run(str(Path(folder, READ[checker])), Asked(own, n_devices=n_devices))
            model, _ = describe(run, own)
            refused, _ = judge(run, model, generation, RELEASES[run.framework])
        except PlannerError as error:
            return Verdict((), str(error).replace(folder, ""))
    return Verdict(tuple((broken.rule.code, broken.reason) for broken in refused))


def document_of(shape: ModelShape, job: TrainingJob) -> dict[str, Any]:
    """Return a model and job as the document of a model file."""
    training = {k: v for k, v in asdict(job).items() if k != "tokens" or v}
    return {"model": _canonical_model(shape), "training": training}

