"""Draws jobs for tools that fine-tune, writes their files, and reads these back.

    python -m tools.samples.tuned OUT.jsonl --plans 30 --seed 0 --for trl,axolotl

A line holds the id, the tool, its files, what the tool must understand of them, and what
`planner check` read otherwise than was planned.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from costmodels.plans import Layout
from costmodels.shapes import TrainingJob
from costmodels.tuning.model import model_adapter_params
from costmodels.tuning.records import BASES
from costmodels.tuning.targets import FUSED, known_targets
from planner.analyze.check.verdict import describe
from planner.errors import PlannerError
from planner.frameworks.emit import emit_plan, refusal_file
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.finetuning.tuners import ENGINES, TUNERS
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.specs.inputs import ModelInput
from planner.specs.loader import model_from_dict
from tools.samples.draw import pool_of

Document = dict[str, Any]
SIZES = {"layers": 4, "hidden": 128, "heads": 8, "kv_heads": 2, "ffn": 256, "vocab": 1024}
MODELS: dict[str, Document] = {
    "llama": {**SIZES, "gated": True, "tied": False},
    "tied": {**SIZES, "gated": True, "tied": True},
    "starcoder": {**SIZES, "gated": False, "tied": True, "norm": "layernorm", "bias": True},
    "qwen": {**SIZES, "gated": True, "tied": False, "details": {"qk_norm": "head"}},
    "experts": {
        **{**SIZES, "gated": True, "tied": False},
        "moe": {"experts": 8, "topk": 2, "moe_ffn": 64},
    },
    "latent": {
        **{k: v for k, v in SIZES.items() if k != "kv_heads"},
        **{"gated": True, "tied": False},
        "mla": {"q_rank": 32, "kv_rank": 16, "qk_nope": 16, "qk_rope": 8, "v_head": 16},
    },
}
"""Small models of the classes that the tools load most."""
LENGTHS = {"mean": 300, "p95": 900}
WIDER = {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024}
MODELS_OF: dict[str, dict[str, Document]] = {
    "torchtune": {"llama": {**WIDER, "gated": True, "tied": False}}
}
"""Small models of tools that have not the layers of all; wide enough for torchao's NF4."""
MOST_TRIES = 600
"""Jobs drawn for one that the tool can say, before the sampler gives up."""


@dataclass(frozen=True, slots=True)
class TunedSample:
    """One job for one tool, with its files."""

    name: str
    tool: str
    layout: Layout
    model: ModelInput
    files: dict[str, str]


def drawn_training(random: Random, model: Document) -> Document:
    """Return a `training:` section: all weights, or adapters of some layers."""
    training: Document = {
        "seq_len": random.choice((512, 2048, 4096)),
        "global_batch": 1,
        "precision": random.choice(("bf16", "bf16", "bf16", "fp16", "fp32", "bf16-true")),
        "optimizer": random.choice(("adam", "adam", "adam-8bit")),
        "task": random.choice(("sft", "lora", "lora", "qlora", "dpo")),
        "tokens": random.choice((None, 10_000_000)),
    }
    packing = random.choice((None, "masked", "unmasked", "none"))
    if training["task"] == "dpo" or (training["task"] != "sft" and random.random() < 0.4):
        training["reference"] = random.choice(("memory", "precomputed"))
        packing = random.choice((None, "none"))  # pairs are not packed
    if packing:
        training["data"] = {"packing": packing, "lengths": LENGTHS}
    if training["task"] in ("lora", "qlora"):
        training["lora"] = drawn_lora(random, model, training["task"])
    return {key: value for key, value in training.items() if value is not None}


def drawn_lora(random: Random, model: Document, task: str) -> Document:
    """Return a `lora:` section."""
    plain = {"model": {"name": "m", **model}, "training": {"seq_len": 512, "global_batch": 1}}
    names = [x for x in known_targets(model_from_dict(plain).shape) if x not in FUSED]
    bases = [name for name, one in BASES.items() if one.is_quantized]
    rank = random.choice((4, 8, 16, 64))
    return {
        "rank": rank,
        "alpha": random.choice((rank, 2 * rank, 16)),
        "targets": sorted(random.sample(names, random.randint(1, len(names)))),
        "dropout": random.choice((0.0, 0.0, 0.05)),
        "base": random.choice(bases) if task == "qlora" else "bf16",
    }


def drawn_layout(random: Random, model: ModelInput, n_devices: int, n_micro: int) -> Layout:
    """Return a layout without tensor, context and pipeline parallelism."""
    layers, mbs = model.shape.layers, random.choice((1, 2, 4))
    recompute = random.choice(("none", "full"))
    shards = [n for n in (2, 4, 8, 16) if n <= n_devices]
    zero = random.choice((0, 1, 2, 3, 3)) if n_devices > 1 else 0
    own = random.choice(shards) if zero >= 2 and random.random() < 0.4 else 0
    return Layout(
        n_devices=n_devices,
        tp=1,
        pp=1,
        vpp=1,
        split="even",
        mbs=mbs,
        gbs=mbs * n_micro * n_devices,
        zero=zero,
        sp=False,
        recompute=recompute,
        recompute_layers=layers if recompute == "full" else 0,
        dp=n_devices,
        schedule="none",
        stage_layers=(layers,),
        shard=own if own < n_devices else 0,
        optimizer_offload=zero == 2 and random.random() < 0.3,
    )


def drawn_sample(random: Random, tool: str, turn: int) -> TunedSample | None:
    """Return a job that a tool can say on one of the engines; None where it cannot."""
    models = MODELS_OF.get(tool, MODELS)
    kind = random.choice(sorted(models))
    n_devices = random.choice((1, 2, 4, 8, 16))
    training = drawn_training(random, models[kind])
    document = {"model": {"name": kind, **models[kind]}, "training": training}
    layout = drawn_layout(random, model_from_dict(document), n_devices, random.choice((1, 2, 8)))
    training["global_batch"] = layout.gbs
    model = model_from_dict(document)
    pool = pool_of("hopper", n_devices, min(8, n_devices))
    name = f"{tool}-{turn:04d}-{kind}-{training['task']}-n{n_devices}"
    request = EmitRequest(
        layout,
        model.shape,
        model.job,
        pool,
        (f"sample {name}",),
        model.details,
        engine="fsdp2" if TUNERS[tool].has_own_loop else random.choice(ENGINES),
    )
    files = emit_plan(tool, request)
    if refusal_file(tool) in files:
        return None
    return TunedSample(name, tool, layout, model, files)


def drawn_samples(tool: str, n: int, seed: int) -> Iterator[TunedSample]:
    """Yield so many jobs that a tool can say."""
    random = Random(f"{seed} {tool}")
    for turn in range(n):
        tries = (drawn_sample(random, tool, turn) for _ in range(MOST_TRIES))
        found = next((one for one in tries if one is not None), None)
        if found is None:
            raise SystemExit(f"{tool}: of {MOST_TRIES} jobs none can be said")
        yield found


def misread(sample: TunedSample, file: str) -> list[str]:
    """Return what `planner check` reads of a file otherwise than was planned.

    It is given the sizes of the model and a job that says neither task nor adapters.
    """
    layout, job = sample.layout, sample.model.job
    told = {**sample.model.document["training"], "task": "pretrain", "lora": {}, "reference": None}
    own = model_from_dict({**sample.model.document, "training": told})
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sample.files.items():
            Path(folder, name).write_text(text)
        query = RunQuery(own, n_devices=layout.n_devices, all_devices=True)
        try:
            run = read_run(str(Path(folder, file)), query)
        except PlannerError as error:
            return [f"{file}: {error}"]
    read, why = describe(run, own)
    if read is None:
        return [f"{file}: {why}"]
    pairs = [
        (name, run.layout[name], getattr(layout, name))
        for name in ("dp", "mbs", "gbs", "n_micro", "zero", "dp_shard", "recompute")
        if name in run.layout and not (name == "dp_shard" and not layout.zero)
    ]
    if layout.n_devices == 1:
        pairs = [pair for pair in pairs if pair[0] not in ("zero", "dp_shard")]
    pairs += [("optimizer_offload", run.layout["optimizer_offload"], layout.optimizer_offload)]
    names = ("tuning", "seq_len", "global_batch", "base_precision", "optimizer", "data")
    names += ("has_reference", "has_precomputed_reference")
    pairs += [(name, getattr(read.job, name), getattr(job, name)) for name in names]
    return [f"{file}: {name} is {got}, planned {want}" for name, got, want in pairs if got != want]


def wants(sample: TunedSample) -> Document:
    """Return what a tool must understand, in words that all tools share."""
    layout, job = sample.layout, sample.model.job
    tuning, data = job.tuning, job.data
    shape = sample.model.shape
    adapters: Document = {"trained": None}
    if tuning is not None:
        adapters = {
            "rank": tuning.rank,
            "alpha": tuning.alpha,
            "dropout": tuning.dropout,
            "base": tuning.base,
            "trained": round(model_adapter_params(shape, tuning, 1.0)),
        }
    return {
        "global_batch": layout.gbs,
        "micro_batch": layout.mbs,
        "seq_len": job.seq_len,
        "packing": data.packing if data and data.packing != "none" else "none",
        "recomputes": layout.recompute == "full",
        "reference": reference_of(job),
        "half": half_of(job),
        **adapters,
    }


def half_of(job: TrainingJob) -> str:
    """Return the half precision that a job computes in; empty where it is another."""
    if job.recipe.is_narrow:
        return "bf16"
    return job.precision if job.precision in ("bf16", "fp16") else ""


def reference_of(job: TrainingJob) -> str:
    """Return where the reference of a job is; empty where it compares no answers."""
    before = "precomputed" if job.has_precomputed_reference else ""
    return "memory" if job.has_reference else before


def line_of(sample: TunedSample) -> Document:
    """Return the line of one sample."""
    tuner = TUNERS[sample.tool]
    ours = [*misread(sample, tuner.config_file), *misread(sample, tuner.launcher_file)]
    return {
        "id": sample.name,
        "tool": sample.tool,
        "world_size": sample.layout.n_devices,
        "files": sample.files,
        "wants": wants(sample),
        "ours": ours,
    }


def main() -> int:
    """Write the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--plans", type=int, default=30, help="of each tool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--for", dest="tools", default=",".join(TUNERS))
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with options.out.open("w") as out:
        for tool in options.tools.split(","):
            for sample in drawn_samples(tool, options.plans, options.seed):
                is_deepspeed = any(name.endswith("deepspeed.json") for name in sample.files)
                engine = "DeepSpeed" if is_deepspeed else f"zero {sample.layout.zero}"
                counts.update((f"{tool} on {engine}", sample.model.job.task))
                out.write(json.dumps(line_of(sample)) + "\n")
    print("; ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
