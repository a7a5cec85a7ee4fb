"""A plan as tools that fine-tune run it, and the engine under them."""

from dataclasses import dataclass, replace

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from costmodels.tuning.records import TuningJob
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.finetuning.tuners import ENGINES, Tuner
from planner.frameworks.runs.existing_run import PAIR_SEQUENCES
from searches.frameworks.registry import framework_rules
from searches.frameworks.table import refusals


@dataclass(frozen=True, slots=True)
class TunedPlan:
    """One plan, for one tool on one engine."""

    tuner: Tuner
    request: EmitRequest
    engine: str
    """Key of the framework that runs it, one of `ENGINES`."""

    @property
    def layout(self) -> Layout:
        """The plan."""
        return self.request.layout

    @property
    def job(self) -> TrainingJob:
        """What is trained."""
        return self.request.job

    @property
    def shape(self) -> ModelShape:
        """The model."""
        return self.request.shape

    @property
    def tuning(self) -> TuningJob | None:
        """The adapters; None where all weights are trained."""
        return self.request.job.tuning

    @property
    def compares_answers(self) -> bool:
        """Whether samples are pairs of answers (DPO)."""
        return self.job.compares_answers

    @property
    def sample_layout(self) -> Layout:
        """The plan with batches in samples, as the tools count them: a pair is one."""
        x = self.layout
        if not self.compares_answers:
            return x
        return replace(x, mbs=x.mbs // PAIR_SEQUENCES, gbs=x.gbs // PAIR_SEQUENCES)

    @property
    def on_deepspeed(self) -> bool:
        """Whether DeepSpeed's engine runs it."""
        return framework_rules(self.engine).name == "deepspeed"

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP2 shards it; else Accelerate runs plain replicas, or DeepSpeed runs it."""
        return not self.on_deepspeed and self.layout.zero > 0

    @property
    def shards_weights(self) -> bool:
        """Whether no rank holds all weights between steps."""
        return self.is_sharded or self.layout.zero == 3

    @property
    def recomputes(self) -> bool:
        """Whether layers are recomputed: all of them, or none."""
        return self.layout.recompute == "full" and self.layout.recompute_layers > 0


def engine_of(
    layout: Layout,
    shape: ModelShape,
    job: TrainingJob | None = None,
    searched: str = "",
    vendor: str = "",
) -> str:
    """Return the key of the framework under a tool: the first of `ENGINES` that runs the plan.

    `searched`, the key that the plan was searched for, comes first where it is one of them. Where
    none runs it, the first that was tried.
    """
    own = searched.partition("@")[0]
    keys = [searched] if own in ENGINES else []
    keys += [name for name in ENGINES if name != own]
    able = (key for key in keys if not refusals(key, layout, shape, job, vendor))
    return next(able, keys[0])
