#!/usr/bin/env python3
"""Write a matrix of emitted plans, so that the frameworks themselves can judge them.

    emit_cases.py OUT_DIR      # OUT_DIR/<number>-<id>/{megatron.sh,deepspeed.json,...}

The layouts are made by hand over the example shapes: every axis on and off, even and uneven
stages, every ZeRO stage, recompute, precision and accelerator generation. A folder of `solve --emit`
has the same form and is checked the same way.
"""

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from costmodels.examples import DEEPSEEK_V3, GPT3_175B, LLAMA3_8B, LLAMA3_70B, LLAMA3_405B, MIXTRAL_8X7B
from costmodels.layers.kinds import layer_run  # noqa: E402
from costmodels.plans import Layout  # noqa: E402
from costmodels.shapes import (  # noqa: E402
    DeltaNetShape,
    LayerRun,
    Mamba2Shape,
    ModelShape,
    TrainingJob,
    WindowShape,
)
from costmodels.schedule.stages import stage_layers  # noqa: E402
from hardware.parts import Accelerator, Efficiency, Link, Pool  # noqa: E402
from searches.frameworks.registry import framework_names  # noqa: E402
from planner.frameworks.emit_request import EmitRequest  # noqa: E402
from planner.frameworks.emit import emit_plan  # noqa: E402

GPT_SMALL = replace(GPT3_175B, name="gpt-small", layers=24, hidden=2048, heads=16, kv_heads=16, ffn=8192,
                    padded_vocab=0, max_positions=4096)
EAGER_8B = replace(LLAMA3_8B, name="llama3-8b-unfused", flash_attention=False, dropout=True)

DENSE_FIRST = replace(MIXTRAL_8X7B, name="mixtral-dense-first", dense_layers=4, ffn=14336, shared_ffn=4096)
EVERY_OTHER = replace(MIXTRAL_8X7B, name="mixtral-every-other", moe_every=2, top_k=1, capacity_factor=1.25)

# shape, seq, gbs | devices tp pp vpp split mbs | zero sp recompute k | precision generation
MATRIX = [
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 1, 0, 0, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 1, 1, 0, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 2, 2, 0, "selective", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 1, 3, 0, "full", 32, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 1, 3, 0, "full", 7, "bf16-grads", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 1, 0, 0, "none", 0, "bf16-grads", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 2, 1, 1, "even", 1, 1, 0, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 2, 1, 1, "even", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 8, 1, 1, "even", 4, 0, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 8, 1, 1, "even", 4, 0, 0, "none", 0, "bf16-grads", "blackwell"),
    (LLAMA3_8B, 8192, 512, 64, 16, 1, 1, "even", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 4, 1, "even", 1, 1, 0, "none", 0, "bf16", "ampere"),
    (LLAMA3_8B, 8192, 128, 8, 1, 4, 1, "even", 1, 1, 0, "full", 8, "bf16", "ampere"),
    (LLAMA3_8B, 8192, 128, 8, 1, 4, 1, "even", 1, 1, 0, "full", 3, "bf16", "ampere"),
    (LLAMA3_8B, 8192, 128, 8, 1, 4, 2, "even", 1, 1, 0, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 4, 1, "ends", 1, 1, 0, "none", 0, "bf16", "hopper"),
    (LLAMA3_8B, 8192, 128, 8, 1, 2, 1, "ends", 1, 1, 0, "none", 0, "fp16", "ampere"),
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 1, 2, 0, "none", 0, "fp16", "ampere"),
    (LLAMA3_8B, 8192, 128, 8, 1, 1, 1, "even", 1, 1, 0, "none", 0, "fp16-grads", "ampere"),
    (EAGER_8B, 4096, 128, 8, 2, 1, 1, "even", 1, 1, 1, "selective", 0, "bf16", "ampere"),
    (EAGER_8B, 4096, 128, 8, 1, 1, 1, "even", 1, 3, 0, "none", 0, "fp32", "hopper"),
    (EAGER_8B, 4096, 128, 8, 1, 2, 1, "even", 1, 0, 0, "none", 0, "fp32", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 8, 1, 1, "even", 1, 1, 1, "full", 40, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 8, 4, 1, "even", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 8, 4, 5, "even", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 4, 8, 2, "even", 1, 1, 1, "full", 2, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 4, 8, 1, "ends", 1, 1, 1, "selective", 0, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 4, 16, 2, "ends", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 8, 2, 1, "ends", 2, 0, 1, "full", 40, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 8, 1, 1, "even", 1, 2, 1, "full", 80, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 8, 1, 1, "even", 1, 3, 1, "full", 80, "bf16", "blackwell"),
    (LLAMA3_70B, 8192, 1024, 512, 8, 1, 1, "even", 1, 3, 0, "full", 80, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 1, 1, 1, "even", 1, 3, 0, "full", 80, "bf16", "hopper"),
    (LLAMA3_70B, 8192, 1024, 512, 1, 16, 1, "even", 1, 1, 0, "full", 5, "bf16", "hopper"),
    (LLAMA3_405B, 8192, 2048, 16384, 8, 16, 1, "ends", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_405B, 8192, 2048, 16384, 8, 16, 4, "ends", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_405B, 8192, 2048, 16384, 8, 16, 2, "ends", 1, 1, 1, "full", 1, "bf16", "hopper"),
    (LLAMA3_405B, 8192, 2240, 16128, 8, 9, 1, "even", 1, 1, 1, "none", 0, "bf16", "hopper"),
    (LLAMA3_405B, 8192, 2048, 16384, 16, 8, 1, "ends", 1, 1, 1, "full", 9, "bf16-grads", "hopper"),
    (LLAMA3_405B, 8192, 2048, 16384, 8, 32, 1, "ends", 2, 1, 1, "selective", 0, "bf16", "hopper"),
    (GPT3_175B, 2048, 1536, 1024, 8, 8, 1, "even", 1, 0, 1, "full", 12, "fp16", "ampere"),
    (GPT3_175B, 2048, 1536, 1024, 8, 8, 3, "even", 1, 1, 1, "selective", 0, "bf16", "ampere"),
    (GPT3_175B, 2048, 1536, 1024, 8, 16, 1, "ends", 2, 1, 1, "none", 0, "bf16", "ampere"),
    (GPT3_175B, 2048, 1536, 1024, 1, 8, 1, "even", 2, 0, 0, "full", 12, "fp16-grads", "ampere"),
    (GPT_SMALL, 2048, 512, 16, 1, 1, 1, "even", 4, 2, 0, "none", 0, "fp16-grads", "ampere"),
    (GPT_SMALL, 2048, 512, 16, 4, 1, 1, "even", 4, 1, 1, "none", 0, "bf16", "ampere"),
    (GPT_SMALL, 2048, 512, 4, 1, 2, 1, "even", 4, 1, 0, "full", 12, "bf16-grads", "ampere"),
    (MIXTRAL_8X7B, 4096, 256, 64, 1, 4, 8, "even", 1, 1, 0, "none", 0, "bf16", "hopper", 8, 1),
    (MIXTRAL_8X7B, 4096, 256, 64, 4, 1, 1, "even", 1, 1, 1, "full", 16, "bf16", "hopper", 4, 4),
    (MIXTRAL_8X7B, 4096, 256, 64, 2, 2, 1, "even", 1, 1, 1, "none", 0, "bf16", "hopper", 1, 1),
    (MIXTRAL_8X7B, 4096, 256, 64, 1, 1, 1, "even", 1, 3, 0, "none", 0, "bf16", "hopper", 8, 1),
    (DENSE_FIRST, 4096, 256, 64, 2, 4, 1, "even", 1, 1, 1, "none", 0, "bf16", "hopper", 2, 2),
    (EVERY_OTHER, 4096, 256, 64, 1, 2, 1, "ends", 1, 1, 0, "none", 0, "bf16", "hopper", 4, 1),
    (DEEPSEEK_V3, 4096, 15360, 2048, 1, 16, 1, "ends", 1, 1, 0, "full", 4, "bf16", "hopper", 64, 1),
    (DEEPSEEK_V3, 4096, 15360, 2048, 2, 8, 2, "ends", 1, 1, 1, "none", 0, "bf16", "hopper", 32, 1),
]
"""The last two numbers of models with experts are ep and etp."""


LLAMA3_1B = replace(LLAMA3_8B, name="llama3-1b", layers=16, hidden=2048, head_dim=64, ffn=8192, tied=True)
ODD = replace(LLAMA3_8B, name="odd", layers=30, hidden=3072, heads=24, ffn=8192, vocab=50257)
QWEN3_32B = replace(LLAMA3_8B, name="qwen3-32b", layers=64, hidden=5120, heads=64, ffn=25600, vocab=151936)
QWEN3_30B = replace(QWEN3_32B, name="qwen3-30b-a3b", layers=48, hidden=2048, heads=32, kv_heads=4, ffn=6144,
                    n_experts=128, top_k=8, expert_ffn=768)
V3_NO_MTP = replace(DEEPSEEK_V3, name="deepseek-v3-no-mtp", mtp_layers=0)
V2_LITE = replace(V3_NO_MTP, name="deepseek-v2-lite", layers=27, hidden=2048, heads=16, kv_heads=16, ffn=10944,
                  vocab=102400, n_experts=64, top_k=6, expert_ffn=1408, shared_ffn=2816, dense_layers=1,
                  n_groups=1, top_groups=1, q_rank=0)
GPT_OSS = replace(MIXTRAL_8X7B, name="gpt-oss-20b", layers=24, hidden=2880, heads=64, head_dim=64, vocab=201088,
                  n_experts=32, top_k=4, expert_ffn=2880, bias=True)
SCOUT = replace(MIXTRAL_8X7B, name="llama4-scout", layers=48, hidden=5120, heads=40, ffn=16384, vocab=202048,
                n_experts=16, top_k=1, expert_ffn=8192, shared_ffn=8192)

def kinds(*pattern: str, times: int = 1) -> tuple[LayerRun, ...]:
    """Runs of the layers of a pattern that repeats."""
    return tuple(layer_run(kind, 1) for kind in pattern) * times


MAMBA = Mamba2Shape(heads=128, head_dim=64, groups=8, state=128, conv=4, chunk=128)
DELTA = DeltaNetShape(k_heads=16, v_heads=32, k_dim=128, v_dim=128, conv=4, chunk=64)
WINDOWS = replace(LLAMA3_8B, name="windows", layer_runs=kinds("window+dense", "dense", times=16),
                  window=WindowShape(1024))
ALL_WINDOWS = replace(LLAMA3_8B, name="all-windows", layer_runs=kinds("window+dense", times=32),
                      window=WindowShape(4096))
GPT_OSS_WINDOWS = replace(GPT_OSS, name="gpt-oss-windows", layer_runs=kinds("window+moe", "moe", times=12),
                          window=WindowShape(128))
HYBRID = replace(LLAMA3_8B, name="hybrid", layers=24, gated=False, mamba2=MAMBA,
                 layer_runs=kinds("mamba2+none", "none+dense", "mamba2+none", "attention+none", times=6))
HYBRID_PAIRS = replace(MIXTRAL_8X7B, name="hybrid-pairs", layers=24, mamba2=MAMBA,
                       layer_runs=kinds(*["mamba2+moe"] * 3, "moe", times=6))
DELTA_NETS = replace(MIXTRAL_8X7B, name="delta-nets", layers=24, delta_net=DELTA, attention_gate=True,
                     layer_runs=kinds(*["gdn+moe"] * 3, "moe", times=6))

# shape, seq, gbs, devices, what is not as in a plain layout: ZeRO groups, context parallelism, schedules
NAMED = [
    (LLAMA3_8B, 8192, 128, 8, {"zero": 3, "recompute": "full", "recompute_layers": 32}),
    (LLAMA3_8B, 8192, 128, 8, {"zero": 2, "recompute": "full", "recompute_layers": 7}),
    (LLAMA3_8B, 8192, 128, 8, {"zero": 0, "recompute": "selective"}),
    (LLAMA3_8B, 8192, 128, 8, {"recompute": "selective", "recompute_modules": ("mlp",)}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "shard": 8}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 1, "optimizer_offload": True, "tp": 2, "sp": True}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "optimizer_offload": True}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "hpz": 8}),
    (LLAMA3_8B, 8192, 128, 64, {"zero": 3, "hpz": 8, "recompute": "full", "recompute_layers": 32}),
    (LLAMA3_8B, 32768, 32, 32, {"zero": 3, "hpz": 4, "cp": 4, "cp_comm": "a2a"}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "hpz": 8, "optimizer_offload": True}),
    (LLAMA3_8B, 8192, 128, 16, {"pp": 4, "optimizer_offload": True}),
    (LLAMA3_8B, 8192, 128, 1, {"zero": 0, "optimizer_offload": True}),
    (LLAMA3_8B, 8192, 128, 16, {"activation_offload_layers": 10, "tp": 2, "sp": True}),
    (LLAMA3_8B, 8192, 128, 16, {"activation_offload_layers": 10, "pp": 2}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "activation_offload_layers": 10}),
    (MIXTRAL_8X7B, 4096, 256, 64, {"activation_offload_layers": 30, "ep": 8, "optimizer_offload": True}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "activation_offload_layers": 32, "recompute": "full",
                                "recompute_layers": 32}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 1, "activation_offload_layers": 7, "recompute": "full",
                                "recompute_layers": 7, "optimizer_offload": True}),
    (LLAMA3_8B, 8192, 128, 16, {"tp": 4, "sp": True, "pp": 2, "tp_overlap": True}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "tp": 4, "sp": True, "tp_overlap": True}),
    (MIXTRAL_8X7B, 4096, 256, 64, {"tp": 2, "sp": True, "ep": 8, "tp_overlap": True}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 1, "shard": 8}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 2, "shard": 4, "tp": 2, "sp": True}),
    (LLAMA3_8B, 8192, 128, 16, {"zero": 3, "tp": 4}),
    (LLAMA3_8B, 32768, 32, 32, {"zero": 3, "tp": 4, "sp": True, "cp": 4, "cp_comm": "all-gather"}),
    (LLAMA3_8B, 32768, 32, 64, {"zero": 3, "cp": 4, "cp_comm": "all-gather", "shard": 8}),
    (LLAMA3_8B, 32768, 32, 64, {"zero": 2, "cp": 4, "cp_comm": "p2p"}),
    (LLAMA3_8B, 32768, 32, 64, {"zero": 2, "cp": 8, "cp_comm": "a2a"}),
    (LLAMA3_8B, 32768, 32, 64, {"zero": 3, "cp": 2, "cp_comm": "a2a"}),
    (LLAMA3_8B, 8192, 128, 32, {"pp": 4, "tp": 2, "sp": True, "shard": 2, "recompute": "full",
                                "recompute_layers": 3}),
    (LLAMA3_8B, 8192, 128, 8, {"pp": 4, "vpp": 2, "schedule": "zb-v"}),
    (LLAMA3_8B, 8192, 128, 8, {"pp": 4, "vpp": 2, "schedule": "dualpipe-v"}),
    (LLAMA3_8B, 8192, 128, 8, {"pp": 4, "schedule": "gpipe", "zero": 0}),
    (LLAMA3_8B, 8192, 128, 8, {"pp": 4, "split": "7-9-9-7"}),
    (LLAMA3_70B, 8192, 1024, 512, {"tp": 8, "sp": True, "pp": 4, "shard": 8}),
    (LLAMA3_70B, 8192, 1024, 512, {"cp": 2, "cp_comm": "all-gather", "zero": 3, "shard": 32}),
    (LLAMA3_405B, 8192, 2048, 4096, {"tp": 8, "sp": True, "pp": 16, "split": "ends"}),
    (LLAMA3_1B, 8192, 128, 8, {"zero": 3}),
    (ODD, 4096, 128, 16, {"zero": 3, "tp": 2, "sp": True}),
    (ODD, 4096, 128, 16, {"tp": 2, "sp": True, "pp": 4, "split": "ends"}),
    (QWEN3_32B, 4096, 128, 64, {"zero": 3, "tp": 8, "sp": True}),
    (QWEN3_30B, 4096, 256, 64, {"zero": 3, "ep": 8}),
    (QWEN3_30B, 4096, 256, 64, {"pp": 4, "ep": 8, "vpp": 2, "tp": 2, "sp": True}),
    (QWEN3_30B, 4096, 256, 64, {"zero": 3, "tp": 4, "etp": 4, "sp": True}),
    (MIXTRAL_8X7B, 4096, 256, 64, {"zero": 3, "ep": 8, "cp": 2, "cp_comm": "all-gather"}),
    (MIXTRAL_8X7B, 4096, 256, 64, {"zero": 2, "ep": 4, "tp": 2}),
    (MIXTRAL_8X7B, 4096, 256, 64, {"zero": 2}),
    (DENSE_FIRST, 4096, 256, 64, {"zero": 3, "ep": 8, "shard": 16}),
    (DEEPSEEK_V3, 4096, 8192, 1024, {"zero": 3, "ep": 64, "recompute": "full", "recompute_layers": 61}),
    (V3_NO_MTP, 4096, 8192, 1024, {"ep": 64, "pp": 16, "split": "ends"}),
    (V3_NO_MTP, 4096, 8192, 1024, {"ep": 64, "pp": 16, "split": "ends", "recompute": "selective",
                                   "recompute_modules": ("moe_act", "layernorm", "mla_up_proj")}),
    (MIXTRAL_8X7B, 4096, 256, 64, {"ep": 8, "recompute": "selective",
                                   "recompute_modules": ("layernorm", "moe")}),
    (V2_LITE, 4096, 256, 64, {"zero": 3, "ep": 8, "tp": 2, "sp": True}),
    (V2_LITE, 4096, 256, 64, {"ep": 8, "pp": 4, "vpp": 2, "schedule": "dualpipe-v", "split": "4-4-4-4-4-3-2-2"}),
    (GPT_OSS, 4096, 256, 32, {"zero": 3, "ep": 8}),
    (GPT_OSS, 4096, 256, 32, {"pp": 4, "tp": 2, "sp": True, "ep": 4}),
    (SCOUT, 4096, 256, 64, {"zero": 3, "ep": 16}),
    (WINDOWS, 8192, 128, 8, {"tp": 2, "pp": 2, "split": "ends"}),
    (WINDOWS, 8192, 128, 16, {"cp": 2, "cp_comm": "a2a"}),
    (ALL_WINDOWS, 8192, 128, 8, {"zero": 3}),
    (GPT_OSS_WINDOWS, 4096, 256, 32, {"zero": 3, "ep": 8}),
    (GPT_OSS_WINDOWS, 4096, 256, 32, {"pp": 4, "ep": 4}),
    (HYBRID, 8192, 128, 16, {"tp": 2, "sp": True, "pp": 2, "recompute": "full", "recompute_layers": 4}),
    (HYBRID, 8192, 128, 16, {"pp": 2, "vpp": 2}),
    (HYBRID, 8192, 128, 16, {"zero": 3}),
    (HYBRID_PAIRS, 4096, 256, 32, {"pp": 4, "ep": 4}),
    (DELTA_NETS, 4096, 256, 32, {"pp": 4, "vpp": 2, "ep": 4}),
    (DELTA_NETS, 4096, 256, 32, {"cp": 2, "cp_comm": "a2a", "ep": 8}),
]
"""Layouts with what `MATRIX` has no column for."""


def named_layout(shape: ModelShape, gbs: int, n: int, changes: dict) -> Layout:
    """The layout of one named row."""
    words = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "split": "even", "mbs": 1, "zero": 1, "sp": False,
             "recompute": "none", "recompute_layers": 0} | changes
    pp, vpp = words["pp"], words["vpp"]
    words.setdefault("schedule", "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b")
    counts = stage_layers(shape.layers, pp, vpp, words["split"])
    dp = n // (words["tp"] * pp * words["cp"])
    return Layout(n_devices=n, dp=dp, gbs=gbs, stage_layers=counts, **words)


def pool(generation: str, n_devices: int) -> Pool:
    """Eight-device nodes; only their number and the generation matter here."""
    nothing = (0.0, 0.0, 0.0)
    link = Link("none", "scale-up", 1.0, 1.0, nothing, nothing, nothing, nothing, nothing, nothing, 0.0)
    rates = Efficiency(1.0, 0.0, 1.0, 1.0, 0.0, {}, 0.0)
    part = Accelerator("matrix", "none", generation, 80e9, 1.0, {"bf16": 1.0}, 100, "none", 1.0, 1.0, 8, 1.0, rates)
    return Pool("matrix", part, -(-n_devices // 8), 8, 8, link, 8, link, 0.0)


def layout_of(row: tuple, shape: ModelShape) -> Layout | None:
    """The layout of one row, or None where the degrees do not divide."""
    _, _, gbs, n, tp, pp, vpp, split, mbs, zero, sp, recompute, k, _, _, *experts = row
    counts = stage_layers(shape.layers, pp, vpp, split)
    dp, rest = divmod(n, tp * pp)
    if rest or not counts or gbs % (mbs * dp):
        return None
    schedule = "none" if pp == 1 else "interleaved" if vpp > 1 else "1f1b"
    ep, etp = experts or (1, 1)
    return Layout(n, tp, pp, dp, vpp, split, mbs, gbs, zero, bool(sp), schedule, recompute, k, counts,
                  ep=ep, etp=etp)


def cases():
    """Yield (id, files) of every row and framework."""
    for number, row in enumerate(MATRIX):
        shape, seq_len, gbs, n, tp, pp, vpp, *_ = row
        precision, generation = row[13:15]
        layout = layout_of(row, shape)
        name = f"{number:02d}-{shape.name}-n{n}-t{tp}p{pp}v{vpp}-z{row[9]}-{row[11]}-{precision}"
        if layout is None:
            print(f"not a layout, left out: {name}", file=sys.stderr)
            continue
        job = TrainingJob(seq_len, gbs, precision, tokens=0.0)
        for target in framework_names():
            header = [f"case {name}", "planner, framework matrix"]
            yield name, emit_plan(target, EmitRequest(layout, shape, job, pool(generation, n), header))
    for number, (shape, seq_len, gbs, n, changes) in enumerate(NAMED):
        name = f"named-{number:02d}-{shape.name}"
        job = TrainingJob(seq_len, gbs, "bf16", tokens=0.0)
        header = [f"case {name}", "planner, framework matrix"]
        for target in framework_names():
            layout = named_layout(shape, gbs, n, changes)
            yield name, emit_plan(target, EmitRequest(layout, shape, job, pool("hopper", n), header))


def main() -> int:
    """Write the folders."""
    out = Path(sys.argv[1])
    for name, files in cases():
        (out / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (out / name / file).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
