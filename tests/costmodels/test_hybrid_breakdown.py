"""A model of five kinds of layers opened: its terms, its transfers and its ranking agree."""

from dataclasses import replace

import numpy as np
import pytest

from costmodels.breakdown import break_down, join_one
from costmodels.documentation.terms import TIME_TERMS
from costmodels.layers.kinds import kinds_of, layer_run
from costmodels.shape_terms import kind_params, kinds_of_stages
from costmodels.shapes import DeltaNetShape, LayerVariant, Mamba2Shape, WindowShape
from costmodels.step import peak_bytes, stage_times
from tests.costmodels.conftest import TOY_MODEL

RUNS = (
    *("mamba2+none", "none+dense", "attention+none", "none+moe"),
    *("gdn+dense", "window+moe", "mamba2+none", "none+moe"),
)
HYBRID = replace(
    TOY_MODEL,
    layers=24,
    n_experts=16,
    top_k=2,
    expert_ffn=1024,
    shared_ffn=1024,
    window=WindowShape(512),
    mamba2=Mamba2Shape(heads=64, head_dim=64, groups=8, state=128, conv=4, chunk=128),
    delta_net=DeltaNetShape(k_heads=8, v_heads=16, k_dim=128, v_dim=128, conv=4, chunk=64),
    layer_runs=tuple(layer_run(name, 1) for name in RUNS) * 3,
)
LAYOUTS = [
    {"dp": 8, "zero": 1},
    {"dp": 8, "zero": 3, "recompute": "full"},
    {"tp": 4, "sp": True, "dp": 2, "ep": 2},
    {"tp": 2, "dp": 2, "ep": 4, "zero": 1},
    {"cp": 2, "cp_comm": "all-gather", "dp": 4, "ep": 8},
    {"tp": 2, "sp": True, "cp": 2, "cp_comm": "a2a", "dp": 2, "recompute": "full"},
    {"pp": 4, "dp": 4, "zero": 1, "ep": 4},
    {"tp": 2, "pp": 4, "dp": 2, "vpp": 3, "sp": True, "zero": 1},
    {"pp": 2, "vpp": 3, "dp": 2, "recompute": "full", "recompute_layers": 2},
    {"pp": 4, "dp": 2, "recompute_modules": ("layernorm", "mlp", "moe_act")},
]


@pytest.fixture(scope="module", params=range(len(LAYOUTS)), ids=lambda i: str(LAYOUTS[i]))
def opened(request, toy_problem, plain_layout):
    problem = toy_problem(HYBRID, stack="megatron-core", gbs=64, seq_len=8192)
    entry = dict(LAYOUTS[request.param])
    names = ("cp", "cp_comm", "ep", "etp", "recompute_modules")
    more = {name: entry.pop(name) for name in names if name in entry}
    layout = plain_layout(problem, **entry)
    more["n_devices"] = layout.n_devices * more.get("cp", 1)
    if "recompute_modules" in more:
        more["recompute"] = "selective"
    return problem, break_down(problem, replace(layout, **more))


def test_terms_add_up_to_the_step(opened):
    _, found = opened
    assert tuple(found.time_s) == TIME_TERMS
    assert sum(found.time_s.values()) == found.step_s
    assert all(value >= 0.0 for value in found.time_s.values())


@pytest.mark.parametrize("axis", ["tp", "cp", "ep", "pp", "dp"])
def test_exposed_transfers_agree_with_the_time_terms(opened, axis):
    _, found = opened
    waits = sum(t.exposed_s for t in found.transfers if t.axis == axis)
    assert waits == pytest.approx(found.time_s[axis], rel=1e-9)


def test_each_kind_of_layer_counts_where_it_stands(opened):
    """Parameters and time of every rank, summed layer by layer."""
    problem, found = opened
    layout, rows = found.layout, found.rows
    sequence, kinds = HYBRID.layer_sequence, kinds_of(HYBRID)
    tp = np.array([layout.tp], dtype=np.int32)
    starts = np.cumsum((0, *layout.stage_layers))
    params = kind_params(problem, rows.table.shapes, kinds_of_stages(problem, rows.table.shapes))
    per_rank = []
    for rank in range(layout.pp):
        held = [i for j in layout.stages_of(rank) for i in range(starts[j], starts[j + 1])]
        per_rank.append(sum(kinds[sequence[i]].params(HYBRID, tp).item() for i in held))
    inner = sorted(per_rank[1:-1])
    assert {round(x) for x in inner} <= {round(float(x)) for x in params.ravel()}
    times = stage_times(rows)
    index = rows.index.item()
    expected = []
    for rank in range(layout.pp):
        held = [i for j in layout.stages_of(rank) for i in range(starts[j], starts[j + 1])]
        of_layers = [rows.layers.of_kinds[sequence[i]].layer.forward_s[index] for i in held]
        expected.append(sum(of_layers))
    ends = rows.layers.embedding.forward_s[index], rows.layers.head.forward_s[index]
    expected[0] += ends[0]
    expected[-1] += ends[1]
    assert times.forward_s.max() == pytest.approx(max(expected), rel=1e-9)


def test_the_ranking_sees_the_memory_of_the_opened_plan(opened):
    problem, found = opened
    rows = join_one(problem, found.layout)
    assert peak_bytes(rows).item() == pytest.approx(found.peak_bytes, rel=1e-9)


def test_gradients_of_what_tp_replicates_are_those_of_the_sublayers(toy_problem, plain_layout):
    """Where each tensor is summed on its own: a norm a sublayer, a router a feed of experts."""
    problem = toy_problem(HYBRID, stack="torchtitan", gbs=64)
    layout = plain_layout(problem, tp=2, dp=4, sp=True)
    calls = [t for t in break_down(problem, layout).transfers if t.collective == "all-reduce"]
    by_size = {t.message_bytes: t.n_calls for t in calls if t.axis == "tp"}
    # Eight layers three times: five with one sublayer and two with both, and the last with one.
    norms = 3 * (6 * 1 + 2 * 2) + 1
    assert by_size[4.0 * HYBRID.hidden] == norms * layout.n_micro
    assert by_size[4.0 * HYBRID.hidden * 16] == 9 * layout.n_micro


UNLIKE = replace(
    TOY_MODEL,
    layers=6,
    variants=(LayerVariant("many", (("kv_heads", 16), ("ffn", 4096))),),
    layer_runs=(layer_run("dense", 4), layer_run("dense@many", 2)),
)


def test_layers_of_unlike_widths_exchange_their_own_keys(toy_problem, plain_layout):
    problem = toy_problem(UNLIKE, stack="megatron-core", gbs=8, seq_len=8192)
    layout = plain_layout(problem, dp=1)
    layout = replace(layout, cp=2, cp_comm="all-gather", n_devices=2)
    found = break_down(problem, layout)
    sent = [(t.n_calls, t.message_bytes) for t in found.transfers if t.collective == "all-gather"]
    # Keys and values of a sequence, 8 heads of 128 in 4 layers and 16 in 2: two gathers forward
    # and two backward a layer and micro-batch.
    sizes = [8192 * heads * 128 * 2 for heads in (8, 16)]
    gathers = [(n, size) for n, size in sent if size in sizes]
    assert gathers == [(4 * 8 * 4, sizes[0]), (4 * 8 * 2, sizes[1])]
    waits = sum(t.exposed_s for t in found.transfers if t.axis == "cp")
    assert waits == pytest.approx(found.time_s["cp"], rel=1e-9)
