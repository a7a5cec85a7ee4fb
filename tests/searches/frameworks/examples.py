"""One case that breaks each rule and one that keeps it, as changes of a plain plan."""

import re
from dataclasses import replace
from typing import Any

from costmodels.axes import AXES, CP_COMMS, RECOMPUTES, SCHEDULES, modules_code
from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B
from costmodels.layers.kinds import layer_run
from costmodels.optimizers.records import MuonOptions
from costmodels.plans import Layout
from costmodels.shapes import (
    DeltaNetShape,
    DiffusionShape,
    IndexerShape,
    LayerRun,
    Mamba2Shape,
    ModelShape,
    TrainingJob,
    VisionShape,
    WindowShape,
)
from costmodels.tuning.records import TuningJob
from searches.frameworks.case import Case
from searches.frameworks.registry import framework_names, framework_rules
from searches.frameworks.table import rules_by_code

RULES = rules_by_code()

WORDS = {"schedule": SCHEDULES, "cp_comm": CP_COMMS, "recompute": RECOMPUTES}
PLAIN = Layout(
    n_devices=64,
    tp=1,
    pp=1,
    dp=64,
    vpp=1,
    split="even",
    mbs=1,
    gbs=128,
    zero=1,
    sp=False,
    schedule="none",
    recompute="none",
    recompute_layers=0,
    stage_layers=(32,),
)
JOB = TrainingJob(8192, 128)
DENSE, EXPERTS, LATENT = LLAMA3_8B, MIXTRAL_8X7B, DEEPSEEK_V3
FROM_JOB = (
    "precision",
    "seq_len",
    "optimizer",
    "muon",
    "optimizer_states",
    "fp8_param_gather",
    "fp8_attention",
    "bf16_layers",
    "tuning",
    "has_reference",
    "has_precomputed_reference",
)


def case(
    changes: dict[str, Any],
    settings: dict[str, Any] | None = None,
    model: ModelShape = DENSE,
) -> Case:
    """Return the plain plan with other fields, as a case; words are turned into positions.

    `model` is a shape, or other fields of the dense one; `FROM_JOB` go to the job.
    """
    fields = dict(changes)
    shape = fields.pop("model", model)
    shape = replace(DENSE, **shape) if isinstance(shape, dict) else shape
    of_job = {name: fields.pop(name) for name in FROM_JOB if name in fields}
    for name, words in WORDS.items():
        if name in fields:
            fields[name] = words.index(fields[name])
    plain = Case.of_layout(PLAIN, shape, replace(JOB, **of_job))
    fields.setdefault("generation", "hopper")
    return replace(plain, **fields, settings=settings or {})


def moe(**fields: Any) -> ModelShape:
    return replace(EXPERTS, **fields)


def _recomputed(*modules: str) -> dict[str, Any]:
    return {"recompute": "selective", "recompute_modules": modules_code(modules)}


def _modes(**words: str) -> dict[str, Any]:
    return {"switches": {name: AXES[name].code(word) for name, word in words.items()}}


PIPE = {"pp": 4, "dp": 16, "schedule": "1f1b", "counts": (8,) * 4}
RING = {"cp": 2, "dp": 32, "cp_comm": "p2p"}
INPUTS = {"recompute": "full", "recompute_layers": 32, "activation_offload_layers": 32}
OFFLOAD = {"optimizer_offload": True, "zero": 1}
WINDOWED = (layer_run("window+dense", 16), layer_run("dense", 16))
NETTED = (layer_run("gdn+dense", 24), layer_run("dense", 8))
GATHERED = {"precision": "fp8-tensorwise", "fp8_param_gather": True}
MOMENTS = {"optimizer_states": "bf16-moments"}
ALL_TO_ALL = {"cp": 2, "dp": 32, "cp_comm": "a2a"}

Both = tuple[dict[str, Any], dict[str, Any]]

_SHARED: dict[str, Both] = {
    "a degree below 1": ({"tp": 0}, {}),
    "tp x pp x cp does not divide the devices": ({"tp": 3}, {"tp": 4}),
    "global batch is no multiple of micro-batch x dp": ({"gbs": 100}, {}),
    "attention heads do not divide by tp": ({"tp": 3}, {"tp": 4}),
    "MLP width does not divide by tp": (
        {"tp": 4, "model": {"ffn": 14338}},
        {"tp": 4, "model": moe(ffn=14338)},
    ),
    "KV heads neither divide by tp nor divide it": (
        {"tp": 4, "model": {"kv_heads": 6}},
        {"tp": 16},
    ),
    "KV heads do not divide by tp": ({"tp": 16}, {"tp": 8}),
    "the sequence does not cut into 2 cp chunks": ({**RING, "seq_len": 8190}, RING),
    "expert parallelism of a dense model": ({"ep": 2}, {"ep": 2, "model": EXPERTS}),
    "experts do not divide by ep": (
        {"ep": 3, "model": EXPERTS},
        {"ep": 4, "model": EXPERTS},
    ),
    "an optimizer that there is none of": ({"optimizer": "adafactor"}, {}),
    "replicated ZeRO groups": ({"dp_shard": 8}, {"dp_shard": 64}),
    "another order of ranks": ({"rank_order": "tp-cp-ep-pp-dp"}, {}),
    "optimizer alone on the host": (OFFLOAD, {}),
    "data-parallel traffic that runs beside nothing": ({"dp_overlap": False}, {}),
    "stored activations on the host": (INPUTS, {}),
    "a second copy of the weights": ({"zero": 3, "hpz": 8}, {"zero": 3}),
    "activations on the host without full recompute": ({"activation_offload_layers": 8}, INPUTS),
}
"""By title, of rules that several frameworks have."""

_LAYOUT: dict[str, Both] = {
    "PRM601": (
        {**_modes(dispatcher="hybridep"), "ep": 8, "model": EXPERTS},
        {**_modes(dispatcher="deepep"), "ep": 8, "model": EXPERTS},
    ),
    "PRM602": (
        {**_modes(dispatcher="deepep"), "ep": 8, "model": moe(capacity_factor=1.25)},
        {**_modes(dispatcher="alltoall"), "ep": 8, "model": moe(capacity_factor=1.25)},
    ),
    "PRM603": ({"precision": "nvfp4"}, {"precision": "fp8-mxfp8"}),
    "MLM107": ({**ALL_TO_ALL, "tp": 8}, {**ALL_TO_ALL, "tp": 4}),
    "MLM108": (
        {"tp": 2, "model": {"padded_vocab": 128257}},
        {"tp": 2, "model": {"padded_vocab": 128512}},
    ),
    "MLM109": (
        {"rank_order": "tp-cp-ep-pp-dp", "zero": 2},
        {"rank_order": "tp-cp-ep-pp-dp", "zero": 1},
    ),
    "MLM110": (
        {**PIPE, "rank_order": "tp-cp-ep-pp-dp", "ep": 2, "model": EXPERTS},
        {**PIPE, "rank_order": "tp-cp-ep-pp-dp", "model": EXPERTS},
    ),
    "MLM111": (
        {"ep": 8, "zero": 1, "dp_shard": 4, "model": EXPERTS},
        {"ep": 8, "zero": 1, "dp_shard": 8, "model": EXPERTS},
    ),
    "MLM119": ({"refused": ("--num-layers: 'x' is no int",)}, {}),
    "MLM201": ({**PIPE, "schedule": "gpipe"}, PIPE),
    "MLM202": ({**PIPE, "schedule": "zb-h1"}, PIPE),
    "MLM203": ({**PIPE, "vpp": 2, "n_micro": 6}, {**PIPE, "vpp": 2, "n_micro": 8}),
    "MLM204": ({"vpp": 2}, {**PIPE, "vpp": 2}),
    "MLM302": ({"tp": 2, "model": EXPERTS}, {"tp": 2, "sp": True, "model": EXPERTS}),
    "MLM304": ({"etp": 3, "model": EXPERTS}, {"etp": 2, "model": EXPERTS}),
    "MLM305": (
        {"ep": 8, "etp": 16, "model": EXPERTS},
        {"ep": 8, "etp": 8, "model": EXPERTS},
    ),
    "MLM306": ({"etp": 2, "model": moe(bias=True)}, {"model": moe(bias=True)}),
    "MLM307": (
        {"model": moe(n_groups=3, top_groups=1)},
        {"model": moe(n_groups=4, top_groups=2)},
    ),
    "MLM308": (
        {"tp": 8, "sp": True, "seq_len": 8190},
        {"tp": 8, "sp": False, "seq_len": 8190},
    ),
    "MLM309": (_modes(ep_overlap="dualpipe"), _modes(ep_overlap="1f1b")),
    "MLM310": (
        {"model": moe(bias=True), **_modes(ep_overlap="1f1b", cuda_graph="attn+moe_router")},
        {"model": moe(bias=True), **_modes(ep_overlap="1f1b", cuda_graph="moe_router")},
    ),
    "MLM311": (
        {"precision": "fp32", **_modes(ep_overlap="1f1b")},
        {"precision": "bf16", **_modes(ep_overlap="1f1b")},
    ),
    "MLM408": (
        {"zero": 3, **_modes(cuda_graph="attn")},
        {"zero": 3, **_modes(cuda_graph="full_iteration")},
    ),
    "MLM409": (
        {**_recomputed("core_attn"), "model": {"dropout": True}, **_modes(cuda_graph="attn+mlp")},
        {**_recomputed("core_attn"), "model": {"dropout": True}, **_modes(cuda_graph="mlp")},
    ),
    "MLM525": (
        _modes(cuda_graph="full_iteration", offload_modules="core_attn"),
        _modes(cuda_graph="attn", offload_modules="core_attn"),
    ),
    "MLM401": ({**PIPE, "zero": 2}, {**PIPE, "zero": 1}),
    "MLM402": ({**OFFLOAD, "zero": 0}, OFFLOAD),
    "MLM403": ({**OFFLOAD, "zero": 2}, OFFLOAD),
    "MLM404": ({**OFFLOAD, "precision": "fp16"}, {**OFFLOAD, "precision": "fp8-delayed"}),
    "MLM405": ({"activation_offload_layers": 8, **INPUTS}, {"activation_offload_layers": 8}),
    "MLM406": ({"activation_offload_layers": 8, "zero": 2}, {"activation_offload_layers": 8}),
    "MLM501": ({"precision": "fp16-grads"}, {"precision": "fp16"}),
    "MLM526": ({"precision": "bf16-true"}, {}),
    "MLM502": ({"precision": "fp8-rowwise"}, {"precision": "fp8-delayed"}),
    "MLM503": (
        {"precision": "fp32"},
        {"precision": "fp32", "model": {"flash_attention": False}},
    ),
    "MLM504": (
        {"precision": "fp8-delayed", **_recomputed("layernorm"), "model": EXPERTS},
        {"precision": "fp8-delayed", **_recomputed("moe"), "model": EXPERTS},
    ),
    "MLM505": ({**GATHERED, "zero": 0}, {**GATHERED, "zero": 1}),
    "MLM506": (
        {"precision": "fp8-tensorwise", "bf16_layers": (9, 1), **PIPE},
        {"precision": "fp8-tensorwise", "bf16_layers": (8, 1), **PIPE},
    ),
    "MLM507": ({**MOMENTS, "zero": 2}, {**MOMENTS, "zero": 1}),
    "MLM508": (
        {**GATHERED, **OFFLOAD},
        {**GATHERED, **OFFLOAD, "precision": "fp8-delayed"},
    ),
    "MLM509": (
        {"precision": "fp8-tensorwise", "fp8_attention": True},
        {"precision": "fp8-tensorwise"},
    ),
    "MLM427": (
        {"optimizer": "muon", "muon": MuonOptions(tp_mode="layer-sharded")},
        {"optimizer": "muon", "muon": MuonOptions(tp_mode="distributed")},
    ),
    "MLM428": ({"optimizer": "muon", "muon": MuonOptions(use_syrk=True)}, {"optimizer": "muon"}),
    "MLM429": (
        {"optimizer": "muon"},
        {"optimizer": "muon", "muon": MuonOptions(param_layout=False)},
    ),
    "MLM430": ({"optimizer": "soap", "zero": 0}, {"optimizer": "muon", "zero": 0}),
    "MLM431": (
        {"optimizer": "muon", "zero": 0},
        {"optimizer": "muon", "zero": 0, "dp_overlap": False},
    ),
    "MLM432": ({"optimizer": "muon"}, {"optimizer": "muon", "zero": 0}),
    "DSP505": (MOMENTS, {}),
    "TTN507": (MOMENTS, {}),
    "ACC505": (MOMENTS, {}),
    "DSP207": (_recomputed("core_attn", "mlp"), _recomputed("core_attn")),
    "TTN503": (_recomputed("mlp"), _recomputed("core_attn")),
    "DSP105": ({"tp": 16}, {"tp": 8}),
    "DSP106": ({"tp": 2, "sp": True}, {"tp": 2}),
    "DSP107": (RING, ALL_TO_ALL),
    "DSP108": (ALL_TO_ALL, RING),
    "DSP109": ({**ALL_TO_ALL, "cp": 3}, ALL_TO_ALL),
    "DSP110": ({**ALL_TO_ALL, "cp": 12}, {**ALL_TO_ALL, "cp": 16}),
    "DSP111": ({**ALL_TO_ALL, "seq_len": 8191}, ALL_TO_ALL),
    "DSP112": ({**ALL_TO_ALL, "tp": 2}, ALL_TO_ALL),
    "DSP119": ({"refused": ("'train_batch_size' stands twice",)}, {}),
    "DSP201": ({**PIPE, "schedule": "gpipe"}, PIPE),
    "DSP202": ({**PIPE, "schedule": "zb-h1"}, PIPE),
    "DSP203": ({**PIPE, "tp": 2}, PIPE),
    "DSP204": ({**PIPE, "vpp": 2}, PIPE),
    "DSP205": (
        {**PIPE, "counts": (7, 9, 9, 7)},
        {**PIPE, "counts": (8, 9, 8, 7)},  # 34 units, cut
    ),
    "DSP206": (
        {**PIPE, "recompute": "full", "recompute_layers": 3},
        {**PIPE, "recompute": "full", "recompute_layers": 8},
    ),
    "DSP302": ({**PIPE, "model": EXPERTS}, {"model": EXPERTS}),
    "DSP304": ({**PIPE, "ep": 32, "model": EXPERTS}, {**PIPE, "ep": 8, "model": EXPERTS}),
    "DSP305": (
        {"ep": 2, "etp": 2, "model": EXPERTS},
        {"ep": 2, "model": EXPERTS},
    ),
    "DSP306": (
        {**PIPE, "ep": 2, "tp": 2, "model": EXPERTS},
        {"ep": 2, "tp": 2, "model": EXPERTS},
    ),
    "DSP307": (
        {**ALL_TO_ALL, "zero": 3, "model": EXPERTS},
        {**ALL_TO_ALL, "zero": 2, "model": EXPERTS},
    ),
    "DSP308": ({"tp": 2, "model": EXPERTS}, {"tp": 2, "ep": 2, "model": EXPERTS}),
    "DSP311": ({"model": moe(forced_balance=True)}, {"model": EXPERTS}),
    "DSP309": ({"model": moe(capacity_factor=1.25)}, {"model": EXPERTS}),
    "DSP116": ({"tp": 2}, {"tp": 1}),
    "DSP310": ({"model": EXPERTS}, {}),
    "DSP401": ({**PIPE, "zero": 2}, {**PIPE, "zero": 1}),
    "DSP402": ({**OFFLOAD, "zero": 0}, {**OFFLOAD, "zero": 0, "dp": 1}),
    "DSP403": ({**OFFLOAD, **PIPE}, OFFLOAD),
    "DSP404": (
        {**OFFLOAD, "ep": 4, "tp": 2, "model": EXPERTS},
        {**OFFLOAD, "ep": 4, "model": EXPERTS},
    ),
    "DSP405": ({"dp_overlap": False, "zero": 0}, {"dp_overlap": False, "zero": 1}),
    "DSP408": ({"zero": 3, "hpz": 8, "tp": 2}, {"zero": 3, "hpz": 8}),
    "DSP409": ({"zero": 3, "hpz": 8, "model": EXPERTS}, {"zero": 3, "model": EXPERTS}),
    "DSP407": ({**INPUTS, **PIPE, "recompute_layers": 8}, INPUTS),
    "DSP501": ({"precision": "fp8-tensorwise"}, {}),
    "DSP506": ({"precision": "bf16-true"}, {}),
    "DSP502": ({"zero": 0}, {"zero": 0, "precision": "bf16-grads"}),
    "DSP503": (
        {**PIPE, "zero": 0, "precision": "bf16-grads"},
        {"zero": 0, "precision": "bf16-grads"},
    ),
    "TTN105": (
        {**RING, "tp": 4, "sp": True, "seq_len": 8200},
        {**RING, "tp": 4, "seq_len": 8200},
    ),
    "TTN106": (ALL_TO_ALL, RING),
    "TTN107": (RING, {**RING, "cp_comm": "all-gather"}),
    "TTN108": ({"tp": 2}, {"tp": 2, "sp": True}),
    "TTN111": ({**RING, "seq_len": 8320}, {**RING, "seq_len": 8448}),
    "TTN112": (
        {**RING, "model": replace(LATENT, mtp_layers=0)},
        {**RING, "model": DENSE},
    ),
    "TTN411": ({"tp": 8, "dp": 8, "zero": 0}, {"tp": 8, "dp": 8, "zero": 1, "dp_shard": 8}),
    "TTN504": ({"model": {"layers": 30}}, {"model": DENSE}),
    "TTN505": ({"recompute": "selective"}, {"recompute": "full", "recompute_layers": 32}),
    "TTN506": (
        {"recompute": "full", "recompute_layers": 5},
        {"recompute": "full", "recompute_layers": 8},
    ),
    "TTN201": ({**PIPE, "schedule": "dualpipe"}, {**PIPE, "schedule": "dualpipe-v"}),
    "TTN202": ({**PIPE, "model": {"tied": True}}, {"model": {"tied": True}}),
    "TTN203": ({**PIPE, "n_micro": 3}, {**PIPE, "n_micro": 4}),
    "TTN204": (
        {**PIPE, "schedule": "interleaved", "n_micro": 13},  # 3 rounds
        {**PIPE, "schedule": "interleaved", "n_micro": 10},  # 2 rounds
    ),
    "TTN205": (
        {**PIPE, "schedule": "dualpipe-v", "n_micro": 7},
        {**PIPE, "schedule": "dualpipe-v", "n_micro": 8},
    ),
    "TTN207": (
        {**PIPE, "counts": (10, 0, 11, 11)},
        {**PIPE, "counts": (0, 16, 16, 0)},
    ),
    "TTN206": ({**PIPE, "model": LATENT}, {"model": LATENT}),
    "TTN303": (
        {"zero": 3, "dp_shard": 8, "ep": 16, "tp": 1, "model": EXPERTS},
        {"zero": 3, "dp_shard": 8, "ep": 16, "tp": 2, "model": EXPERTS},
    ),
    "TTN304": (
        {"tp": 2, "ep": 2, "etp": 2, "model": EXPERTS},
        {"tp": 2, "etp": 2, "model": EXPERTS},
    ),
    "TTN305": (
        {"tp": 4, "ep": 2, "etp": 2, "model": EXPERTS},
        {"tp": 4, "ep": 2, "etp": 4, "model": EXPERTS},
    ),
    "TTN306": (  # matrices of 4,096 x 14,336: 3 ranks do not divide, 8 do
        {"zero": 3, "dp_shard": 24, "ep": 8, "model": EXPERTS},
        {"zero": 3, "dp_shard": 64, "ep": 8, "model": EXPERTS},
    ),
    "TTN307": (
        {"zero": 3, "dp": 6, "dp_shard": 6, "model": EXPERTS},
        {"zero": 3, "dp": 4, "dp_shard": 4, "model": EXPERTS},
    ),
    "TTN401": ({"zero": 1}, {**PIPE, "zero": 1}),
    "TTN402": ({**PIPE, "zero": 3}, {"zero": 3}),
    "TTN403": ({**RING, "zero": 0}, {"zero": 0}),
    "TTN404": ({**RING, "zero": 3, "dp_shard": 3}, {**RING, "zero": 3, "dp_shard": 4}),
    "TTN405": ({"zero": 0, "tp": 2}, {"zero": 0}),
    "TTN410": (
        {"zero": 0, "tp": 4, "ep": 2, "model": EXPERTS},
        {"zero": 0, "tp": 4, "ep": 4, "model": EXPERTS},
    ),
    "TTN501": ({"precision": "fp16"}, {"precision": "fp32"}),
    "TTN502": ({"model": {"norm": "layernorm"}}, {"model": LATENT}),
    "ACC105": ({"tp": 2, "sp": True}, {"tp": 2}),
    "ACC409": (INPUTS, {"recompute": "full", "recompute_layers": 32}),
    "ACC107": (ALL_TO_ALL, RING),
    "ACC201": (PIPE, {}),
    "ACC202": ({"schedule": "1f1b"}, {}),
    "ACC301": ({"ep": 2, "model": EXPERTS}, {"model": EXPERTS}),
    "ACC302": ({"tp": 2, "model": EXPERTS}, {"tp": 2}),
    "ACC303": (
        {"zero": 3, "dp_shard": 64, "model": EXPERTS},
        {"zero": 3, "dp_shard": 8, "model": EXPERTS},
    ),
    "ACC401": ({"zero": 1}, {"zero": 2}),
    "ACC402": ({"zero": 3, "dp_shard": 1}, {"zero": 3, "dp_shard": 2}),
    "ACC403": ({**RING, "zero": 3, "dp_shard": 3}, {**RING, "zero": 3, "dp_shard": 4}),
    "ACC404": (
        {"tp": 2, "zero": 3, "dp_shard": 1},
        {"tp": 2, "zero": 3, "dp_shard": 2},
    ),
    "ACC127": ({"refused": ("optimizer_in_bwd with clip_grad_norm",)}, {}),
    "ACC501": ({"precision": "bf16-grads"}, {"precision": "fp16"}),
    "ACC502": ({"recompute": "selective"}, {"recompute": "full", "recompute_layers": 32}),
    "ACC503": (
        {"recompute": "full", "recompute_layers": 3},
        {"recompute": "full", "recompute_layers": 32},
    ),
    "ACC504": ({"model": LATENT}, {"model": EXPERTS}),
    "MSL601": ({**ALL_TO_ALL, "tp": 32}, {**ALL_TO_ALL, "tp": 8}),
    "MSL602": ({**ALL_TO_ALL, "tp": 8}, {**ALL_TO_ALL, "tp": 4}),
    "MSL603": ({**RING, "cp_comm": "all-gather"}, RING),
    "MSL604": (
        {**RING, "model": {"flash_attention": False}},
        {"model": {"flash_attention": False}},
    ),
    "MSL605": (
        {**PIPE, "vpp": 2, "schedule": "interleaved", "counts": (3, 4, 4, 5, 4, 4, 4, 4)},
        {**PIPE, "vpp": 2, "schedule": "interleaved", "counts": (4,) * 8},
    ),
    "MSL606": (
        {"model": moe(moe_every=2)},
        {"model": moe(dense_layers=2)},
    ),
    "MSL607": (
        {**PIPE, "pp": 16, "dp": 4, "model": LATENT},
        {**PIPE, "pp": 8, "dp": 8, "model": LATENT},
    ),
    "MSL608": (
        {**_modes(dispatcher="deepep"), "ep": 8, "model": EXPERTS},
        {**_modes(dispatcher="allgather"), "ep": 8, "model": EXPERTS},
    ),
    "MSL609": (
        {**_modes(dispatcher="allgather"), "ep": 8, "model": moe(capacity_factor=1.25)},
        {**_modes(dispatcher="alltoall"), "ep": 8, "model": moe(capacity_factor=1.25)},
    ),
    "MSL610": ({"zero": 2}, {"zero": 1}),
    "MSL611": ({"zero": 1, "dp_shard": 8}, {"zero": 1}),
    "MSL614": (MOMENTS, {}),
    "MSL615": ({"precision": "fp8-tensorwise"}, {"precision": "fp16"}),
    "MSL616": (_recomputed("mlp"), _recomputed("core_attn", "mlp")),
    "MSL617": ({**PIPE, "counts": (0, 10, 11, 11)}, {**PIPE, "counts": (5, 9, 9, 9)}),
    "MSL618": ({"precision": "fp16", "model": EXPERTS}, {"precision": "fp16"}),
    "MXT105": ({"tp": 2}, {"tp": 2, "sp": True}),
    "MXT106": (
        {"tp": 4, "sp": True, "seq_len": 8190},
        {"tp": 2, "sp": True, "seq_len": 8190},
    ),
    "MXT108": ({**RING, "cp": 3, "cp_comm": "all-gather"}, RING),
    "MXT111": ({**RING, "cp": 64, "seq_len": 4032}, {**RING, "cp": 64}),
    "MXT112": ({**RING, "model": LATENT}, {**RING, "model": replace(LATENT, mtp_layers=0)}),
    "MXT113": ({**ALL_TO_ALL, "tp": 8}, {**ALL_TO_ALL, "tp": 4}),
    "MXT114": ({**ALL_TO_ALL, "model": LATENT}, {**RING, "model": LATENT}),
    "MXT201": (PIPE, {}),
    "MXT202": ({"schedule": "1f1b"}, {}),
    "MXT303": (
        {"ep": 4, "zero": 3, "dp_shard": 6, "model": EXPERTS},
        {"ep": 4, "zero": 3, "dp_shard": 8, "model": EXPERTS},
    ),
    "MXT304": (
        {"tp": 2, "model": EXPERTS},
        {"tp": 2, "etp": 2, "model": EXPERTS},
    ),
    "MXT305": (
        {"tp": 4, "model": moe(expert_ffn=14338)},
        {"tp": 2, "model": moe(expert_ffn=14338)},
    ),
    "MXT401": ({"zero": 2}, {"zero": 3}),
    "MXT402": ({**RING, "zero": 1}, {**RING, "zero": 3}),
    "MXT403": ({"zero": 1, "dp_shard": 8}, {"zero": 1}),
    "MXT404": ({**RING, "zero": 3, "dp_shard": 3}, {**RING, "zero": 3, "dp_shard": 4}),
    "MXT405": (
        {"zero": 3, "dp_shard": 48},
        {"zero": 3, "dp_shard": 64},
    ),
    "MXT409": ({**INPUTS, "activation_offload_layers": 8}, INPUTS),
    "MXT412": (MOMENTS, {}),
    "MXT413": ({"precision": "bf16-true"}, {}),
    "MXT501": ({"precision": "fp16"}, {"precision": "fp8-tensorwise"}),
    "MXT502": ({"model": {"norm": "layernorm"}}, {"model": LATENT}),
    "MXT503": (_recomputed("layernorm"), _recomputed("core_attn")),
    "MXT504": (
        {"recompute": "full", "recompute_layers": 8},
        {"recompute": "full", "recompute_layers": 32},
    ),
    "MXT505": (
        {"precision": "fp8-tensorwise", "fp8_attention": True},
        {"precision": "fp8-tensorwise"},
    ),
    "NAM105": (
        {"tp": 2, "sp": True, "model": LATENT},
        {"tp": 2, "sp": True},
    ),
    "NAM107": (RING, {**RING, "cp_comm": "all-gather"}),
    "NAM109": (
        {**RING, "model": {"layer_runs": WINDOWED, "window": WindowShape(128)}},
        RING,
    ),
    "NAM110": (
        {"tp": 2, "model": {"layer_runs": NETTED}},
        {"model": {"layer_runs": NETTED}},
    ),
    "NAM112": ({"tp": 2, "model": {"positions": "learned"}}, {"tp": 2}),
    "NAM201": ({**PIPE, "schedule": "zb-h1"}, PIPE),
    "NAM202": ({**PIPE, "model": {"tied": True}}, PIPE),
    "NAM203": ({**PIPE, "n_micro": 3}, {**PIPE, "n_micro": 4}),
    "NAM204": (
        {**PIPE, "schedule": "interleaved", "vpp": 2, "n_micro": 9},
        {**PIPE, "schedule": "interleaved", "vpp": 2, "n_micro": 8},
    ),
    "NAM205": ({**PIPE, "counts": (0, 11, 11, 10)}, PIPE),
    "NAM206": ({**PIPE, "model": {"layer_runs": NETTED}}, PIPE),
    "NAM303": (
        {"ep": 8, "dp": 12, "model": EXPERTS},
        {"ep": 8, "dp": 64, "model": EXPERTS},
    ),
    "NAM304": ({"tp": 2, "model": EXPERTS}, {"tp": 2}),
    "NAM305": ({"etp": 2, "model": EXPERTS}, {"model": EXPERTS}),
    "NAM306": (
        {"ep": 8, "zero": 2, "dp_shard": 32, "model": EXPERTS},
        {"ep": 8, "zero": 2, "dp_shard": 64, "model": EXPERTS},
    ),
    "NAM307": (
        {"zero": 2, "dp_shard": 64, "model": EXPERTS},
        {"zero": 2, "dp_shard": 8, "model": EXPERTS},
    ),
    "NAM308": (
        {"ep": 2, "model": moe(hidden=4112)},
        {"ep": 8, "model": moe(hidden=4112)},
    ),
    "NAM401": ({"zero": 1}, {"zero": 2}),
    "NAM402": ({**PIPE, "zero": 2}, {**PIPE, "zero": 1}),
    "NAM403": ({**PIPE, "zero": 0}, {**PIPE, "zero": 1}),
    "NAM404": ({**RING, "zero": 2, "dp_shard": 3}, {**RING, "zero": 2, "dp_shard": 4}),
    "NAM405": ({**RING, "zero": 2, "dp_shard": 2}, {**RING, "zero": 2, "dp_shard": 4}),
    "NAM501": ({"precision": "fp16"}, {"precision": "fp32"}),
    "NAM502": ({"recompute": "selective"}, {"recompute": "full", "recompute_layers": 32}),
    "NAM503": (
        {"recompute": "full", "recompute_layers": 3},
        {"recompute": "full", "recompute_layers": 32},
    ),
    "NAM504": ({"model": LATENT}, {"model": EXPERTS}),
    "NAM505": (MOMENTS, {}),
    "NAM506": ({"precision": "bf16-true"}, {}),
    "MXT506": ({"model": LATENT, "recompute": "none"}, {"recompute": "none"}),
}

SIZES = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 8192,
    "seq_length": 8192,
    "micro_batch_size": 1,
}
QUEUE = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
ENDS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
LAYOUT_FLAG = "pipeline_model_parallel_layout"
OVERLAPPED = {
    "overlap_moe_expert_parallel_comm": True,
    "moe_token_dispatcher_type": "alltoall",
    "bf16": True,
}
TORCH_FSDP = {
    "use_torch_fsdp2": True,
    "gradient_accumulation_fusion": False,
    "untie_embeddings_and_output_weights": True,
}
FULL = {
    "recompute_granularity": "full",
    "recompute_method": "block",
    "recompute_num_layers": 1,
}
MIDDLE = {**SIZES, "num_layers": 30}
AUTO_EP = {"expert_parallel.enabled": True, "expert_parallel.autoep_size": 2}
OFFLOADED = "fsdp_config.fsdp_activation_checkpointing_offload"
FSDP = {"distributed_type": "FSDP", "fsdp_config.fsdp_version": 2, "num_processes": 64}
MESHED = "parallelism_config.parallelism_config_{}_size"
LESS = "parallelism.pipeline_parallel_{}_stage_less_layers"

TURBO = {"enable_primus_turbo": True}
SENT = {**TURBO, "use_turbo_deepep": True, "moe_router_dtype": "fp32"}

HYBRID_CP = {
    "context_parallel_size": 4,
    "context_parallel_algo": "hybrid_cp_algo",
    "num_attention_heads": 32,
}
DUALPIPE = {
    "schedules_method": "dualpipev",
    "pipeline_model_parallel_size": 4,
    "num_layers": 32,
    "untie_embeddings_and_output_weights": True,
}
FB_OVERLAP = {
    "moe_fb_overlap": True,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 8,
}
EXCHANGED = {
    "moe_alltoall_overlap_comm": True,
    "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 8,
}
GROUPED = {
    "moe_router_load_balancing_type": "group_limited_greedy",
    "moe_router_group_topk": 4,
    "moe_router_topk_scaling_factor": 2.5,
}

_SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "PRM620": (
        {**TURBO, "turbo_sync_free_moe_stage": 4},
        {**TURBO, "turbo_sync_free_moe_stage": 3},
        {},
    ),
    "PRM621": ({"turbo_sync_free_moe_stage": 1}, {**TURBO, "turbo_sync_free_moe_stage": 1}, {}),
    "PRM622": (
        {**TURBO, "turbo_sync_free_moe_stage": 2},
        {**TURBO, "turbo_sync_free_moe_stage": 2, "use_turbo_grouped_gemm": True},
        {},
    ),
    "PRM623": (
        {"use_turbo_grouped_gemm": True, "moe_use_legacy_grouped_gemm": True},
        {"use_turbo_grouped_gemm": True},
        {},
    ),
    "PRM624": ({**SENT, "moe_shared_expert_overlap": True}, SENT, {}),
    "PRM625": ({**SENT, "moe_router_dtype": "fp64"}, SENT, {}),
    "PRM626": (
        {**SENT, "expert_model_parallel_size": 16, "turbo_deepep_num_cu": 64},
        {**SENT, "expert_model_parallel_size": 8, "turbo_deepep_num_cu": 64},
        {},
    ),
    "PRM627": (
        {"fp8": "hybrid", "use_turbo_gemm": True},
        {"fp8": "hybrid", "use_turbo_gemm": True, "fp8_recipe": "tensorwise"},
        {},
    ),
    "PRM628": (
        {"fp4": "e2m1", "use_turbo_gemm": True},
        {"fp4": "e2m1", "use_turbo_gemm": True, "fp4_recipe": "mxfp4"},
        {},
    ),
    "PRM629": ({"use_turbo_grouped_mlp": True}, {"use_turbo_grouped_mlp": False}, {}),
    "PRM630": (
        {**TURBO, "turbo_grouped_gemm_without_padding": True},
        {
            **TURBO,
            "turbo_grouped_gemm_without_padding": True,
            "use_turbo_grouped_gemm": True,
        },
        {},
    ),
    "PRM631": (
        {**TURBO, "use_turbo_gemm": True, "tensor_model_parallel_size": 2},
        {**TURBO, "use_turbo_gemm": True},
        {},
    ),
    "PRM632": (
        {**TURBO, "use_turbo_grouped_gemm": True, "num_experts": 8},
        {**TURBO, "num_experts": 8},
        {"etp": 2},
    ),
    "PRM633": (
        {"data_parallel_replicate_degree": 2, "use_torch_fsdp2": True},
        {
            "data_parallel_replicate_degree": 2,
            "use_torch_fsdp2": True,
            "ckpt_format": "torch_dcp",
        },
        {},
    ),
    "PRM634": (
        {"use_turbo_mega_moe": True, "tensor_model_parallel_size": 2},
        {"use_turbo_mega_moe": True},
        {},
    ),
    "PRM635": (
        {"recompute_layer_ids": [0, 40], "recompute_granularity": "full", "num_layers": 32},
        {"recompute_layer_ids": [0, 31], "recompute_granularity": "full", "num_layers": 32},
        {},
    ),
    "PRM636": (
        {**TURBO, "use_turbo_attention": True, "window_size": [128, 0]},
        {**TURBO, "use_turbo_attention": True},
        {},
    ),
    # code: (settings that break it, settings that keep it, other fields of both cases)
    "MLM121": ({"batch_size": 4}, {"batch_size": None}, {}),
    "MLM122": ({**SIZES, "hidden_size": None}, SIZES, {}),
    "MLM123": ({"fp8_recipe": "rowwise"}, {"fp8_recipe": "mxfp8"}, {}),
    "MLM124": (
        {**SIZES, "num_attention_heads": 33},
        {**SIZES, "num_attention_heads": 33, "kv_channels": 128},
        {},
    ),
    "MLM125": ({**SIZES, "max_position_embeddings": 4096}, SIZES, {}),
    "MLM126": (
        {"multi_latent_attention": True, "group_query_attention": True},
        {"multi_latent_attention": True},
        {},
    ),
    "MLM127": (
        {"hierarchical_context_parallel_sizes": [2, 4]},
        {"hierarchical_context_parallel_sizes": [2, 2]},
        {"cp": 4},
    ),
    "MLM128": (
        {"cp_comm_type": ["a2a+p2p"]},
        {"cp_comm_type": ["a2a+p2p"], "hierarchical_context_parallel_sizes": [2, 2]},
        {},
    ),
    "MLM129": (
        {**SIZES, "cp_comm_type": ["p2p", "a2a"]},
        {**SIZES, "cp_comm_type": ["p2p"] * 32},
        {"cp": 2},
    ),
    "MLM130": (
        {"hybrid_context_parallel": True},
        {"hybrid_context_parallel": True, "calculate_per_token_loss": True},
        {},
    ),
    "MLM133": (
        {"step_batch_size_schedule": "0:64", "global_batch_size": 128},
        {"step_batch_size_schedule": "0:64"},
        {},
    ),
    "MLM134": (
        {"tensor_parallel_num_weight_shards": 6},
        {"tensor_parallel_num_weight_shards": 8},
        {"tp": 4},
    ),
    "MLM135": (
        {"mtp_num_layers": 1},
        {"mtp_num_layers": 1, "position_embedding_type": "rope"},
        {},
    ),
    "MLM136": (
        {"train_iters": 10, "lr_decay_samples": 100},
        {"train_samples": 10, "lr_decay_samples": 100},
        {},
    ),
    "MLM137": ({"save": "/checkpoints"}, {"save": "/checkpoints", "save_interval": 10}, {}),
    "MLM138": ({"lr": 1e-4, "min_lr": 1e-3}, {"lr": 1e-4, "min_lr": 1e-5}, {}),
    "MLM139": ({"mock_data": True, "data_path": ["x"]}, {"data_path": ["x"]}, {}),
    "MLM141": ({"squared_relu": True}, {"squared_relu": True, "bias_gelu_fusion": False}, {}),
    "MLM142": ({**SIZES, "no_rope_freq": 3}, {**SIZES, "no_rope_freq": 4}, {}),
    "MLM143": (
        {"train_iters": 10, "eval_iters": 0},
        {"train_iters": 10, "eval_iters": 0, "eval_interval": 1000},
        {},
    ),
    "MLM144": (
        {"tokenizer_type": "NullTokenizer"},
        {"tokenizer_type": "NullTokenizer", "vocab_size": 32000},
        {},
    ),
    "MLM145": ({"wandb_project": "runs"}, {"wandb_project": "runs", "save": "/checkpoints"}, {}),
    "MLM140": ({"eval_global_batch_size": 100}, {"eval_global_batch_size": 64}, {}),
    "MLM210": (
        MIDDLE,
        {
            **MIDDLE,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
        PIPE,
    ),
    "MLM211": (
        {"num_layers_per_virtual_pipeline_stage": 2, LAYOUT_FLAG: "Et*16|t*16L"},
        {LAYOUT_FLAG: "Et*16|t*16L"},
        PIPE,
    ),
    "MLM212": (
        {**SIZES, "num_layers_per_virtual_pipeline_stage": 3},
        {**SIZES, "num_layers_per_virtual_pipeline_stage": 4},
        PIPE,
    ),
    "MLM213": (
        {"num_layers_per_virtual_pipeline_stage": 2, ENDS[0]: 7},
        {"num_virtual_stages_per_pipeline_rank": 2, ENDS[0]: 7},
        PIPE,
    ),
    "MLM214": ({"overlap_p2p_comm": False}, {}, {"pp": 2, "vpp": 2}),
    "MLM215": ({**SIZES, ENDS[0]: 7, ENDS[1]: 8}, {**SIZES, ENDS[0]: 7, ENDS[1]: 7}, PIPE),
    "MLM216": ({ENDS[0]: 7, "account_for_loss_in_pipeline_split": True}, {ENDS[0]: 7}, PIPE),
    "MLM217": (
        {**SIZES, "num_virtual_stages_per_pipeline_rank": 3},
        {**SIZES, "num_virtual_stages_per_pipeline_rank": 3, "num_layers": 36},
        {**PIPE, "vpp": 3},
    ),
    "MLM218": ({LAYOUT_FLAG: "Et*16|t*16L", ENDS[0]: 7}, {LAYOUT_FLAG: "Et*16|t*16L"}, PIPE),
    "MLM219": (
        {**SIZES, LAYOUT_FLAG: "Et*7|(t*8|)*2t*8L"},
        {**SIZES, LAYOUT_FLAG: "Et*7|(t*8|)*2t*9L"},
        PIPE,
    ),
    "MLM220": (
        {**SIZES, "cpu_offloading_num_layers": 4, **FULL},
        {**SIZES, "cpu_offloading_num_layers": 4},
        {},
    ),
    "MLM221": (
        {"defer_embedding_wgrad_compute": True, "gradient_accumulation_fusion": False},
        {"defer_embedding_wgrad_compute": True},
        PIPE,
    ),
    "MLM320": (
        {"tp_comm_overlap": True},
        {"tp_comm_overlap": True, "sequence_parallel": True},
        {"tp": 2},
    ),
    "MLM321": (
        {"num_experts": 8, "moe_router_topk": 1},
        {"num_experts": 8, "moe_router_topk": 1, "moe_router_pre_softmax": True},
        {},
    ),
    "MLM322": (
        {"num_experts": 8, "moe_router_group_topk": 2, "moe_router_num_groups": 3},
        {"num_experts": 8, "moe_router_group_topk": 2, "moe_router_num_groups": 4},
        {},
    ),
    "MLM323": (
        {"moe_router_enable_expert_bias": True},
        {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"},
        {},
    ),
    "MLM324": (
        {"moe_enable_deepep": True},
        {"moe_enable_deepep": True, "moe_token_dispatcher_type": "flex"},
        {},
    ),
    "MLM331": (
        {**SIZES, "num_experts": 8, "moe_layer_freq": [0, 1] * 15},
        {**SIZES, "num_experts": 8, "moe_layer_freq": [0, 1] * 16},
        {},
    ),
    "MLM325": (
        {"moe_pad_expert_input_to_capacity": True},
        {"moe_pad_expert_input_to_capacity": True, "moe_expert_capacity_factor": 1.0},
        {},
    ),
    "MLM326": (
        {"moe_shared_expert_overlap": True, "moe_shared_expert_intermediate_size": 64},
        {
            "moe_shared_expert_overlap": True,
            "moe_shared_expert_intermediate_size": 64,
            "moe_token_dispatcher_type": "alltoall",
        },
        {},
    ),
    "MLM327": ({**OVERLAPPED, **FULL}, OVERLAPPED, {"ep": 8}),
    "MLM328": (
        {"delay_wgrad_compute": True},
        {"delay_wgrad_compute": True, "overlap_moe_expert_parallel_comm": True},
        {},
    ),
    "MLM330": ({"moe_ffn_hidden_size": 512}, {"moe_ffn_hidden_size": 512, "num_experts": 8}, {}),
    "MLM410": (
        {"overlap_param_gather": True, "use_distributed_optimizer": True},
        {
            "overlap_param_gather": True,
            "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
        },
        {},
    ),
    "MLM411": (
        {"overlap_param_gather_with_optimizer_step": True},
        {
            "overlap_param_gather_with_optimizer_step": True,
            "ckpt_format": "torch",
            "use_distributed_optimizer": True,
            "overlap_param_gather": True,
        },
        {**PIPE, "vpp": 2},
    ),
    "MLM412": ({**TORCH_FSDP, "use_distributed_optimizer": True}, TORCH_FSDP, {}),
    "MLM413": (
        {"use_megatron_fsdp": True},
        {"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"},
        {},
    ),
    "MLM414": (
        {"use_megatron_fsdp": True, "megatron_fsdp_version": 2, "use_distributed_optimizer": True},
        {"use_megatron_fsdp": True, "megatron_fsdp_version": 2},
        {},
    ),
    "MLM415": (
        {"ckpt_format": "fsdp_dtensor"},
        {"ckpt_format": "fsdp_dtensor", "use_megatron_fsdp": True},
        {},
    ),
    "MLM416": (
        {"ckpt_format": "torch_dcp"},
        {"ckpt_format": "torch_dcp", "use_torch_fsdp2": True},
        {},
    ),
    "MLM417": (
        {"exp_avg_dtype": "bf16"},
        {"exp_avg_dtype": "bf16", "use_precision_aware_optimizer": True},
        {},
    ),
    "MLM418": (
        {"use_precision_aware_optimizer": True},
        {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True},
        {},
    ),
    "MLM419": (
        {"optimizer_cpu_offload": True},
        {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True},
        {},
    ),
    "MLM420": (
        {
            "use_gloo_process_groups": False,
            "use_distributed_optimizer": True,
            "ckpt_format": "torch",
        },
        {"use_gloo_process_groups": False, "use_distributed_optimizer": True},
        {},
    ),
    "MLM421": ({"ddp_num_buckets": 4, "ddp_bucket_size": 100}, {"ddp_num_buckets": 4}, {}),
    "MLM422": (
        {"num_distributed_optimizer_instances": 3},
        {"num_distributed_optimizer_instances": 4},
        {},
    ),
    "MLM423": (
        {
            "use_megatron_fsdp": True,
            "outer_dp_sharding_strategy": "optim",
            "data_parallel_sharding_strategy": "optim_grads",
        },
        {"use_megatron_fsdp": True, "outer_dp_sharding_strategy": "optim"},
        {},
    ),
    "MLM424": (
        {"fsdp_manual_registration": True, "use_megatron_fsdp": True},
        {"fsdp_manual_registration": True, "use_megatron_fsdp": True, "nccl_ub": True},
        {},
    ),
    "MLM425": ({"optimizer": "muon", "use_megatron_fsdp": True}, {"optimizer": "muon"}, {}),
    "MLM510": ({"recompute_granularity": "full", "recompute_method": "block"}, FULL, {}),
    "MLM511": (
        {"recompute_activations": True, "recompute_method": "block"},
        {"recompute_activations": True},
        {},
    ),
    "MLM512": (
        {"recompute_granularity": "selective", "recompute_modules": ["attention"]},
        {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
        {},
    ),
    "MLM524": (
        {"fine_grained_activation_offloading": True, "offload_modules": ["attn_proj"]},
        {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn"]},
        {},
    ),
    "MLM513": (
        {"distribute_saved_activations": True},
        {"distribute_saved_activations": True, **FULL},
        {"tp": 2},
    ),
    "MLM514": ({"fp8": "hybrid", "fp4": "e2m1"}, {"fp8": "hybrid"}, {}),
    "MLM515": (
        {"fp8": "hybrid", "fp8_param_gather": True},
        {"fp8": "hybrid", "fp8_param_gather": True, "use_distributed_optimizer": True},
        {},
    ),
    "MLM516": (
        {**SIZES, "fp8": "hybrid", "first_last_layers_bf16": True},
        {**SIZES, "fp8": "hybrid", "first_last_layers_bf16": True, "fp8_recipe": "tensorwise"},
        {},
    ),
    "MLM517": ({"bf16": True, "fp16": True}, {"bf16": True}, {}),
    "MLM518": (
        {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
        {"cross_entropy_loss_fusion": True},
        {},
    ),
    "MLM519": (
        {"cuda_graph_impl": "local", **FULL},
        {"cuda_graph_impl": "full_iteration", **FULL},
        {},
    ),
    "MLM520": (
        {"bf16": True, "accumulate_allreduce_grads_in_fp32": True, "main_grads_dtype": "bf16"},
        {"bf16": True, "accumulate_allreduce_grads_in_fp32": True},
        {},
    ),
    "MLM521": ({"fp16_lm_cross_entropy": True}, {"fp16_lm_cross_entropy": True, "fp16": True}, {}),
    "MLM522": (
        {"fp32_residual_connection": True},
        {"fp32_residual_connection": True, "bf16": True},
        {},
    ),
    "MLM523": (
        {"reuse_grad_buf_for_mxfp8_param_ag": True},
        {"reuse_grad_buf_for_mxfp8_param_ag": True, "fp8_param_gather": True},
        {},
    ),
    "DSP120": ({"zero_optimization.mics_shard_size": 8}, {"zero_optimization.stage": 1}, {}),
    "DSP121": ({"zero_optimization.stge": 1}, {"zero_optimization.stage": 1}, {}),
    "DSP122": ({"train_batchsize": 1}, {"train_batch_size": 1}, {}),
    "DSP123": (
        {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 1},
        {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 1},
        {},
    ),
    "DSP124": (
        {"data_parallel_size": 16, "sequence_parallel_size": 2},
        {"data_parallel_size": 32, "sequence_parallel_size": 2},
        {},
    ),
    "DSP126": (
        {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 0},
        {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1},
        {},
    ),
    "DSP125": ({"optimizer.params.max_grad_norm": 1.0}, {"gradient_clipping": 1.0}, {}),
    "DSP310": ({**AUTO_EP, "expert_parallel.expert_tensor_parallel_size": 2}, AUTO_EP, {}),
    "DSP410": ({"zero_optimization.stage": 4}, {"zero_optimization.stage": 3}, {}),
    "DSP411": (
        {"zero_optimization.stage": 2, "zero_optimization.zero_hpz_partition_size": 8},
        {"zero_optimization.stage": 3, "zero_optimization.zero_hpz_partition_size": 8},
        {},
    ),
    "DSP412": (
        {"zero_optimization.zero_hpz_partition_size": 7},
        {"zero_optimization.zero_hpz_partition_size": 8},
        {},
    ),
    "DSP413": (
        {"gradient_allreduce_op": "sum", "zero_optimization.stage": 3},
        {"gradient_allreduce_op": "sum", "zero_optimization.stage": 2},
        {},
    ),
    "DSP414": (
        {"zero_optimization.compute_grad_norm": False, "zero_optimization.stage": 3},
        {"zero_optimization.compute_grad_norm": False, "zero_optimization.stage": 2},
        {},
    ),
    "DSP415": (
        {"optimizer.type": "Lamb", "zero_optimization.stage": 1},
        {"optimizer.type": "AdamW", "zero_optimization.stage": 1},
        {},
    ),
    "DSP510": ({"bf16.enabled": True, "fp16.enabled": True}, {"bf16.enabled": True}, {}),
    "DSP511": (
        {"bf16.bf16_master_weights_and_grads": True},
        {"bf16.bf16_master_weights_and_grads": True, "zero_optimization.stage": 1},
        {},
    ),
    "DSP512": (
        {"bf16.enabled": True, "data_types.grad_accum_dtype": "fp32"},
        {"bf16.enabled": True, "data_types.grad_accum_dtype": "bf16"},
        {},
    ),
    "DSP513": (
        {"bf16.enabled": True, "data_types.param_dtype": "fp32"},
        {"bf16.enabled": True, "data_types.param_dtype": "bfloat16"},
        {},
    ),
    "TTN121": (
        {"parallelism.fsdp_reshard_after_forward": "sometimes"},
        {"parallelism.fsdp_reshard_after_forward": "always"},
        {},
    ),
    "TTN122": (
        {"parallelism.tensor_parallel_degree": 3},
        {"parallelism.tensor_parallel_degree": 4},
        {},
    ),
    "TTN123": (
        {"training.local_batch_size": 3, "training.global_batch_size": 128},
        {"training.local_batch_size": 2, "training.global_batch_size": 128},
        {},
    ),
    "TTN125": (
        {"model.name": "deepseek_v3", "model.flavor": "16B"},
        {"model.name": "llama3", "model.flavor": "8B"},
        {"cp": 2},
    ),
    "TTN124": ({"model.attn_backend": "varlen"}, {"model.attn_backend": "flex"}, {"cp": 2}),
    "TTN220": (
        {
            "parallelism.pipeline_parallel_schedule": "ZBVZeroBubble",
            "parallelism.pipeline_parallel_layers_per_stage": 9,
        },
        {
            "parallelism.pipeline_parallel_schedule": "1F1B",
            "parallelism.pipeline_parallel_layers_per_stage": 9,
        },
        PIPE,
    ),
    "TTN221": (
        {"training.local_batch_size": 8, "parallelism.pipeline_parallel_microbatch_size": 3},
        {"training.local_batch_size": 8, "parallelism.pipeline_parallel_microbatch_size": 2},
        PIPE,
    ),
    "TTN222": ({}, {"training.disable_cuda_graphs": True}, PIPE),
    "TTN320": (
        {"parallelism.expert_parallel_comm_backend": "deepep"},
        {"parallelism.expert_parallel_comm_backend": "standard"},
        {},
    ),
    "TTN520": (
        {"compile.enable_async_tensor_parallel": True},
        {"compile.enable_async_tensor_parallel": True, "compile.enable": True},
        {},
    ),
    "TTN521": (
        {"activation_checkpoint.mode": "memory_budget"},
        {"activation_checkpoint.mode": "memory_budget", "compile.enable": True},
        {},
    ),
    "ACC120": ({"distributed_typ": "FSDP"}, {"distributed_type": "FSDP"}, {}),
    "ACC121": (
        {"fsdp_config.fsdp_reshard": True},
        {"fsdp_config.reshard_after_forward": True},
        {},
    ),
    "ACC122": ({"num_processes": 8}, {"distributed_type": "FSDP"}, {}),
    "ACC123": ({"mixed_precision": "bfloat16"}, {"mixed_precision": "bf16"}, {}),
    "ACC124": (
        {**FSDP, MESHED.format("tp"): 2, MESHED.format("dp_shard"): 16},
        {**FSDP, MESHED.format("tp"): 2, MESHED.format("dp_shard"): 32},
        {},
    ),
    "ACC125": (
        {**FSDP, "fsdp_config.fsdp_version": 1, MESHED.format("dp_shard"): 64},
        {**FSDP, MESHED.format("dp_shard"): 64},
        {},
    ),
    "ACC126": (
        {"num_processes": 12, "num_machines": 8},
        {"num_processes": 16, "num_machines": 8},
        {},
    ),
    "ACC420": (
        {**FSDP, "fsdp_config.fsdp_state_dict_type": "LOCAL_STATE_DICT"},
        {**FSDP, "fsdp_config.fsdp_sharding_strategy": "FULL_SHARD"},
        {},
    ),
    "ACC421": (
        {
            **FSDP,
            "fsdp_config.fsdp_version": 1,
            "fsdp_config.fsdp_sharding_strategy": "HALF_SHARD",
        },
        {
            **FSDP,
            "fsdp_config.fsdp_version": 1,
            "fsdp_config.fsdp_sharding_strategy": "FULL_SHARD",
        },
        {},
    ),
    "ACC520": (
        {**FSDP, OFFLOADED: True},
        {**FSDP, OFFLOADED: True, "fsdp_config.fsdp_activation_checkpointing": True},
        {},
    ),
    "ACC521": (
        {**FSDP, "fp8_config.backend": "AO"},
        {**FSDP, "fp8_config.backend": "AO", "fsdp_config.fsdp_cpu_ram_efficient_loading": False},
        {},
    ),
    "MSL623": (
        {"num_layer_list": "15,17", "pipeline_model_parallel_size": 4, "num_layers": 32},
        {"num_layer_list": "15,17", "pipeline_model_parallel_size": 2, "num_layers": 32},
        {},
    ),
    "MSL624": (
        {**HYBRID_CP, "ulysses_degree_in_cp": 4},
        {**HYBRID_CP, "ulysses_degree_in_cp": 2},
        {},
    ),
    "MSL625": (
        {"context_parallel_size": 2, "sliding_window": 1024, "seq_length": 4096},
        {"context_parallel_size": 2, "sliding_window": 4096, "seq_length": 4096},
        {},
    ),
    "MSL626": ({**DUALPIPE, "overlap_grad_reduce": True}, DUALPIPE, {}),
    "MSL627": (
        {**FB_OVERLAP, "swap_attention": True},
        FB_OVERLAP,
        {},
    ),
    "MSL628": (
        {**EXCHANGED, "expert_model_parallel_size": 1},
        EXCHANGED,
        {},
    ),
    "MSL629": (
        {"recompute_in_bubble": True, "pipeline_model_parallel_size": 4},
        {
            "recompute_in_bubble": True,
            "pipeline_model_parallel_size": 4,
            "num_layers_per_virtual_pipeline_stage": 1,
        },
        {},
    ),
    "MSL630": (
        {"moe_expert_capacity_factor": 1.0},
        {"moe_expert_capacity_factor": 1.0, "moe_token_dispatcher_type": "alltoall"},
        {},
    ),
    "MSL631": (
        {**GROUPED, "expert_model_parallel_size": 2},
        {**GROUPED, "expert_model_parallel_size": 8},
        {},
    ),
    "MSL632": (
        {"use_ascend_mc2": True, "use_ascend_coc": True},
        {"use_ascend_coc": True},
        {},
    ),
    "MXT122": (
        {"ici_tensor_parallelism": -1},
        {"ici_tensor_parallelism": -1, "ici_fsdp_parallelism": 8},
        {},
    ),
    "MXT123": (
        {"ici_fsdp_parallelism": 8, "dcn_data_parallelism": 4},
        {"ici_fsdp_parallelism": 16, "dcn_data_parallelism": 4},
        {},
    ),
    "MXT124": (
        {"context_parallel_strategy": "ring", "ici_context_parallelism": 2},
        {
            "context_parallel_strategy": "ring",
            "ici_context_parallelism": 2,
            "use_tokamax_splash": True,
            "attention": "flash",
        },
        {},
    ),
    "MXT125": (
        {"context_parallel_strategy": "ulysses", "ici_context_parallelism": 2},
        {
            "context_parallel_strategy": "ulysses",
            "ici_context_parallelism": 2,
            "use_tokamax_splash": True,
            "attention": "flash",
            "context_parallel_load_balance": False,
        },
        {},
    ),
    "MXT220": (
        {"ici_pipeline_parallelism": 4, "num_layers_per_pipeline_stage": 3},
        {"ici_pipeline_parallelism": 4, "num_layers_per_pipeline_stage": 2},
        {},
    ),
    "MXT420": (
        {"shard_optimizer_over_data": True, "ici_fsdp_parallelism": 4},
        {"shard_optimizer_over_data": True, "ici_fsdp_parallelism": 1},
        {},
    ),
    "MXT520": (
        {"quantization": "fp8", "gradient_accumulation_steps": 2},
        {"quantization": "fp8_full", "gradient_accumulation_steps": 2},
        {},
    ),
    "MXT521": (
        {"decoder_block": "mixtral", "base_mlp_dim": 7168, "base_moe_mlp_dim": 14336},
        {"decoder_block": "mixtral", "base_mlp_dim": 14336, "base_moe_mlp_dim": 14336},
        {},
    ),
    "NAM122": (
        {"distributed.strategy": "fsdp3"},
        {"distributed.strategy": "mfsdp"},
        {},
    ),
    "NAM123": (
        {"distributed.dp_size": 8, "distributed.dp_replicate_size": 3},
        {"distributed.dp_size": 8, "distributed.dp_replicate_size": 2},
        {},
    ),
    "NAM124": (
        {"distributed.strategy": "ddp", "distributed.tp_size": 2},
        {"distributed.strategy": "fsdp2", "distributed.tp_size": 2},
        {},
    ),
    "NAM125": (
        {"step_scheduler.global_batch_size": 96},
        {"step_scheduler.global_batch_size": 128},
        {},
    ),
    "NAM126": (
        {
            "step_scheduler.local_batch_size": 3,
            "distributed.pp_size": 4,
            "distributed.pipeline.pp_microbatch_size": 2,
        },
        {
            "step_scheduler.local_batch_size": 8,
            "distributed.pp_size": 4,
            "distributed.pipeline.pp_microbatch_size": 2,
        },
        {},
    ),
    "NAM220": (
        {"distributed.pp_size": 4},
        {"distributed.pp_size": 4, "distributed.pipeline.pp_schedule": "1f1b"},
        {},
    ),
    "NAM221": (
        {"distributed.pp_size": 4, "distributed.pipeline.layers_per_stage": 6},
        {"distributed.pp_size": 4, "distributed.pipeline.layers_per_stage": 8},
        {},
    ),
    "NAM222": (
        {"distributed.pp_size": 1, "distributed.pipeline.pp_schedule": "1f1b"},
        {"distributed.pp_size": 4, "distributed.pipeline.pp_schedule": "1f1b"},
        {},
    ),
    "NAM320": (
        {
            "distributed.tp_size": 2,
            "distributed.ep_size": 8,
            "distributed.sequence_parallel": True,
        },
        {"distributed.tp_size": 2, "distributed.sequence_parallel": True},
        {},
    ),
    "NAM520": (
        {"qat.enabled": True, "peft.dim": 8},
        {"qat.enabled": True},
        {},
    ),
}


def _of(model: ModelShape, *runs: tuple[str, int], **sizes: Any) -> ModelShape:
    """Return a model with runs of kinds of layers."""
    return replace(model, layer_runs=tuple(layer_run(*run) for run in runs), **sizes)


_MAMBA = Mamba2Shape(64, 64, 8, 128, 4, 128)
_NET = DeltaNetShape(16, 32, 128, 128, 4, 64)
_HYBRID = _of(DENSE, ("mamba2+none", 16), ("attention+none", 8), ("none+dense", 8), mamba2=_MAMBA)
_PAIRS = _of(DENSE, ("mamba2+dense", 24), ("dense", 8), mamba2=_MAMBA)
_NETS = _of(DENSE, ("gdn+dense", 24), ("dense", 8), delta_net=_NET)
_WINDOWS = _of(DENSE, ("window+dense", 16), ("dense", 16), window=WindowShape(128))
_GPT_OSS = _of(
    replace(EXPERTS, bias=True), *(("window+moe", 1), ("moe", 1)) * 16, window=WindowShape(128)
)
_INDEXER = IndexerShape(64, 128, 2048)
_SPARSE = _of(LATENT, ("sparse+dense", 3), ("sparse+moe", 58), indexer=_INDEXER)
_SEES = replace(DENSE, vision=VisionShape(2, 64, 4, 256, False, 14, 256))
_BESIDE = _of(EXPERTS, ("mamba2+none", 16), ("none+moe", 16), mamba2=_MAMBA)
_LATENTS = DiffusionShape(
    480, 832, 512, 4096, 81, 8, 4, cross=True, modulation="table", text_layers=2
)
_PIXART = replace(
    _of(replace(DENSE, vocab=0, gated=False, bias=True, tied=False), ("adaln", 32)),
    diffusion=_LATENTS,
)
_WAN = replace(_PIXART, diffusion=replace(_LATENTS, qk_norm="width", cross_norm=True))
_KINDS: dict[str, tuple[Case, Case]] = {
    "MLM700": (
        case({}, model=_of(DENSE, ("mamba2+none", 16), ("dense", 16), mamba2=_MAMBA)),
        case({}, model=_HYBRID),
    ),
    "MLM701": (
        case({}, model=_of(LATENT, ("dense", 3), ("window+moe", 58), window=WindowShape(128))),
        case({}, model=LATENT),
    ),
    "MLM702": (
        case({}, model=_of(LATENT, ("mamba2+none", 30), ("attention+none", 31), mamba2=_MAMBA)),
        case({}, model=_HYBRID),
    ),
    "MLM703": (case({}, model=replace(_HYBRID, mtp_layers=1)), case({}, model=_HYBRID)),
    "MLM704": (
        case({}, model=replace(_HYBRID, mamba2=replace(_MAMBA, conv=3))),
        case({}, model=_HYBRID),
    ),
    "MLM705": (
        case({}, model=replace(_HYBRID, mamba2=replace(_MAMBA, chunk=256))),
        case({}, model=_HYBRID),
    ),
    "MLM706": (
        case({}, model=replace(_NETS, delta_net=replace(_NET, chunk=128))),
        case({}, model=_NETS),
    ),
    "MLM707": (
        case({"recompute": "full", "recompute_layers": 32}, model=_PAIRS),
        case({}, model=_PAIRS),
    ),
    "MLM708": (
        case(_modes(ep_overlap="1f1b"), model=_BESIDE),
        case(_modes(ep_overlap="1f1b"), model=EXPERTS),
    ),
    "MLM709": (case(INPUTS, model=_HYBRID), case(INPUTS, model=DENSE)),
    "MLM710": (
        case({}, model=_of(LATENT, ("dense", 3), ("sparse+moe", 58), indexer=_INDEXER)),
        case({}, model=_SPARSE),
    ),
    "MLM711": (case(ALL_TO_ALL, model=_NETS), case(ALL_TO_ALL, model=DENSE)),
    "MLM712": (case(_recomputed("gdn_norm_out"), model=_NETS), case({}, model=_NETS)),
    "MLM713": (
        case(
            _recomputed("gdn_norm_out"),
            model=_of(DENSE, ("gdn+none", 16), ("none+dense", 16), delta_net=_NET),
        ),
        case(_recomputed("gdn_norm_out"), model=_NETS),
    ),
    "MLM714": (
        case({"optimizer": "muon", "muon": MuonOptions(mamba_in_proj=False)}, model=_HYBRID),
        case({"optimizer": "muon"}, model=_HYBRID),
    ),
    "MLM715": (
        case({"optimizer": "muon"}, model=_HYBRID),
        case({"optimizer": "muon", "muon": MuonOptions(mamba_in_proj=False)}, model=_HYBRID),
    ),
    "MBR432": (case({"optimizer": "muon"}), case({"optimizer": "muon", "zero": 0})),
    "MBR720": (case({**PIPE, "vpp": 2}, model=_HYBRID), case({**PIPE, "vpp": 2})),
    "MBR721": (
        case(_modes(cuda_graph="full_iteration"), model=_HYBRID),
        case(_modes(cuda_graph="full_iteration")),
    ),
    "DSP117": (case(ALL_TO_ALL, model=_HYBRID), case(ALL_TO_ALL, model=_WINDOWS)),
    "DSP118": (
        case({"tp": 2, "dp": 32}, model=_HYBRID),
        case({"tp": 2, "dp": 32}, model=_WINDOWS),
    ),
    "DSP312": (
        case({"ep": 2}, model=_BESIDE),
        case({"ep": 2}, model=_of(EXPERTS, ("gdn+moe", 24), ("moe", 8), delta_net=_NET)),
    ),
    "DSP209": (case({"tp": 2, "dp": 32}, model=_SEES), case({}, model=_SEES)),
    "ACC111": (case(RING, model=_SEES), case({}, model=_SEES)),
    "MBR730": (case({}, model=_PIXART), case({}, model=_WAN)),
    "MBR731": (case(ALL_TO_ALL, model=_WAN), case(ALL_TO_ALL, model=DENSE)),
    "MBR732": (case({"mbs": 2}, model=_WAN), case({"mbs": 1}, model=_WAN)),
    "MBR733": (case({**PIPE, "vpp": 2}, model=_WAN), case(PIPE, model=_WAN)),
    "MBR734": (case({"zero": 2}, model=_WAN), case({"zero": 1}, model=_WAN)),
    "DSP208": (case(PIPE, model=_WINDOWS), case({}, model=_WINDOWS)),
    "TTN508": (case({}, model=_WINDOWS), case({}, model=_GPT_OSS)),
    "TTN509": (
        case({}, model=replace(_GPT_OSS, window=WindowShape(512))),
        case({}, model=_GPT_OSS),
    ),
    "ACC109": (case(RING, model=_WINDOWS), case(RING, model=DENSE)),
    "ACC110": (case({"tp": 2, "dp": 32}, model=_NETS), case({"tp": 2, "dp": 32}, model=_WINDOWS)),
}


def _beside(base: str) -> TuningJob:
    return TuningJob(16, ("q", "v"), base=base)


_OTHERS: dict[str, tuple[Case, Case]] = {
    **_KINDS,
    "PRM604": (case({}, model=_NETS), case({}, model=_WINDOWS)),
    "PRM650": (case({"unknown": ("use_turbo_magic",)}), case({})),
    "MLM120": (case({"unknown": ("--tensor-parallel",)}), case({})),
    "MLM131": (case({"tp": 2}), case({"tp": 2, "env": QUEUE})),
    "MLM132": (
        case({"tp": 2, "generation": "blackwell"}),
        case({"tp": 2, "env": QUEUE}),
    ),
    "MLM329": (
        case({"generation": "volta"}, {"moe_grouped_gemm": True}),
        case({}, {"moe_grouped_gemm": True}),
    ),
    "MLM118": (case({"lacking": (("--x", "--y"),)}), case({})),
    "TTN120": (case({"unknown": ("parallelism.tp",)}), case({})),
    "MSL620": (case({"unknown": ("--tensor-paralel-size",)}), case({})),
    "MSL621": (case({"refused": ("--num-layers: 'x' is not a whole number",)}), case({})),
    "MSL622": (
        case({"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}}, {"tensor_model_parallel_size": 2}),
        case({"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, {"tensor_model_parallel_size": 2}),
    ),
    "MXT120": (case({"unknown": ("ici_tensor_paralellism",)}), case({})),
    "MXT121": (case({"refused": ("steps: 'x' is no int",)}), case({})),
    "NAM120": (case({"unknown": ("distributed.tp",)}), case({})),
    "NAM121": (case({"refused": ("distributed.tp_size: 'x' is no int",)}), case({})),
    "TTN420": (
        case({"generation": "ampere"}, {"parallelism.enable_fsdp_symm_mem": True}),
        case({}, {"parallelism.enable_fsdp_symm_mem": True}),
    ),
    **{
        f"KIND-{name.upper()}": (
            case({}, model=replace(DENSE, layer_runs=(LayerRun("retention", 32),))),
            case({}, model=replace(DENSE, layer_runs=(LayerRun("dense", 32),))),
        )
        for name in framework_names()
    },
    **{
        f"{word}-{name.upper()}": both
        for name in framework_names()
        for word, both in {
            "DEVICE": (
                case({"vendor": "AWS"}),
                case({"vendor": framework_rules(name).vendors[0]}),
            ),
            "TUNE": (case({"tuning": _beside("int8")}), case({})),
            "CUT": (
                case({"tp": 2, "tuning": _beside("nf4")}),
                case({"tuning": _beside("nf4")}),
            ),
            "PREF": (case({"has_reference": True}), case({})),
            "PAIR": (
                case({"mbs": 1, "has_precomputed_reference": True}),
                case({"mbs": 2, "has_precomputed_reference": True}),
            ),
        }.items()
        if f"{word}-{name.upper()}" in RULES
    },
}
"""Rules over the environment, the accelerator, unknown words, kinds of layers or adapters."""


def _example(code: str) -> tuple[Case, Case] | None:
    """Return the case that breaks a rule and the one that keeps it."""
    if code in _OTHERS:
        return _OTHERS[code]
    if code in _SETTINGS:
        breaks, keeps, fields = _SETTINGS[code]
        return case(fields, breaks), case(fields, keeps)
    both = _LAYOUT.get(code) or _SHARED.get(RULES[code].title)
    return (case(both[0]), case(both[1])) if both else None


def examples() -> dict[str, tuple[Case, Case]]:
    """Return both cases of every rule that has them; those of Megatron-Bridge are Megatron's."""
    twins = {code: re.sub("^(MBR|PRM|MSL)", "MLM", code) for code in RULES}
    found = {code: _example(twin if twin in RULES else code) for code, twin in twins.items()}
    return {code: both for code, both in found.items() if both}
