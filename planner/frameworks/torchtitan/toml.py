"""Writes a plan as a job file of torchtitan 0.2.2, the last release that reads one.

A job file names a registered model, so the sizes must be those of one; it has fewer options than
a recipe too. Where a plan has none, a text file says why.
"""

import json
from collections.abc import Iterator

from costmodels.plans import Layout
from costmodels.shapes import ModelShape, TrainingJob
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.emitted_text import (
    fact_lines,
    head,
    shown_details,
    stated_or_none,
    train_steps,
)
from planner.frameworks.torchtitan.fields import batch, compiler, parallelism, pipeline
from planner.frameworks.torchtitan.releases import TOML_RELEASE
from searches.frameworks.registry import BUILT_IN

RELEASE = BUILT_IN["torchtitan"].release

FLAVORS: dict[tuple[str, str], dict[str, int | bool]] = {}
"""Sizes of the registered models (torchtitan/models/*/__init__.py) under the names of the model
file; what is not listed is as in a plain dense model."""


def _dense(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, **more: int
) -> dict[str, int | bool]:
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "kv_heads": kv_heads, "ffn": ffn}
    return sizes | {"vocab": vocab, "head_dim": 128, "tied": False} | more


def _experts(
    n: int, top_k: int, ffn: int, shared: int = 0, dense: int = 0, every: int = 1
) -> dict[str, int]:
    return {
        "n_experts": n,
        "top_k": top_k,
        "expert_ffn": ffn,
        "shared_ffn": shared,
        "dense_layers": dense,
        "moe_every": every,
    }


def _latent(q_rank: int) -> dict[str, int]:
    return {
        "q_rank": q_rank,
        "kv_rank": 512,
        "qk_nope": 128,
        "qk_rope": 64,
        "v_head": 128,
        "head_dim": 192,
    }


FLAVORS |= {
    ("llama3", "debugmodel"): _dense(6, 256, 16, 16, 768, 2048, head_dim=16),
    ("llama3", "8B"): _dense(32, 4096, 32, 8, 14336, 128256),
    ("llama3", "70B"): _dense(80, 8192, 64, 8, 28672, 128256),
    ("llama3", "405B"): _dense(126, 16384, 128, 8, 53248, 128256),
    ("qwen3", "0.6B"): _dense(28, 1024, 16, 8, 3072, 151936, tied=True),
    ("qwen3", "1.7B"): _dense(28, 2048, 16, 8, 6144, 151936, tied=True),
    ("qwen3", "4B"): _dense(36, 2560, 32, 8, 9728, 151936, tied=True),
    ("qwen3", "8B"): _dense(36, 4096, 32, 8, 12288, 151936),
    ("qwen3", "14B"): _dense(40, 5120, 40, 8, 17408, 151936),
    ("qwen3", "32B"): _dense(64, 5120, 64, 8, 25600, 151936),
    ("qwen3", "30B-A3B"): _dense(48, 2048, 32, 4, 0, 151936, **_experts(128, 8, 768)),
    ("qwen3", "235B-A22B"): _dense(94, 4096, 64, 4, 0, 151936, **_experts(128, 8, 1536)),
    ("llama4", "17bx16e"): _dense(48, 5120, 40, 8, 0, 202048, **_experts(16, 1, 8192, 8192)),
    ("llama4", "17bx128e"): _dense(
        48, 5120, 40, 8, 16384, 202048, **_experts(128, 1, 8192, 8192, every=2)
    ),
    ("deepseek_v3", "debugmodel"): _dense(
        6, 256, 16, 16, 1024, 2048, **_experts(8, 3, 256, 512, 1), **_latent(0)
    ),
    ("deepseek_v3", "16B"): _dense(
        27, 2048, 16, 16, 10944, 102400, **_experts(64, 6, 1408, 2816, 1), **_latent(0)
    ),
    ("deepseek_v3", "236B"): _dense(
        60, 5120, 128, 128, 12288, 102400, **_experts(160, 6, 1536, 3072, 1), **_latent(1536)
    ),
    ("deepseek_v3", "671B"): _dense(
        61, 7168, 128, 128, 18432, 129280, **_experts(256, 8, 2048, 2048, 3), **_latent(1536)
    ),
    ("gpt_oss", "20b"): _dense(
        24, 2880, 64, 8, 0, 201088, head_dim=64, bias=True, **_experts(32, 4, 2880)
    ),
    ("gpt_oss", "120b"): _dense(
        36, 2880, 64, 8, 0, 201088, head_dim=64, bias=True, **_experts(128, 4, 2880)
    ),
}

SDPA = ("llama3", "llama4", "qwen3")
"""Models whose registered flavors use the attention that context parallelism of 0.2.2 splits."""
_PLAIN: dict[str, int | bool] = {"n_experts": 0, "kv_rank": 0, "bias": False, "mtp_layers": 0}
_ROTATE = {"all-gather": "allgather", "p2p": "alltoall"}
"""`context_parallel_rotate_method`: gather all keys, or pass them on by all-to-alls."""


def registered_model(shape: ModelShape) -> tuple[str, str] | None:
    """Return (name, flavor) of the registered model with these sizes, None when there is none."""
    rotary = shape.gated and shape.norm == "rmsnorm" and shape.positions == "rope"
    for key, sizes in FLAVORS.items():
        dense = not all(shape.expert_layers)  # a model without dense layers has no such width
        wanted = {k: v for k, v in (_PLAIN | sizes).items() if dense or k != "ffn"}
        if rotary and all(getattr(shape, name) == value for name, value in wanted.items()):
            return key
    return None


def toml_files(request: EmitRequest) -> dict[str, str]:
    """Return the job file, or a text that says why there is none."""
    reasons = list(_why_not(request.layout, request.shape, request.job))
    if reasons:
        recipe = f"the recipe is for {RELEASE} and later."
        first = f"No job file for torchtitan {TOML_RELEASE}; {recipe}"
        lines = [first, *request.header, "", *(f"- {reason}" for reason in reasons)]
        return {"torchtitan-toml.txt": "\n".join(lines) + "\n"}
    return {"torchtitan.toml": _job_file(request)}


def _why_not(layout: Layout, shape: ModelShape, job: TrainingJob) -> Iterator[str]:
    """Yield what keeps torchtitan 0.2.2 from a plan that the recipe holds."""
    result = registered_model(shape)
    if result is None:
        yield "model: a job file can only name a registered model, and none has these sizes"
    if layout.tp > 1 and not layout.sp:
        yield f"tensor parallelism of {layout.tp} comes with sequence parallelism in 0.2.2"
    divisor = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
    if job.seq_len % divisor:
        yield f"sequence: {job.seq_len} tokens do not divide by {divisor} (tp x 2 cp)"
    shard = layout.dp_shard if layout.zero else 1
    if max(shard, layout.cp) == 1 and layout.tp * layout.pp > 1:
        yield "precision: 0.2.2 computes in 16 bits only where FSDP shards, and here it does not"
    elif shard == 1 and layout.dp > 1 and layout.cp > 1:
        yield "ZeRO: FSDP of 0.2.2 shards over the context-parallel ranks"
    if layout.cp > 1 and result and result[0] not in SDPA:
        yield f"context parallelism: {result[0]} of 0.2.2 has no attention that it splits"
    if layout.cp > 1 and layout.cp_comm not in _ROTATE:
        yield f"context parallelism by {layout.cp_comm}: not in 0.2.2"
    if layout.recompute == "selective":
        yield "recompute: 0.2.2 has no recomputation of the attention core alone"
    if layout.recompute == "full" and not _layer_step(layout):
        yield f"recompute: no every n-th layer gives {layout.recompute_layers} of each stage"


def _layer_step(layout: Layout) -> int:
    """Return n where recomputing every n-th layer is what the plan recomputes, else 0."""
    counts, k = set(layout.stage_layers), layout.recompute_layers
    if k >= max(counts):
        return 1
    share, rest = divmod(min(counts), k) if k else (0, 0)
    return share if len(counts) == 1 and not rest else 0


def _job_file(request: EmitRequest) -> str:
    layout, shape, job, details = request.layout, request.shape, request.job, request.details
    name, flavor = registered_model(shape) or ("", "")
    fields = parallelism(layout)
    del fields["enable_sequence_parallel"]
    if layout.pp > 1:
        fields |= pipeline(layout, "output")
    if layout.ep > 1:
        fields["expert_tensor_parallel_degree"] = layout.etp
    if layout.cp > 1:
        fields["context_parallel_rotate_method"] = _ROTATE[layout.cp_comm]
    if layout.schedule == "dualpipe-v" and layout.recompute != "none":
        fields["pipeline_parallel_expert_parallel_overlap"] = False
    asynchronous = compiler(layout)
    if asynchronous:
        fields["enable_async_tensor_parallel"] = asynchronous.pop("enable_async_tensor_parallel")
    title = f"torchtitan job file; keys as of torchtitan {TOML_RELEASE}."
    precision = "float32" if job.precision == "fp32" else "bfloat16"
    sections: dict[str, dict[str, object]] = {
        "model": {"name": name, "flavor": flavor, "hf_assets_path": "./tests/assets/tokenizer"},
        "optimizer": {"name": "AdamW", "lr": 1.5e-4},
        "training": {
            "dataset": "c4_test",
            **batch(layout),
            "seq_len": job.seq_len,
            "steps": train_steps(job),
            "mixed_precision_param": precision,
        },
        "parallelism": fields,
        "activation_checkpoint": recompute_keys(layout),
        "metrics": {"log_freq": 1},
    }
    if asynchronous:
        sections["compile"] = asynchronous
    lines = [
        *head(title, request.header, fact_lines(request, stated_or_none(details)))[1:],
        "#",
        "# torchrun ... -m torchtitan.train --job.config_file torchtitan.toml",
        "# torchtitan.sh --smoke takes this file where torchtitan 0.2 is installed.",
        "# hf_assets_path, dataset and the learning rate are yours.",
        *(f"# {line}" for line in shown_details(details)),
        *["# What the registered model has otherwise is yours."] * bool(details.stated()),
    ]
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def recompute_keys(layout: Layout) -> dict[str, object]:
    """Return the keys of [activation_checkpoint]; {} where 0.2.2 cannot say the recomputation."""
    if layout.recompute == "none":
        return {"mode": "none"}
    step = _layer_step(layout)
    if layout.recompute == "selective" or not step:
        return {}
    if step == 1:
        return {"mode": "full"}
    return {"mode": "selective", "selective_ac_option": str(step)}
