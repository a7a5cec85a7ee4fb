"""Changes to a DeepSpeed configuration and its launcher, each of which breaks one rule."""

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any


class DeepSpeedRun:
    """The keys of the JSON, and the numbers of nodes and processes of the launcher."""

    def __init__(self, files: dict[str, str]) -> None:
        self.keys: dict[str, Any] = json.loads(files["deepspeed.json"])
        self.launcher = files["deepspeed.sh"]
        self.repeat = ""

    def files(self) -> dict[str, str]:
        """Return the files; `repeat` names a key that stands twice in the JSON."""
        text = json.dumps(self.keys, indent=2)
        if self.repeat:
            text = text.replace("{", "{\n  " + json.dumps(self.repeat) + ": 1,", 1)
        return {"deepspeed.json": text + "\n", "deepspeed.sh": self.launcher}

    @property
    def zero(self) -> dict[str, Any]:
        """The block of ZeRO."""
        block: dict[str, Any] = self.keys["zero_optimization"]
        return block

    @property
    def stage(self) -> int:
        """ZeRO stage."""
        return int(self.zero["stage"])

    def number(self, option: str) -> int:
        """Return a number of the launcher."""
        found = re.search(rf"--{option} (\d+)", self.launcher)
        return int(found[1]) if found else 1

    @property
    def world(self) -> int:
        """Number of processes."""
        return self.number("num_nodes") * self.number("num_gpus")

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.number("pipeline-stages")

    def put_launcher(self, option: str, value: int) -> None:
        """Set a number of the launcher."""
        self.launcher = re.sub(rf"(--{option}) \d+", rf"\1 {value}", self.launcher)


Change = Callable[[DeepSpeedRun, Random], bool]


def put(
    path: str, value: object, when: Callable[[DeepSpeedRun], bool] = lambda run: True
) -> Change:
    """Return the change that sets a key, dots between its levels, where `when` holds."""

    def change(run: DeepSpeedRun, random: Random) -> bool:
        if not when(run):
            return False
        block = run.keys
        *blocks, name = path.split(".")
        for part in blocks:
            block = block.setdefault(part, {})
        block[name] = value
        return True

    return change


def _batch(run: DeepSpeedRun, random: Random) -> bool:
    name = random.choice(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    if "train_batch_size" not in run.keys:
        return False
    run.keys[name] += random.choice((1, 2))
    return True


def _batch_of_all_ranks(run: DeepSpeedRun, random: Random) -> bool:
    if "tensor_parallel" not in run.keys:
        return False
    sizes = run.keys["train_micro_batch_size_per_gpu"] * run.keys["gradient_accumulation_steps"]
    run.keys["train_batch_size"] = sizes * run.world // run.keys["tensor_parallel"]["autotp_size"]
    return True


def _empty_batch(run: DeepSpeedRun, random: Random) -> bool:
    run.keys[random.choice([name for name in NUMBERS if name in run.keys])] = 0
    return True


def _no_batch(run: DeepSpeedRun, random: Random) -> bool:
    run.keys.pop("train_batch_size", None)
    del run.keys["train_micro_batch_size_per_gpu"]
    return True


def _odd_tp(run: DeepSpeedRun, random: Random) -> bool:
    odd = [tp for tp in (3, 5, 7, 11, 13) if run.world % tp]
    run.keys.pop("train_batch_size", None)
    if not odd or run.stages > 1:
        return False
    run.keys["tensor_parallel"] = {"autotp_size": random.choice(odd)}
    return True


def _odd_stages(run: DeepSpeedRun, random: Random) -> bool:
    odd = [n for n in range(2, run.stages + 9) if run.world % n]
    if run.stages == 1 or not odd:
        return False
    run.put_launcher("pipeline-stages", random.choice(odd))
    return True


def _unknown_in_block(run: DeepSpeedRun, random: Random) -> bool:
    block = random.choice(("zero_optimization", "bf16", "fp16", "tensor_parallel", "compile"))
    if block not in run.keys and block in ("bf16", "fp16"):
        return False
    run.keys.setdefault(block, {})["no_such_key"] = 1
    return True


def _unread(run: DeepSpeedRun, random: Random) -> bool:
    run.keys[
        random.choice(
            (
                "zero_optimisation",
                "train_micro_batch_size",
                "activation_checkpoint",
                "pipeline_parallel_size",
                "tensor_parallel_size",
            )
        )
    ] = 1
    return True


def _removed(run: DeepSpeedRun, random: Random) -> bool:
    name = random.choice(
        (
            "amp",
            "elasticity",
            "nebula",
            "compression_training",
            "sparse_attention",
            "curriculum_learning",
        )
    )
    run.keys[name] = {"enabled": False}
    return True


def _mics(run: DeepSpeedRun, random: Random) -> bool:
    run.zero["mics_shard_size"] = 8
    return True


def _repeated(run: DeepSpeedRun, random: Random) -> bool:
    run.repeat = "steps_per_print"
    return True


def _odd_hpz(run: DeepSpeedRun, random: Random) -> bool:
    odd = [n for n in range(2, 14) if n < run.world and run.world % n]
    if run.stage != 3 or not odd:
        return False
    run.zero["zero_hpz_partition_size"] = random.choice(odd)
    return True


def below_3(run: DeepSpeedRun) -> bool:
    """Tell whether the run shards less than the weights."""
    return run.stage < 3


def _sharded_pipeline(run: DeepSpeedRun, random: Random) -> bool:
    run.zero["stage"] = random.choice((2, 3))
    return run.stages > 1


def _both_precisions(run: DeepSpeedRun, random: Random) -> bool:
    run.keys["fp16"] = {"enabled": True}
    return "bf16" in run.keys


def _odd_mesh(run: DeepSpeedRun, random: Random) -> bool:
    run.keys |= {"sequence_parallel_size": 2, "data_parallel_size": run.world}
    return True


def ulysses_of_experts(run: DeepSpeedRun) -> bool:
    """Tell whether a run has AutoEP and Ulysses."""
    return "expert_parallel" in run.keys and run.keys.get("sequence_parallel_size", 1) > 1


def unsharded(run: DeepSpeedRun) -> bool:
    """Tell whether nothing is sharded."""
    return run.stage == 0


ZERO = "zero_optimization"
BREAKS: tuple[tuple[str, str, Change], ...] = (
    ("DSP401", "sharded gradients in a pipeline", _sharded_pipeline),
    ("DSP123", "batch sizes that do not multiply", _batch),
    ("DSP123", "batch counted over tensor parallelism", _batch_of_all_ranks),
    ("DSP123", "no batch size", _no_batch),
    ("DSP126", "a batch size of 0", _empty_batch),
    ("DSP101|DSP123", "tp that does not divide the ranks", _odd_tp),
    ("DSP101", "stages that do not divide the ranks", _odd_stages),
    ("DSP121", "unknown key in a block", _unknown_in_block),
    ("DSP122", "key that is not read", _unread),
    ("DSP120", "removed feature", _removed),
    ("DSP120", "MiCS", _mics),
    ("DSP119", "repeated key", _repeated),
    ("DSP412", "hpZ that does not divide the ranks", _odd_hpz),
    ("DSP411", "hpZ beside another stage", put(f"{ZERO}.zero_hpz_partition_size", 2, below_3)),
    ("DSP411", "quantised weights", put(f"{ZERO}.zero_quantized_weights", True, below_3)),
    ("DSP411", "quantised gradients", put(f"{ZERO}.zero_quantized_gradients", True, below_3)),
    ("DSP411", "offloaded weights", put(f"{ZERO}.offload_param", {"device": "cpu"}, below_3)),
    (
        "DSP411",
        "optimizer on NVMe",
        put(f"{ZERO}.offload_optimizer", {"device": "nvme", "nvme_path": "/nvme"}, below_3),
    ),
    (
        "DSP411",
        "part of the optimizer",
        put(f"{ZERO}.offload_optimizer", {"device": "cpu", "ratio": 0.5}, below_3),
    ),
    ("DSP307", "ZeRO-3 of experts with Ulysses", put(f"{ZERO}.stage", 3, ulysses_of_experts)),
    ("DSP410", "stage that does not exist", put(f"{ZERO}.stage", 4)),
    (
        "DSP413",
        "summed gradients",
        put("gradient_allreduce_op", "sum", lambda run: run.stage == 3),
    ),
    (
        "DSP414",
        "no gradient norm",
        put(f"{ZERO}.compute_grad_norm", False, lambda run: run.stage not in (1, 2)),
    ),
    ("DSP510", "two precisions", _both_precisions),
    (
        "DSP511",
        "states in bf16",
        put("bf16", {"enabled": True, "bf16_master_weights_and_grads": True}, unsharded),
    ),
    ("DSP124", "mesh of other than all ranks", _odd_mesh),
)
"""Rule, what is changed, and the change."""

NUMBERS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def nudge(run: DeepSpeedRun, random: Random) -> str:
    """Change one number at random; return what was done."""
    places: list[tuple[str, dict[str, Any], str]] = [
        (name, run.keys, name) for name in NUMBERS if name in run.keys
    ]
    places.append(("stage", run.zero, "stage"))
    if "tensor_parallel" in run.keys:
        places.append(("autotp_size", run.keys["tensor_parallel"], "autotp_size"))
    launcher = ["num_nodes"] + (["pipeline-stages"] if run.stages > 1 else [])
    pick = random.randrange(len(places) + len(launcher))
    if pick >= len(places):
        option = launcher[pick - len(places)]
        old = run.number(option)
        new = random.choice(sorted({old * 2, old + 1, max(1, old - 1)} - {old}))
        run.put_launcher(option, new)
        return f"{option} {old} to {new}"
    title, block, name = places[pick]
    old = int(block[name])
    new = random.choice(sorted({old * 2, old + 1, max(0, old - 1), old + 3} - {old}))
    block[name] = new
    return f"{title} {old} to {new}"
