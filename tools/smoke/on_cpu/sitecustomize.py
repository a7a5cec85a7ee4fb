"""On the path of a job that fine-tunes: Accelerate shards over the CPU, and says what it holds.

Python imports this module when it starts. Only ranks are changed: they have LOCAL_RANK.
"""

import json
import os

LINE = "planner-tuned "


def shard_over_the_cpu():
    """Let Accelerate form groups of gloo and take them for those of GPUs, which it shards."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    start = PartialState.__init__

    def start_on_cpu(self, cpu=False, **more):
        start(self, **more)

    PartialState.__init__ = start_on_cpu
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)


def held(tensors):
    """Return elements on this rank, and of the whole."""
    pairs = [
        (t.to_local().numel() if hasattr(t, "to_local") else t.numel(), t.numel()) for t in tensors
    ]
    return [sum(own for own, _ in pairs), sum(whole for _, whole in pairs)]


def report_after_training():
    """Print one line of what the first rank holds, trained and frozen."""
    from transformers import Trainer

    train = Trainer.train

    def train_and_say(self, *args, **kwargs):
        result = train(self, *args, **kwargs)
        weights = list(self.model.parameters())
        reference = getattr(self, "ref_model", None)
        line = {
            "trained": held([w for w in weights if w.requires_grad]),
            "frozen": held([w for w in weights if not w.requires_grad]),
            "reference": held(list(reference.parameters())) if reference else [0, 0],
            "losses": [row["loss"] for row in self.state.log_history if "loss" in row],
            "tokens": [row["num_tokens"] for row in self.state.log_history if "num_tokens" in row],
            "world_size": self.accelerator.num_processes,
        }
        if self.accelerator.is_main_process:
            print(LINE + json.dumps(line), flush=True)
        return result

    Trainer.train = train_and_say


if os.environ.get("LOCAL_RANK"):
    if (
        os.environ.get("ACCELERATE_USE_FSDP") == "true"
    ):  # plain replicas it forms on the CPU itself
        shard_over_the_cpu()
    report_after_training()
