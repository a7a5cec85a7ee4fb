from typing import Any

import pytest

from planner.frameworks.megatron.arguments import layout_counts, megatron_run
from planner.frameworks.megatron.flags import parse_flags
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.launch_script import LaunchCommand
from planner.frameworks.runs.query import RunQuery

BASE = (
    "--num-layers 16 --hidden-size 64 --num-attention-heads 8 --seq-length 64 --micro-batch-size 1"
    " --global-batch-size 64 --bf16 --vocab-size 1000"
)


def run(flags: str, n_devices: int = 16) -> ExistingRun:
    words = f"{BASE} {flags}".split()
    launch = LaunchCommand.of_words(words, {})
    return megatron_run(parse_flags(words), launch, "x", RunQuery(n_devices=n_devices))


def layout(flags: str, n_devices: int = 16) -> dict[str, Any]:
    return dict(run(flags, n_devices).layout)


def test_plain_data_parallelism() -> None:
    assert layout("") == {
        "n_devices": 16,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "dp": 16,
        "mbs": 1,
        "gbs": 64,
        "n_micro": 4,
        "sp": False,
        "cp_comm": "",
        "vpp": 1,
        "schedule": "none",
        "split": "even",
        "counts": (16,),
        "recompute": "none",
        "recompute_layers": 0,
        "zero": 0,
        "rank_order": "tp-cp-ep-dp-pp",
        "dp_overlap": False,
        "optimizer_offload": False,
        "activation_offload_layers": 0,
        "tp_overlap": False,
        "dispatcher": "alltoall",
        "ep_overlap": "off",
        "cuda_graph": "none",
        "offload_modules": "none",
    }


OVER_EP = "--num-experts 4 --expert-model-parallel-size 4"
CAPTURED = "--cuda-graph-impl transformer_engine"


@pytest.mark.parametrize(
    ("flags", "modes"),
    [
        (OVER_EP, {"dispatcher": "allgather"}),  # Megatron-LM's default
        (f"{OVER_EP} --moe-token-dispatcher-type alltoall", {}),
        ("--num-experts 4 --tensor-model-parallel-size 2", {"dispatcher": "allgather"}),  # etp 2
        ("--num-experts 4", {}),  # no token leaves its rank
        ("--num-experts 4 --moe-token-dispatcher-type flex", {}),
        (f"{OVER_EP} --moe-token-dispatcher-type flex", {"dispatcher": "deepep"}),
        (
            f"{OVER_EP} --moe-token-dispatcher-type flex --moe-enable-deepep",
            {"dispatcher": "deepep"},
        ),
        (
            f"{OVER_EP} --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
            {"dispatcher": "hybridep"},
        ),
        (
            f"{OVER_EP} --moe-token-dispatcher-type alltoall --overlap-moe-expert-parallel-comm"
            " --delay-wgrad-compute",
            {"ep_overlap": "1f1b"},
        ),
        (CAPTURED, {"cuda_graph": "layer"}),
        ("--enable-cuda-graph", {"cuda_graph": "layer"}),
        (f"{CAPTURED} --cuda-graph-scope attn", {"cuda_graph": "attn"}),
        (f"{CAPTURED} --cuda-graph-modules attn mlp", {"cuda_graph": "attn+mlp"}),
        (
            f"{CAPTURED} --cuda-graph-modules moe_preprocess attn moe_router",
            {"cuda_graph": "attn+moe_router+moe_preprocess"},
        ),
        ("--cuda-graph-impl full_iteration", {"cuda_graph": "full_iteration"}),
        (
            "--cuda-graph-impl local --cuda-graph-scope full_iteration",
            {"cuda_graph": "full_iteration"},
        ),
    ],
)
def test_how_layers_run(flags: str, modes: dict[str, str]) -> None:
    off = {"dispatcher": "alltoall", "ep_overlap": "off", "cuda_graph": "none"}
    assert {name: layout(flags)[name] for name in off} == off | modes


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        ("--tensor-model-parallel-size 2 --sequence-parallel", {"tp": 2, "sp": True, "dp": 8}),
        ("--sequence-parallel", {"sp": False}),
        ("--use-distributed-optimizer", {"zero": 1, "dp_shard": 16}),
        (
            "--use-distributed-optimizer --num-distributed-optimizer-instances 4",
            {"zero": 1, "dp_shard": 4},
        ),
        ("--use-megatron-fsdp", {"zero": 3}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", {"zero": 0}),
        ("--use-torch-fsdp2", {"zero": 3}),
        ("--context-parallel-size 2", {"cp": 2, "cp_comm": "p2p", "dp": 8}),
        ("--context-parallel-size 2 --cp-comm-type all_gather", {"cp_comm": "all-gather"}),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"cp_comm": "a2a"}),
        (
            "--num-experts 8 --expert-model-parallel-size 4 --tensor-model-parallel-size 2",
            {"ep": 4, "etp": 2},
        ),
        (
            "--num-experts 8 --expert-tensor-parallel-size 1 --tensor-model-parallel-size 2",
            {"ep": 1, "etp": 1},
        ),
        ("--use-tp-pp-dp-mapping", {"rank_order": "tp-cp-ep-pp-dp"}),
        ("", {"dp_overlap": False, "optimizer_offload": False}),
        (
            "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
            {"tp_overlap": True},
        ),
        ("--tensor-model-parallel-size 2 --sequence-parallel", {"tp_overlap": False}),
        ("--use-distributed-optimizer --overlap-grad-reduce", {"dp_overlap": True}),
        ("--use-megatron-fsdp --overlap-grad-reduce --overlap-param-gather", {"dp_overlap": True}),
        ("--use-torch-fsdp2", {"dp_overlap": True}),
        (
            "--use-distributed-optimizer --use-precision-aware-optimizer --optimizer-cpu-offload",
            {"optimizer_offload": True},
        ),
        ("--cpu-offloading-num-layers 5", {"activation_offload_layers": 5}),
        (
            "--fine-grained-activation-offloading --offload-modules moe_act core_attn",
            {"offload_modules": "core_attn+moe_act"},
        ),
        ("--offload-modules moe_act core_attn", {"offload_modules": "none"}),
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity selective", {"recompute": "selective"}),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm",
            {"recompute": "selective", "recompute_modules": ("moe_act", "layernorm")},
        ),
        (
            "--recompute-granularity selective --recompute-modules gdp_in_proj",
            {"recompute": "none"},
        ),
        (
            "--recompute-granularity selective --recompute-modules gdn_norm_out",
            {"recompute": "selective", "recompute_modules": ("gdn_norm_out",)},
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            {"recompute": "full", "recompute_layers": 16},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3"
            " --pipeline-model-parallel-size 4",
            {"recompute": "full", "recompute_layers": 3},
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 9"
            " --pipeline-model-parallel-size 4",
            {"recompute": "full", "recompute_layers": 4},
        ),
    ],
)
def test_layout_fields(flags: str, fields: dict[str, Any]) -> None:
    found = layout(flags)
    assert {key: found[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("flags", "vpp", "split", "counts"),
    [
        ("", 1, "even", (4, 4, 4, 4)),
        ("--num-layers-per-virtual-pipeline-stage 2", 2, "even", (2,) * 8),
        ("--num-virtual-stages-per-pipeline-rank 4", 4, "even", (1,) * 16),
        ("--num-layers-per-virtual-pipeline-stage 4", 1, "even", (4, 4, 4, 4)),
        ("--decoder-first-pipeline-num-layers 2", 1, "spelled", None),
        (
            "--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 2",
            1,
            "4-5-5-2",
            (4, 5, 5, 2),
        ),
        (
            "--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 6"
            " --num-virtual-stages-per-pipeline-rank 2",
            2,
            "1-2-2-3-1-2-2-3",
            (1, 2, 2, 3, 1, 2, 2, 3),
        ),
        (
            "--num-layers 14 --account-for-embedding-in-pipeline-split"
            " --account-for-loss-in-pipeline-split",
            1,
            "ends",
            (3, 4, 4, 3),
        ),
        (
            "--num-layers 14 --account-for-embedding-in-pipeline-split"
            " --account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 2",
            2,
            "ends",
            (1, 2, 2, 2, 2, 2, 2, 1),
        ),
        ("--num-layers 15 --account-for-loss-in-pipeline-split", 1, "4-4-4-3", (4, 4, 4, 3)),
        ("--pipeline-model-parallel-layout Et*3|t*5|t*5|t*3L", 1, "ends", (3, 5, 5, 3)),
        ("--pipeline-model-parallel-layout Et|(tt|)*6ttt|L", 2, "1-2-2-2-2-2-2-2-1", None),
        ("--pipeline-model-parallel-layout Ett|(tt|)*6ttL", 2, "even", (2,) * 8),
    ],
)
def test_stages_of_a_pipeline_of_four(
    flags: str, vpp: int, split: str, counts: tuple[int, ...] | None
) -> None:
    found = layout(f"--pipeline-model-parallel-size 4 {flags}")
    assert found.get("counts") == counts
    if counts:
        assert (found["vpp"], found["split"]) == (vpp, split)
        assert found["schedule"] == ("interleaved" if vpp > 1 else "1f1b")


def test_layouts_that_megatron_documents() -> None:
    assert layout_counts("Et*3|(tt|)*29m|L") == (3, *(2,) * 29, 0, 0)
    assert layout_counts("E,t*2,|t*2,L") == (2, 2)
    assert layout_counts("Ex|tL") == ()
    assert layout_counts("(((t*99999)*99999)*99999)*9") == ()


def test_empty_stages_are_priced_as_they_are() -> None:
    found = run("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout E|t*8|t*8|L")
    assert found.layout["counts"] == (0, 8, 8, 0)
    assert found.layout["split"] == "0-8-8-0"
    assert not any("stage" in note for note in found.notes)


def test_multi_token_prediction_apart_from_the_loss_is_noted() -> None:
    flags = "--pipeline-model-parallel-size 4 --mtp-num-layers 1 --pipeline-model-parallel-layout"
    assert not any("multi-token" in note for note in run(f"{flags} Et*5|t*5|t*6|mL").notes)
    assert any("on the last" in note for note in run(f"{flags} Et*8|t*8|m|L").notes)


def test_contradictions_are_left_open() -> None:
    assert "dp" not in layout("--tensor-model-parallel-size 3")
    assert "n_micro" not in layout("--micro-batch-size 3")
    assert "counts" not in layout("--pipeline-model-parallel-size 3")
    assert "vpp" not in layout(
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
    )


def test_settings_hold_only_what_is_given() -> None:
    found = run("--overlap-grad-reduce --nope 3 --lr x")
    assert found.settings["overlap_grad_reduce"] is True
    assert "overlap_param_gather" not in found.settings
    assert found.unknown == ("--nope",)
    assert found.refused == ("--lr: 'x' is not a number",)


@pytest.mark.parametrize(
    ("flags", "stack", "changes"),
    [
        ("", {}, []),
        ("--overlap-grad-reduce", {"dp_overlap": "both"}, []),
        ("--use-distributed-optimizer", {}, []),
        (
            "--use-distributed-optimizer --overlap-grad-reduce",
            {"zero1_overlap": "reduce"},
            ["add --overlap-param-gather"],
        ),
        (
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            {"zero1_overlap": "both"},
            [],
        ),
        (
            "--overlap-grad-reduce --no-gradient-accumulation-fusion",
            {"dp_overlap": "both", "fused_wgrad": False},
            ["drop --no-gradient-accumulation-fusion"],
        ),
        (
            "--overlap-grad-reduce --tensor-model-parallel-size 2 --sequence-parallel",
            {"dp_overlap": "both"},
            [],
        ),
        (
            "--overlap-grad-reduce --tensor-model-parallel-size 2 --sequence-parallel"
            " --tp-comm-overlap",
            {"dp_overlap": "both"},
            [],
        ),
        (
            "--overlap-grad-reduce --num-experts 4 --expert-model-parallel-size 4"
            " --moe-token-dispatcher-type flex",
            {"dp_overlap": "both"},
            [],
        ),
    ],
)
def test_what_settings_change_in_the_stack(
    flags: str, stack: dict[str, Any], changes: list[str]
) -> None:
    found = run(f"{flags} --cross-entropy-loss-fusion")
    assert {
        k: v for k, v in found.stack.items() if k not in ("fused_loss", "logit_bytes")
    } == stack
    assert [s.change for s in found.switches] == changes


def test_the_loss_of_one_kernel() -> None:
    native = run("--cross-entropy-loss-fusion").stack
    assert (native["fused_loss"], native["logit_bytes"]) == (True, 6.0)
    in_place = run("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te").stack
    assert (in_place["fused_loss"], in_place["logit_bytes"]) == (True, 2.0)
    plain = run("--overlap-grad-reduce")
    assert (plain.stack["fused_loss"], plain.stack["logit_bytes"]) == (False, 12.0)
    assert plain.switches[0].sets == (
        ("cross_entropy_loss_fusion", "true"),
        ("cross_entropy_fusion_impl", "native"),
    )


def test_notes_on_what_has_no_term() -> None:
    notes = run(
        "--optimizer-cpu-offload --rampup-batch-size 8 8 100 --recompute-granularity"
        " selective --recompute-modules gdp_in_proj mlp --optimizer adaptive_muon"
    ).notes
    text = " | ".join(notes)
    for part in ("--optimizer-cpu-offload", "--rampup-batch-size", "modules gdp_in_proj", "muon"):
        assert part in text
