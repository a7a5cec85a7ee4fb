"""Models of unlike layers in the files of frameworks: what is said, refused, and read back."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.analyze.check.changes import best_changes
from planner.analyze.check.check import check
from planner.analyze.plan_files import header_lines
from planner.errors import EmitError
from planner.frameworks.emit import emit_plan, why_not
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.hf_config import hf_config
from planner.frameworks.megatron.flags import parse_flags
from planner.frameworks.megatron.layer_kinds import hybrid_kinds
from planner.frameworks.megatron.model import MegatronSettings, read_megatron_model, stated_kinds
from planner.solver.answer.result import Plan
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from planner.specs.loader import load_model, model_from_dict
from tests.planner.emitting import HEADER, JOB, golden, layout, pool
from tests.searches.instances import one_in

CLUSTER = "h100-x8"
FILES = {
    "megatron": "megatron.sh",
    "bridge": "bridge_recipe.py",
    "torchtitan": "torchtitan_recipe.py",
}
BLOCK = {"M": "mamba2+none", "-": "none+dense", "*": "attention+none", "E": "none+moe"}
MAMBA = {"heads": 32, "head_dim": 64, "groups": 8, "state": 128}
DELTA = {"k_heads": 8, "v_heads": 16, "k_dim": 128, "v_dim": 128}
EXPERTS = {"experts": 8, "topk": 2, "moe_ffn": 1024}


def document(kinds: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a small model of some kinds of layers, with the job of Llama 3."""
    loaded = load_model("llama3-8b").document
    sizes = {"hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 5632}
    own = {key: value for key, value in loaded["model"].items() if value is not None}
    training = {key: value for key, value in loaded["training"].items() if value is not None}
    del own["layers"]
    model = {**own, "name": "small", **sizes, "layer_kinds": kinds, **more}
    return {"model": model, "training": training}


def hybrid(pattern: str) -> list[dict[str, Any]]:
    return [{"pattern": [BLOCK[symbol] for symbol in pattern]}]


Case = tuple[dict[str, Any], dict[str, Any]]
MODELS: dict[str, Case] = {
    "every second layer with a window": (
        document([{"pattern": ["window+dense", "dense"], "repeat": 4}], window={"size": 128}),
        {"tp": 2, "pp": 2, "split": "even"},
    ),
    "all layers but the first two with a window": (
        document(
            [{"kind": "dense", "count": 2}, {"kind": "window+dense", "count": 6}],
            window={"size": 1024},
        ),
        {"tp": 2, "pp": 1},
    ),
    "all layers with a window": (
        document([{"kind": "window+dense", "count": 8}], window={"size": 1024}),
        {"tp": 2, "pp": 1},
    ),
    "windows and experts behind dense layers": (
        document(
            [{"kind": "window+dense", "count": 2}, {"pattern": ["moe", "window+moe"] * 3}],
            window={"size": 256},
            moe=EXPERTS,
        ),
        {"tp": 1, "pp": 1, "ep": 4},
    ),
    "state-space layers": (
        document(hybrid("M-M*-M-M*-M-"), mamba2=MAMBA),
        {"tp": 2, "pp": 2, "split": "even"},
    ),
    "state-space layers and experts": (
        document(hybrid("MEM*EMEMEM*E"), mamba2=MAMBA, moe=EXPERTS),
        {"tp": 1, "pp": 2, "split": "even", "ep": 4, "recompute": "full", "recompute_layers": 1},
    ),
    "whole layers with a state space": (
        document(
            [{"pattern": ["mamba2+moe"] * 3 + ["moe"], "repeat": 2}], mamba2=MAMBA, moe=EXPERTS
        ),
        {"tp": 1, "pp": 2, "split": "even", "ep": 4, "recompute": "none"},
    ),
    "whole layers with a state space, and two to predict further tokens": (
        document([{"pattern": ["mamba2+dense", "dense"] * 3}], mamba2=MAMBA, mtp_layers=2),
        {"tp": 2, "pp": 1, "recompute": "none"},
    ),
    "gated delta nets": (
        document(
            [{"pattern": ["gdn+moe"] * 3 + ["moe"], "repeat": 2}], delta_net=DELTA, moe=EXPERTS
        ),
        {"tp": 1, "pp": 2, "split": "even", "ep": 4},
    ),
    "gated delta nets and windows": (
        document(
            [{"pattern": ["gdn+dense", "window+dense", "dense"], "repeat": 3}],
            delta_net=DELTA,
            window={"size": 512},
        ),
        {"tp": 2, "pp": 1},
    ),
}
SAID = {
    "every second layer with a window": "--window-size 127,0 --window-attn-skip-freq 2",
    "all layers but the first two with a window": "--window-size 1023,0"
    " --window-attn-skip-freq ([0]*2+[1]*6)",
    "all layers with a window": "--window-size 1023,0",
    "windows and experts behind dense layers": "--window-size 255,0"
    " --window-attn-skip-freq ([1]*2+[0]*1+[1]*1+[0]*1+[1]*1+[0]*1+[1]*1)"
    " --moe-layer-freq ([0]*2+[1]*6)",
    "state-space layers": "--num-layers 12 --mamba-num-heads 32 --mamba-head-dim 64"
    " --mamba-num-groups 8 --mamba-state-dim 128 --hybrid-layer-pattern M-M*-M|-M*-M-",
    "state-space layers and experts": "--hybrid-layer-pattern MEM*EM|EMEM*E",
    "whole layers with a state space": "--num-layers 16 --hybrid-layer-pattern MEMEME*E|MEMEME*E",
    "whole layers with a state space, and two to predict further tokens": "--num-layers 12"
    " --hybrid-layer-pattern M-*-M-*-M-*-/*-/*-",
    "gated delta nets": "--experimental-attention-variant gated_delta_net"
    " --linear-attention-freq 4 --linear-num-key-heads 8 --linear-num-value-heads 16"
    " --linear-key-head-dim 128 --linear-value-head-dim 128 --linear-conv-kernel-dim 4",
    "gated delta nets and windows": "--linear-attention-freq ([1]*1+[0]*2+[1]*1+[0]*2+[1]*1+[0]*2)"
    " --window-size 511,0 --window-attn-skip-freq"
    " ([0]*1+[1]*1+[0]*2+[1]*1+[0]*2+[1]*1+[0]*1)",
}
"""Flags of Megatron-LM that each case has among its own; quotes of the shell taken off."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())


def written(case: Case, framework: str, folder: Path) -> Plan:
    """Write the files of the best plan of a case, and return it."""
    model_file, pins = case
    plan = evaluate(model_file, CLUSTER, pins=pins, framework=framework).best
    model, cluster = read_inputs(model_file, CLUSTER, ())
    header = header_lines((model, cluster), plan, plan.breakdown, "")
    pool = cluster.cluster.pools[0]
    request = EmitRequest(plan.layout, model.shape, model.job, pool, header, model.details)
    for name, text in emit_plan(framework, request).items():
        (folder / name).write_text(text)
    return plan


def words_of(script: Path) -> list[str]:
    """Return the words after the program in a script for Megatron-LM."""
    text = script.read_text().replace("\\\n", " ")
    line = next(x for x in text.splitlines() if x.startswith("torchrun --nnodes"))
    return shlex.split(line)


@pytest.mark.parametrize("name", one_in(2, MODELS))
@pytest.mark.parametrize("framework", ["megatron", "bridge"])
def test_a_file_read_back_is_the_same_plan(framework: str, name: str, tmp_path: Path) -> None:
    plan = written(MODELS[name], framework, tmp_path)
    report = check(tmp_path / FILES[framework], CLUSTER)
    assert report.plan is not None, report.not_priced
    assert not report.refusals
    assert report.plan.layout == plan.layout
    assert report.plan.plan_id == plan.plan_id
    assert report.plan.step_time_s == plan.step_time_s


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("framework", ["megatron", "bridge"])
def test_changes_of_a_file_are_faster_and_run(
    framework: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.analyze.check.check.best_changes", best_changes)
    written(MODELS[name], framework, tmp_path)
    report = check(tmp_path / FILES[framework], CLUSTER)
    assert report.plan is not None
    assert report.changes
    for change in report.changes:
        assert change.fits
        assert change.step_s < report.plan.step_time_s


@pytest.mark.parametrize("name", SAID)
def test_the_flags_of_megatron(name: str, tmp_path: Path) -> None:
    written(MODELS[name], "megatron", tmp_path)
    words = words_of(tmp_path / "megatron.sh")
    stated = [x for x in re.split(r"(?=--)", SAID[name]) if x]
    for flag, value in (x.split() for x in stated):
        assert words[words.index(flag) + 1] == value
    assert ("--window-attn-skip-freq" in words) == ("skip-freq" in SAID[name])
    assert ("--linear-attention-freq" in words) == ("linear-attention" in SAID[name])
    patterned = "--hybrid-layer-pattern" in words
    assert patterned == ("hybrid" in SAID[name])
    assert any(word.endswith("/pretrain_hybrid.py") for word in words) == patterned
    assert not patterned or "--moe-layer-freq" not in words


@pytest.mark.parametrize(
    ("release", "program", "spec"),
    [
        ("0.17", "pretrain_mamba.py", "megatron.core.models.mamba.mamba_layer_specs"),
        ("0.18", "pretrain_hybrid.py", "megatron.core.models.hybrid.hybrid_layer_specs"),
    ],
)
def test_the_program_of_a_release(release: str, program: str, spec: str, tmp_path: Path) -> None:
    written(MODELS["state-space layers"], f"megatron@{release}", tmp_path)
    words = words_of(tmp_path / "megatron.sh")
    assert any(word.endswith(program) for word in words)
    assert words[words.index("--spec") + 1] == spec


def test_the_provider_of_a_release_of_bridge(tmp_path: Path) -> None:
    written(MODELS["state-space layers"], "bridge@0.5.1", tmp_path)
    text = (tmp_path / "bridge_recipe.py").read_text()
    assert "mamba.mamba_provider import MambaModelProvider" in text
    written(MODELS["gated delta nets"], "bridge", tmp_path)
    text = (tmp_path / "bridge_recipe.py").read_text()
    spec = "get_transformer_block_with_experimental_attention_variant_spec"
    assert f"transformer_layer_spec={spec}," in text
    assert f"    {spec},\n)\n" in text


def test_torchtitan_lists_the_layers_without_a_window(tmp_path: Path) -> None:
    kinds = [{"kind": "moe", "count": 1}, {"kind": "window+moe", "count": 5}]
    small = document(kinds, window={"size": 64}, moe=EXPERTS, bias=True)
    pins = {"tp": 1, "pp": 1, "ep": 4, "zero": 3, "recompute": "full"}
    plan = written((small, pins), "torchtitan", tmp_path)
    text = (tmp_path / "torchtitan_recipe.py").read_text()
    assert "WINDOW = 64\nFULL_ATTENTION = [0]\n" in text
    assert "sliding_window_size=None if layer in FULL_ATTENTION else WINDOW," in text
    report = check(tmp_path / "torchtitan_recipe.py", CLUSTER, model=small)
    assert report.plan is not None
    assert report.plan.plan_id == plan.plan_id
    alone = check(tmp_path / "torchtitan_recipe.py", CLUSTER)
    assert alone.plan is not None
    assert alone.plan.step_time_s == plan.step_time_s


PLAIN = {"tp": 1, "pp": 1, "ep": 1, "zero": 1}
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "halves beside whole layers": (
        "megatron",
        document([*hybrid("M-*-"), {"kind": "mamba2+dense", "count": 4}], mamba2=MAMBA),
        PLAIN,
        "layers of two beside layers of one",
    ),
    "a longer convolution": (
        "megatron",
        document(hybrid("M-M*"), mamba2={**MAMBA, "conv": 8}),
        PLAIN,
        "mamba2.conv 8: it always has 4 taps",
    ),
    "longer chunks": (
        "bridge",
        document(hybrid("M-M*"), mamba2={**MAMBA, "chunk": 256}),
        PLAIN,
        "mamba2.chunk 256",
    ),
    "chunks of a delta net": (
        "megatron",
        document([{"pattern": ["gdn+dense", "dense"]}], delta_net={**DELTA, "chunk": 128}),
        PLAIN,
        "delta_net.chunk 128",
    ),
    "virtual stages of Bridge": (
        "bridge",
        document(hybrid("M-M*-M-*"), mamba2=MAMBA),
        {**PLAIN, "pp": 2, "vpp": 2},
        "vpp 2: hybrid models have no virtual pipeline stages",
    ),
    "all of a pair recomputed": (
        "megatron",
        document([{"pattern": ["mamba2+dense", "dense"]}], mamba2=MAMBA),
        {**PLAIN, "recompute": "full"},
        "layers of a mixer and a feed are two of Megatron-LM's",
    ),
    "chunks of attention": (
        "megatron",
        document([{"pattern": ["chunk+dense", "dense"]}], chunk={"size": 512}),
        PLAIN,
        "Megatron-LM has no chunk+dense; closest: framework deepspeed or fsdp2",
    ),
    "a window that no class of torchtitan has": (
        "torchtitan",
        document([{"pattern": ["window+dense", "dense"]}], window={"size": 512}),
        PLAIN,
        "its classes of gpt-oss alone have a window",
    ),
    "another window than the registered one": (
        "torchtitan@0.2.2",
        document(
            [{"pattern": ["moe", "window+moe"]}], window={"size": 64}, moe=EXPERTS, bias=True
        ),
        PLAIN,
        "a window of 128 tokens in every second layer",
    ),
    "a state space in torchtitan": (
        "torchtitan",
        document(hybrid("M-"), mamba2=MAMBA),
        PLAIN,
        "torchtitan has no mamba2+none, none+dense",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name: str) -> None:
    framework, model_file, pins, reason = REFUSED[name]
    plan = evaluate(model_file, CLUSTER, pins=pins, framework="any").best
    model, _ = read_inputs(model_file, CLUSTER, ())
    assert reason in (why_not(framework, plan.layout, model.shape, model.job) or "")
    assert framework not in plan.runs_on


SIZES = "--hidden-size 256 --num-attention-heads 4 --seq-length 512 --micro-batch-size 1"


def kinds_of(flags: str) -> tuple[str, ...]:
    stated = stated_kinds(MegatronSettings(parse_flags(shlex.split(f"{SIZES} {flags}")), ""))
    return stated.kinds if stated else ()


def test_what_flags_say_of_kinds() -> None:
    assert kinds_of("--num-layers 4") == ()
    window = "--num-layers 4 --window-size 63,0"
    assert kinds_of(window) == ("window+dense",) * 4
    assert kinds_of(f"{window} --window-attn-skip-freq 2") == ("window+dense", "dense") * 2
    listed = f"{window} --window-attn-skip-freq '[1]+[0]*3' --num-experts 4 --moe-layer-freq 2"
    assert kinds_of(listed) == ("window+moe", "dense", "moe", "dense")
    assert kinds_of("--num-layers 4 --window-size 63,63") == ()
    linear = "--num-layers 4 --experimental-attention-variant gated_delta_net"
    assert kinds_of(f"{linear} --linear-attention-freq 4") == (*["gdn+dense"] * 3, "dense")
    assert kinds_of("--hybrid-override-pattern M-*E") == tuple(BLOCK[x] for x in "M-*E")
    local = "--hybrid-layer-pattern *-*- --window-size 63,0 --window-attn-skip-freq [1,0,0,0]"
    assert kinds_of(local) == ("window+none", "none+dense", "attention+none", "none+dense")


def test_the_sizes_of_a_pattern() -> None:
    pattern = "--hybrid-layer-pattern 'MM|*E/*E/*E' --num-experts 4 --mamba-state-dim 64"
    model = read_megatron_model(f"torchrun pretrain_hybrid.py {SIZES} {pattern}")
    section = model.document["model"]
    assert section["layers"] == 4
    assert section["mtp_layers"] == 2
    # No --mamba-num-heads: an inner width of 2 h, in heads of 64.
    sizes = {"heads": 8, "head_dim": 64, "groups": 8, "state": 64, "conv": 4, "chunk": 128}
    assert section["mamba2"] == sizes
    stated = hybrid_kinds({"hidden_size": 256}.get, "MM|*E/*E/*E")
    assert stated is not None
    assert (stated.counts, stated.mtp_layers) == ((2, 2), 2)
    # Positions none: no layer has any.
    flags = "--hybrid-layer-pattern 'M*' --position-embedding-type none"
    read = read_megatron_model(f"torchrun pretrain_hybrid.py {SIZES} {flags}").document["model"]
    assert read["details"] == {"no_rope_every": 1}


def test_a_model_file_that_says_otherwise_is_told(tmp_path: Path) -> None:
    name = "every second layer with a window"
    written(MODELS[name], "megatron", tmp_path)
    script = tmp_path / "megatron.sh"
    runs = [{"pattern": ["dense", "window+dense"], "repeat": 4}]
    other = document(runs, window={"size": 256})
    notes = check(script, CLUSTER, model=other).run.notes
    assert [note.partition(":")[0] for note in notes if "which is priced" in note] == [
        "--window-size 127,0; --window-attn-skip-freq 2",
        "window.size is 128 in the run; the model file, which is priced, has 256".partition(":")[
            0
        ],
    ]
    assert any(note.endswith("4 window+dense in another order") for note in notes)
    same = check(script, CLUSTER, model=MODELS[name][0]).run.notes
    assert not [note for note in same if "which is priced" in note]
    plain = document([{"kind": "dense", "count": 8}])
    told = [note for note in check(script, CLUSTER, model=plain).run.notes if "priced" in note]
    assert any("has dense and expert layers alone" in note for note in told)


def test_a_window_as_a_detail_stays_one(tmp_path: Path) -> None:
    details = {"window": 512, "full_attention_every": 2}
    model_file = document([{"kind": "dense", "count": 8}], details=details)
    plan = written((model_file, {"tp": 2, "pp": 1}), "megatron", tmp_path)
    words = words_of(tmp_path / "megatron.sh")
    assert words[words.index("--window-size") + 1] == "511,0"
    report = check(tmp_path / "megatron.sh", CLUSTER)
    assert report.plan is not None
    assert report.plan.plan_id == plan.plan_id
    assert report.run.model is not None
    assert report.run.model.document["model"]["details"] == details


WINDOW = {"window": {"size": 512}}
NEMOTRON = {"activation": "squared_relu", "no_rope_every": 1}
CLASSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3": (
        document(
            [{"pattern": ["window+dense", "dense"] * 2}], **WINDOW, details={"qk_norm": "head"}
        ),
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "use_sliding_window": True},
    ),
    "qwen2": (
        document(
            [{"kind": "window+dense", "count": 2}],
            **WINDOW,
            details={"qkv_bias": True, "attention_out_bias": False},
        ),
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 512},
    ),
    "mistral": (
        document([{"kind": "window+dense", "count": 2}], **WINDOW),
        {"sliding_window": 512, "num_hidden_layers": 2},
    ),
    "mixtral": (
        document([{"kind": "window+moe", "count": 2}], **WINDOW, moe=EXPERTS),
        {"sliding_window": 512, "num_local_experts": 8},
    ),
    "gpt_oss": (
        document(
            [{"pattern": ["window+moe", "moe"]}],
            window={"size": 128},
            moe=EXPERTS,
            bias=True,
            details={"activation": "clamped_swiglu", "attention_sinks": True},
        ),
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 128,
            "hidden_act": "silu",
            "intermediate_size": 1024,
        },
    ),
    "nemotron_h": (
        document(
            hybrid("ME*-"),
            mamba2=MAMBA,
            gated=False,
            moe={**EXPERTS, "shared_experts": 1},
            details={**NEMOTRON, "router_scores": "sigmoid"},
        ),
        {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "mamba_num_heads": 32,
            "n_groups": 8,
            "ssm_state_size": 128,
            "mlp_hidden_act": "relu2",
            "moe_shared_expert_intermediate_size": 1024,
        },
    ),
    "qwen3_next": (
        document(
            [{"pattern": ["gdn+moe"] * 3 + ["moe"]}],
            delta_net=DELTA,
            attention_gate=True,
            moe={**EXPERTS, "shared_experts": 1},
            details={
                "qk_norm": "head",
                "norm_one_plus": True,
                "shared_expert_gate": True,
                "rotary_percent": 0.25,
            },
        ),
        {
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "linear_num_value_heads": 16,
            "linear_conv_kernel_dim": 4,
            "partial_rotary_factor": 0.25,
            "shared_expert_intermediate_size": 1024,
        },
    ),
}


COMPRESSED: dict[str, Any] = {
    "kv_heads": 1,
    "moe": {**EXPERTS, "shared_experts": 1},
    "compressed": {
        "q_rank": 256,
        "window": 128,
        "groups": 4,
        "out_rank": 128,
        "rope_dim": 32,
        "heavy_ratio": 64,
        "index_heads": 8,
        "index_dim": 64,
        "top_k": 96,
    },
}
CLASSES["deepseek_v4"] = (
    document(
        [{"kind": "shared-window+moe", "count": 1}, {"pattern": ["csa+moe", "hca+moe"]}],
        **COMPRESSED,
        residual_streams={"count": 3, "sinkhorn_steps": 5},
        details={"router_scores": "sqrtsoftplus", "router_scale": 1.5},
    ),
    {
        "layer_types": [
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention",
        ],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 64},
        "q_lora_rank": 256,
        "o_groups": 4,
        "index_topk": 96,
        "hc_mult": 3,
        "hc_sinkhorn_iters": 5,
        "routed_scaling_factor": 1.5,
        "n_shared_experts": 1,
    },
)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_class_of_transformers(kind: str) -> None:
    model_file, fields = CLASSES[kind]
    model = model_from_dict(model_file)
    config = hf_config(model.shape, model.job, model.details)
    assert config["model_type"] == kind
    assert {name: config.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("kinds", "more", "reason"),
    [
        (
            [{"pattern": ["window+dense", "dense"]}],
            WINDOW,
            "llama's class has a window in all layers or in none",
        ),
        (hybrid("M-*-"), {"mamba2": MAMBA}, "Nemotron-H's class does not have a gated MLP"),
        (
            [{"pattern": ["gdn+moe", "moe"]}],
            {"delta_net": DELTA, "moe": EXPERTS},
            "Qwen3-Next's class does not have attention without a gate",
        ),
        (
            [{"pattern": ["mamba2+dense", "gdn+dense"]}],
            {"mamba2": MAMBA, "delta_net": DELTA},
            "no class that planner writes has layers of mamba2[+]dense",
        ),
        (
            [{"kind": "csa+moe", "count": 2}],
            COMPRESSED,
            "DeepSeek-V4's class does not have one residual stream",
        ),
        (
            [{"kind": "dense", "count": 2}],
            {"residual_streams": {"count": 2}},
            "no class of transformers but DeepSeek-V4's has several residual streams",
        ),
    ],
)
def test_what_no_class_of_transformers_has(
    kinds: list[dict[str, Any]], more: dict[str, Any], reason: str
) -> None:
    model = model_from_dict(document(kinds, **more))
    with pytest.raises(EmitError, match=reason):
        hf_config(model.shape, model.job, model.details)


def test_attention_that_skips_what_a_window_hides(tmp_path: Path) -> None:
    case = (document([{"kind": "window+dense", "count": 4}], **WINDOW), {"zero": 3, "tp": 1})
    written(case, "fsdp2", tmp_path)
    assert 'ATTENTION="${ATTENTION:-flex_attention}"' in (tmp_path / "accelerate.sh").read_text()
    plain = (document([{"kind": "dense", "count": 4}]), {"zero": 3, "tp": 1})
    written(plain, "fsdp2", tmp_path)
    assert 'ATTENTION="${ATTENTION:-sdpa}"' in (tmp_path / "accelerate.sh").read_text()


def test_a_gate_and_an_indexer(tmp_path: Path) -> None:
    gated = document(
        [{"pattern": ["gdn+dense", "dense"], "repeat": 2}], delta_net=DELTA, attention_gate=True
    )
    latent = {"q_rank": 256, "kv_rank": 128, "qk_nope": 64, "qk_rope": 32, "v_head": 64}
    sparse = document(
        [{"kind": "sparse+dense", "count": 4}],
        mla=latent,
        indexer={"heads": 16, "head_dim": 64, "top_k": 512},
    )
    del sparse["model"]["kv_heads"], sparse["model"]["head_dim"]
    flags = {
        "--attention-output-gate": gated,
        "--experimental-attention-variant dsa --no-rope-fusion --dsa-indexer-n-heads 16"
        " --dsa-indexer-head-dim 64 --dsa-indexer-topk 512": sparse,
    }
    for said, model_file in flags.items():
        case = (model_file, {"tp": 2, "pp": 1, "recompute": "none"})
        plan = written(case, "megatron", tmp_path)
        assert said in " ".join(words_of(tmp_path / "megatron.sh"))
        report = check(tmp_path / "megatron.sh", CLUSTER)
        assert report.plan is not None
        assert report.plan.plan_id == plan.plan_id


def test_a_smoke_run_is_for_layers_that_a_cpu_computes(tmp_path: Path) -> None:
    smoke = tmp_path / "megatron_smoke.py"
    written(MODELS["state-space layers"], "megatron", tmp_path)
    assert not smoke.exists()
    script = str(tmp_path / "megatron.sh")
    done = subprocess.run(["bash", script, "--smoke"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "--smoke: the layers of this model have kernels for GPUs alone\n"
    written(MODELS["all layers with a window"], "megatron", tmp_path)
    assert smoke.exists()


@pytest.mark.parametrize(
    ("name", "framework", "file"),
    [
        ("state-space layers and experts", "megatron", "megatron.sh"),
        ("gated delta nets and windows", "bridge", "bridge_recipe.py"),
    ],
)
def test_golden(name: str, framework: str, file: str) -> None:
    shape = model_from_dict(MODELS[name][0]).shape
    experts = {"ep": 4} if shape.n_experts else {}
    plan = layout(shape, n_devices=24, pp=3, **experts)
    files = emit_plan(framework, EmitRequest(plan, shape, JOB, pool(), HEADER))
    golden(f"{name.replace(' ', '-')}-{file}", files[file])
