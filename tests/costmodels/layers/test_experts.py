"""Expert layers: products, exchange, memory, groups, and layers of two kinds in one model."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.axes import CUDA_GRAPHS, DISPATCHERS, SwitchTable
from costmodels.breakdown import break_down, virtual_stage_times
from costmodels.comm.collectives import collective_s
from costmodels.comm.data_parallel import n_pieces
from costmodels.comm.dispatch import Degrees
from costmodels.comm.placement import place_group
from costmodels.examples import DEEPSEEK_V3, LLAMA3_8B, MIXTRAL_8X7B, toy_accelerator
from costmodels.layers import experts
from costmodels.layers.flops import model_flops_per_token
from costmodels.layers.gemm import gemm_s
from costmodels.layers.layer_kind import SplitDegrees
from costmodels.layers.layer_terms import layer_terms
from costmodels.layers.params import expert_params
from costmodels.modes import ModeRows
from costmodels.parameters import active_params
from costmodels.plans import PlanTable
from costmodels.schedule.stages import StageSplits, stage_kinds
from costmodels.shape_terms import shape_terms
from costmodels.shapes import ModelShape
from costmodels.stacks import STACKS
from costmodels.step import join, peak_bytes, step_times
from tests.searches.instances import one_in

TOY = ModelShape(
    "toy",
    layers=8,
    hidden=1024,
    heads=8,
    kv_heads=8,
    head_dim=128,
    ffn=4096,
    gated=True,
    vocab=32000,
    tied=False,
)
ROUTED = replace(TOY, n_experts=8, top_k=2, expert_ffn=2048)
MIXED = replace(ROUTED, dense_layers=1, moe_every=2, shared_ffn=512)


def arr(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def ranks(*degrees: int) -> np.ndarray:
    return np.array(degrees, dtype=np.int32)


# One expert ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["fused", "eager"])
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize("zero", [0, 1])
def test_one_expert_is_a_dense_layer(toy_problem, plain_layout, stack, recompute, zero):
    """Router and permutation exist from two experts on; ZeRO 2 and 3 gather in other pieces."""
    dense = toy_problem(TOY, stack=stack)
    one = toy_problem(replace(TOY, n_experts=1, top_k=1, expert_ffn=TOY.ffn), stack=stack)
    layout = plain_layout(dense, pp=2, dp=16, zero=zero, recompute=recompute)
    a, b = break_down(dense, layout), break_down(one, layout)
    # Gradients of experts are pieces of their own, so what waits for the network may differ.
    for term in ("attention", "head", "embedding", "recompute", "host", "optimizer"):
        assert b.time_s[term] == pytest.approx(a.time_s[term], rel=1e-12), term
    compute = ("linear", "elementwise", "experts")
    assert sum(b.time_s[t] for t in compute) == pytest.approx(
        sum(a.time_s[t] for t in compute), rel=1e-12
    )
    assert b.time_s["ep"] == 0.0
    for old, new in zip(a.stages, b.stages, strict=True):
        # Their data-parallel group is one more communicator.
        more = new["overhead"] - old["overhead"]
        assert more == pytest.approx(dense.stack.communicator_bytes)
        assert {**new, "overhead": 0} == pytest.approx({**old, "overhead": 0}, rel=1e-12)


def test_one_expert_on_one_rank_takes_the_same_step(toy_problem, plain_layout):
    dense = toy_problem(TOY)
    one = toy_problem(replace(TOY, n_experts=1, top_k=1, expert_ffn=TOY.ffn))
    layout = plain_layout(dense, pp=4, vpp=2)
    assert break_down(one, layout).step_s == pytest.approx(
        break_down(dense, layout).step_s, rel=1e-12
    )


# Products ------------------------------------------------------------------------------------


def test_a_grouped_product_by_hand():
    part = toy_accelerator()
    # 4 groups of 512 x 1024 x 2048: 2 * 4 * 512 * 2048 * (1024 + 128) flops at 225 TFLOP/s * 0.8.
    work = 2 * 4 * 512 * 2048 * 1152 / (300e12 * 0.75 * 0.8)
    found = experts.grouped_gemm_s(
        experts.GroupedProduct(4, 512, 1024, 2048), part, "bf16", 1.0, 0.8
    )
    assert found.item() == pytest.approx(work + 4e-6, rel=1e-12)
    # 64 groups of 8 rows read all weights: 2 bytes of 64 (8 k + k n + 8 n) over 1.6 TB/s.
    bytes_ = 2 * 64 * (8 * 1024 + 1024 * 2048 + 8 * 2048)
    found = experts.grouped_gemm_s(
        experts.GroupedProduct(64, 8, 1024, 2048), part, "bf16", 1.0, 1.0
    )
    assert found.item() == pytest.approx(bytes_ / 1.6e12 + 4e-6, rel=1e-12)


def test_one_launch_for_all_groups_and_one_group_is_an_ordinary_product():
    part = toy_accelerator()
    many = experts.grouped_gemm_s(
        experts.GroupedProduct(64, 1e-9, 1e-9, 1e-9), part, "bf16", 1.0, 1.0
    )
    assert many.item() == pytest.approx(4e-6, rel=1e-3)
    single = experts.grouped_gemm_s(
        experts.GroupedProduct(1, 300, 1024, 2048), part, "bf16", 0.9, 0.1
    )
    assert single.item() == gemm_s(300, 1024, 2048, part, "bf16", 0.9).item()


# Share of the dense peak (dense: forward .485, dgrad .476, wgrad .476), SimuMax 4dcaae5.
B200 = {
    128: (0.21, 0.23, 0.08),
    256: (0.27, 0.33, 0.15),
    512: (0.37, 0.41, 0.22),
    1024: (0.46, 0.44, 0.29),
    5000: (0.49, 0.45, 0.42),
}
A100 = {616: (0.63, 0.68, 0.52), 1232: (0.71, 0.70, 0.60)}


@pytest.mark.parametrize(
    ("name", "table", "dense"),
    [("b200-180gb", B200, (0.485, 0.476, 0.476)), ("a100-sxm-80gb", A100, (0.738, 0.739, 0.704))],
)
def test_rates_by_rows_per_expert_follow_the_published_tables(catalogue, name, table, dense):
    part = catalogue.accelerator(name)
    errors = []
    for rows, measured in table.items():
        found = experts.rows_fracs(arr(rows), part, 4.0)
        errors += [
            frac.item() * whole / want - 1
            for frac, whole, want in zip(found, dense, measured, strict=True)
        ]
    assert np.abs(errors).mean() < 0.07
    assert np.abs(errors).max() < 0.28


def test_fp16_gradients_halve_the_rows_that_a_weight_gradient_needs(catalogue):
    part = catalogue.accelerator("b200-180gb")
    measured = {128: 0.14, 256: 0.22, 512: 0.29, 1024: 0.35}
    for rows, want in measured.items():
        found = experts.rows_fracs(arr(rows), part, 2.0)[2].item() * 0.476
        assert found == pytest.approx(want, rel=0.13)


@given(rows=st.floats(1, 1e6), more=st.floats(1.01, 10))
def test_more_rows_never_lower_the_rate(rows, more):
    few, many = (experts.rows_fracs(arr(x), toy_accelerator(), 4.0) for x in (rows, rows * more))
    assert all(0 < a.item() <= b.item() <= 1 for a, b in zip(few, many, strict=True))


# Rows and copies -----------------------------------------------------------------------------


def test_rows_of_a_rank(toy_problem):
    # 4096 tokens over 4 sp ranks, 2 copies each; gathered over 2 etp ranks.
    def rows(shape, local, sp, ep, etp, stack="fused"):
        problem = toy_problem(shape, stack=stack)
        return experts.expert_rows(problem, local, ranks(sp), ranks(ep), ranks(etp)).item()

    local = experts.local_tokens(STACKS["fused"], arr(4096), ranks(4), ranks(1), ranks(1))
    assert local.item() == 1024
    assert rows(ROUTED, local, 1, 4, 2) == 1024 * 2 * 2
    busy = replace(ROUTED, imbalance=1.25)
    assert rows(busy, local, 1, 4, 1) == 1024 * 2 * 1.25
    assert rows(busy, local, 1, 1, 1) == 1024 * 2
    capped = replace(ROUTED, capacity_factor=1.5)
    assert rows(capped, local, 1, 1, 1) == 1024 * 2 * 1.5
    # torchtitan gathers tokens; without sequence parallelism the etp ranks hold the same ones.
    assert rows(ROUTED, local, 1, 1, 4, "torchtitan") == 1024 * 2 * 4
    assert rows(ROUTED, arr(4096), 0, 1, 4, "torchtitan") == 4096 * 2
    assert rows(ROUTED, arr(4096), 0, 1, 4, "megatron-core") == 4096 * 2 * 4
    # With ep and without sequence parallelism its tp ranks route a quarter of the tokens each.
    for stack, sp, tokens in (
        ("torchtitan", 0, 1024),
        ("torchtitan", 1, 1024),
        ("fused", 0, 4096),
    ):
        found = experts.local_tokens(STACKS[stack], arr(4096), ranks(4), ranks(sp), ranks(2))
        assert found.item() == tokens


@given(imbalance=st.floats(1.0, 3.0))
def test_imbalance_never_helps(toy_problem, plain_layout, imbalance):
    problem = toy_problem(ROUTED)
    layout = replace(plain_layout(problem, dp=16), ep=8)
    worse = replace(problem, shape=replace(ROUTED, imbalance=imbalance))
    assert break_down(worse, layout).step_s >= break_down(problem, layout).step_s


# Groups and memory ---------------------------------------------------------------------------


def test_experts_are_reduced_over_their_own_group(toy_problem, plain_layout):
    problem = toy_problem(ROUTED, stack="eager")
    layout = replace(plain_layout(problem, tp=2, dp=16, sp=True), ep=8, etp=1)
    table = PlanTable.from_layouts([layout])
    terms = shape_terms(problem, table.shapes, table.shardings)
    routed = terms.experts
    params = 8 * expert_params(ROUTED, 8, 1).item()  # 8 layers, one expert each
    assert routed.params.item() == params
    # 32 ranks / 8: 4 copies, 8 apart.
    group = place_group(4, 8, problem.pool, problem.fabric)
    pieces = n_pieces(problem, arr(params), 4.0, 0).item()
    one = collective_s("all-reduce", 4.0 * params / pieces, group, problem.pool).item()
    assert routed.data_parallel.reduce_s[0].item() == pytest.approx(pieces * one, rel=1e-12)
    assert terms.data_parallel.reduce_s[0].item() != routed.data_parallel.reduce_s[0].item()


@pytest.mark.parametrize("sharding", [{}, {"zero": 1}, {"zero": 1, "shard": 4}, {"zero": 3}])
def test_a_stage_of_dense_layers_sends_nothing_for_experts(toy_problem, plain_layout, sharding):
    problem = toy_problem(replace(ROUTED, dense_layers=2), stack="eager")
    layout = replace(plain_layout(problem, pp=4, dp=8), ep=2, **sharding)
    table = PlanTable.from_layouts([layout])
    routed = shape_terms(problem, table.shapes, table.shardings).experts
    assert routed.params[0, 0] == 0.0 < routed.params[0, -1]
    sent = routed.data_parallel
    for column in (sent.reduce_s, sent.reduce_piece_s, sent.gather_s, sent.gather_piece_s):
        assert column[0, 0, 0] == 0.0
    assert sent.reduce_s[0, 0, -1] > 0.0


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_states_by_hand(toy_problem, plain_layout, zero):
    problem = toy_problem(ROUTED)
    layout = replace(plain_layout(problem, dp=16, zero=zero), ep=4)
    h, f, vocab = 1024, 2048, 32000
    dense = 8 * (4 * h * h + 2 * h + 8 * h) + 2 * vocab * h + h
    routed = 8 * 2 * 3 * h * f  # two experts a rank
    w, g, k = (2, 2 / 16, 2 / 4), (4, 4 / 16, 4 / 4), (12, 12 / 16, 12 / 4)
    sharded = [int(zero >= level) for level in (3, 2, 1)]
    per_dense = sum(x[s] for x, s in zip((w, g, k), sharded, strict=True))
    per_routed = sum(x[2 * s] for x, s in zip((w, g, k), sharded, strict=True))
    held = break_down(problem, layout).stages[0]["states"]
    assert held == pytest.approx(per_dense * dense + per_routed * routed, rel=1e-12)


def test_launches_of_grouped_products_by_hand(toy_problem):
    # 6 products of 8 experts, of 2, of one: each beyond the first 10.4 us, 26 with casts.
    found = experts.products_host_s(toy_problem(ROUTED), ranks(1, 4, 8))
    assert found.tolist() == pytest.approx([6 * 7 * 10.4e-6, 6 * 1 * 10.4e-6, 0.0])
    low = experts.products_host_s(toy_problem(ROUTED, precision="fp8-delayed"), ranks(1, 4, 8))
    assert low.tolist() == pytest.approx([6 * 7 * 26e-6, 6 * 1 * 26e-6, 0.0])
    eager = experts.products_host_s(toy_problem(ROUTED, stack="eager"), ranks(1, 4, 8))
    assert eager.tolist() == [0.0] * 3


def test_launches_of_grouped_products_bind_a_layer_of_many_experts(toy_problem):
    """512 experts on a rank with next to no work: 6 products of each, and the layer's own."""
    shape = replace(ROUTED, n_experts=512, top_k=1, expert_ffn=8)
    problem = toy_problem(shape, seq_len=128)
    one = np.ones(1, dtype=np.int32)
    terms = layer_terms(problem, SplitDegrees.of_tp(one), one, ModeRows.of_sp(0 * one))
    own_s = problem.stack.host_s_per_layer * 0.6 + problem.stack.routing_host_s  # no collectives
    launch_s = own_s + 6 * 511 * 10.4e-6
    assert terms.experts.layer.total_s.item() == pytest.approx(launch_s, rel=1e-12)


def test_a_device_waits_for_a_share_of_the_launches_however_long_it_takes(toy_problem):
    one = np.ones(1, dtype=np.int32)

    def host_s(shape: ModelShape, **facts: object) -> float:
        problem = toy_problem(shape, seq_len=2**20)
        problem = replace(problem, stack=replace(problem.stack, **facts))
        terms = layer_terms(problem, SplitDegrees.of_tp(one), one, ModeRows.of_sp(0 * one))
        return float(terms.experts.host.total_s.item())

    # 0.6 of 4 ms, 5.2 ms of routing, 6 products of 8 experts.
    launch_s = 0.6 * 4e-3 + 5.2e-3 + 6 * 7 * 10.4e-6
    assert host_s(ROUTED) == pytest.approx(0.25 * launch_s, rel=1e-12)
    assert host_s(ROUTED, synced_host_share=0.0) == 0.0
    assert host_s(ROUTED, routes_on_host=False) == 0.0  # a compiled program
    assert host_s(replace(ROUTED, capacity_factor=1.0)) == 0.0  # the rows of experts are known


def test_rows_are_put_in_order_once_where_the_dispatcher_sends_them_once(toy_problem):
    problem, one = toy_problem(ROUTED), np.ones(1, dtype=np.int32)
    h, k = ROUTED.hidden, ROUTED.top_k
    for name, ep, rows in (("alltoall", 4, 4 * 2 * k), ("alltoall", 8, 4 * k), ("deepep", 4, 2)):
        codes = {"dispatcher": (DISPATCHERS.index(name),)}
        modes = ModeRows(0 * one, 0 * one, SwitchTable.of_product(codes))
        degrees = Degrees(one, 0 * one, ep * one, one)
        moved = experts.permuted_bytes(problem, arr(100.0), degrees, modes).item()
        if name == "deepep":  # two experts of eight on four ranks: 4 (1 - 6/8 5/7) ranks a token
            rows *= 4 * (1 - 6 / 8 * 5 / 7) + k
        assert moved == pytest.approx(2 * h * 100 * rows, rel=1e-12)


def test_biased_experts_run_a_chain_of_operators_outside_whole_graphs(toy_problem):
    shape, one = replace(ROUTED, bias=True), np.ones(1, dtype=np.int32)
    f, h = ROUTED.expert_ffn, ROUTED.hidden

    def moved(shape: ModelShape, graph: str, stack: str = "fused") -> list[float]:
        problem = toy_problem(shape, stack=stack)
        codes = {"cuda_graph": (CUDA_GRAPHS.index(graph),)}
        modes = ModeRows(0 * one, 0 * one, SwitchTable.of_product(codes))
        return [x.item() for x in experts.activation_bytes(problem, one, modes)]

    factor = STACKS["fused"].elementwise_factor
    fused = [6 * f * factor, 10 * f * factor]
    assert moved(ROUTED, "none") == pytest.approx(fused)
    assert moved(shape, "none") == pytest.approx([54 * f + 12 * h, 108 * f + 24 * h])
    assert moved(shape, "full_iteration") == pytest.approx(fused)
    eager = STACKS["eager"].elementwise_factor / factor
    assert moved(shape, "none", "eager") == pytest.approx([x * eager for x in fused])


def test_what_waits_for_nothing_is_part_of_the_compute(toy_problem):
    degrees, modes = Degrees(ranks(1), ranks(0), ranks(4), ranks(1)), ModeRows.of_sp(ranks(0))
    problem = toy_problem(ROUTED)
    times = experts.expert_times(problem, arr(4096), degrees, modes)
    part = problem.pool.accelerator
    # Two experts of 4096 rows each; the gradients of 1024 x 4096 and 2048 x 1024 weights.
    rate = experts.rows_fracs(arr(4096), part, 4.0)[2] * 0.95
    wanted = sum(
        experts.grouped_gemm_s(experts.GroupedProduct(2, k, 4096, n), part, "bf16", 1.0, rate)
        for k, n in ((1024, 4096), (2048, 1024))
    )
    assert times.weight_grad_s.item() == pytest.approx(wanted.item(), rel=1e-12)
    # Scores of 8 experts: 21 bytes a token each at 1.6 TB/s, five launches; and the product.
    scores = 21 * 8 * 4096 / 1.6e12 + 5 * 4e-6
    product = gemm_s(4096, 1024, 8, part, "bf16").item()
    assert times.routing.forward_s.item() == pytest.approx(scores + product, rel=1e-12)


def test_kept_activations_by_hand(toy_problem):
    problem = toy_problem(ROUTED)
    one = experts.expert_kept_bytes(problem, arr(4096), ranks(2), ranks(1), ranks(4), ranks(2))
    rows = 2048 * 2 * 2
    assert one.item() == rows * (6 * 2048 / 2 + 2 * 1024) + 8 * 8 * 2048


def test_more_expert_parallelism_holds_fewer_parameters(toy_problem, plain_layout):
    problem = toy_problem(ROUTED)
    layouts = [replace(plain_layout(problem, dp=16, zero=0), ep=e) for e in (1, 2, 4, 8)]
    states = [break_down(problem, x).stages[0]["states"] for x in layouts]
    assert states == sorted(states, reverse=True)
    assert states[0] > 2 * states[-1]


# Layers of two kinds -------------------------------------------------------------------------


def test_kinds_of_rank_know_their_expert_layers():
    pattern = MIXED.expert_layers
    assert pattern == (False, False, True, False, True, False, True, False)
    kinds = stage_kinds(8, StageSplits(ranks(4), ranks(1), ranks(0)), MIXED.layer_sequence)
    assert kinds.of_other_kinds is not None
    assert kinds.prefix is not None
    assert (kinds.of_other_kinds * kinds.n_ranks).sum() == 3
    prefix = {tuple(row) for row in kinds.prefix[0, 0]}
    assert prefix == {(0, 0, 0), (0, 1, 1)}
    dense = stage_kinds(8, StageSplits(ranks(4), ranks(1), ranks(0)))
    assert dense.prefix is None


@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (4, 1), (2, 2), (2, 4)])
@pytest.mark.parametrize(
    "shape", one_in(3, [MIXED, ROUTED, replace(MIXED, dense_layers=3, moe_every=1)])
)
def test_the_table_and_one_plan_alone_agree(toy_problem, plain_layout, shape, pp, vpp, recompute):
    problem = toy_problem(shape)
    layout = plain_layout(
        problem,
        pp=pp,
        dp=64 // pp,
        vpp=vpp,
        zero=1,
        recompute=recompute,
        recompute_layers=1 if recompute == "full" else 0,
    )
    layout = replace(layout, ep=8)
    found = break_down(problem, layout)
    table = PlanTable.from_layouts([layout])
    rows = join(problem, shape_terms(problem, table.shapes, table.shardings), table)
    assert peak_bytes(rows).item() == pytest.approx(found.peak_bytes, rel=1e-12)
    if pp == 1:
        assert step_times(rows).item() == pytest.approx(found.step_s, rel=1e-12)
    # Every layer by hand: what its kind takes, and again for the first of each recomputed chunk.
    terms, forward, backward = rows.layers, 0.0, 0.0
    start = 0
    for held in layout.stage_layers:
        for i, routed in enumerate(shape.expert_layers[start : start + held]):
            one = terms.experts if routed else terms
            forward += one.layer.forward_s[0]
            backward += one.layer.backward_s[0]
            backward += one.recompute_full_s[0] if i < layout.recompute_layers else 0.0
            backward += terms.modules.forward_s[0, 0] if recompute == "selective" else 0.0
        start += held
    ends = (terms.embedding, terms.head)
    ahead, after = virtual_stage_times(rows, layout)
    assert sum(ahead) == pytest.approx(forward + sum(e.forward_s[0] for e in ends), rel=1e-9)
    assert sum(after) == pytest.approx(backward + sum(e.backward_s[0] for e in ends), rel=1e-9)
    assert sum(found.time_s.values()) == pytest.approx(found.step_s)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_waits_of_the_transfers_are_those_of_the_terms(toy_problem, plain_layout, zero):
    problem = toy_problem(replace(MIXED, mtp_layers=1))
    layout = replace(plain_layout(problem, pp=1 if zero > 1 else 2, dp=16, zero=zero), ep=4, etp=2)
    found = break_down(problem, layout)
    waits: dict[str, float] = {}
    for one in found.transfers:
        waits[one.axis] = waits.get(one.axis, 0.0) + one.exposed_s
    for axis in ("dp", "pp"):
        assert waits.get(axis, 0.0) == pytest.approx(found.time_s[axis], rel=1e-9, abs=1e-12)
    assert {"all-to-all", "all-gather", "reduce-scatter"} <= {
        one.collective for one in found.transfers if one.axis == "ep"
    }


# Latent attention, multi-token prediction, FLOPs ----------------------------------------------


def test_flops_count_active_experts():
    attention = 6 * 32 * 4096 * 4096
    active = active_params(MIXTRAL_8X7B, 4096) - 32000 * 4096 - 65 * 4096 - 32 * 8 * 4096
    assert model_flops_per_token(MIXTRAL_8X7B, 4096) == 6 * active + attention
    one = replace(LLAMA3_8B, n_experts=1, expert_ffn=LLAMA3_8B.ffn)
    assert model_flops_per_token(one, 8192) == model_flops_per_token(LLAMA3_8B, 8192)


def test_flops_of_latent_attention_and_of_multi_token_prediction():
    plain = replace(DEEPSEEK_V3, mtp_layers=0)
    core = 6 * 61 * 128 * (192 + 128) / 2 * 4096
    active = active_params(plain, 4096) - 129280 * 7168 - 7168 * 123 - 58 * 256 * 7168
    assert model_flops_per_token(plain, 4096) == pytest.approx(6 * active + core, rel=1e-12)
    more = model_flops_per_token(DEEPSEEK_V3, 4096) - model_flops_per_token(plain, 4096)
    layer = (active - 129280 * 7168 - 3 * 3 * 7168 * 18432) / 61
    assert more == pytest.approx(6 * (layer + 2 * 7168**2 + 129280 * 7168) + core / 61, rel=0.04)


def test_a_module_of_multi_token_prediction_burdens_the_last_stage(toy_problem, plain_layout):
    plain, more = toy_problem(ROUTED), toy_problem(replace(ROUTED, mtp_layers=1))
    layout = replace(plain_layout(plain, pp=4, dp=16, zero=1), ep=8)
    a, b = break_down(plain, layout), break_down(more, layout)
    assert a.stages[1] == b.stages[1]
    for term in ("states", "activations"):
        assert b.stages[-1][term] > a.stages[-1][term]
    assert b.stages[-1]["logits"] == 2 * a.stages[-1]["logits"]
    ahead = [virtual_stage_times(x.rows, layout)[0] for x in (a, b)]
    assert ahead[0][:-1] == ahead[1][:-1]
    layer = b.rows.layers.experts.layer.forward_s.item()
    assert ahead[1][-1] > ahead[0][-1] + layer


def test_values_narrower_than_keys_cost_less(toy_problem, plain_layout):
    latent = replace(
        TOY, kv_rank=512, q_rank=768, qk_nope=128, qk_rope=64, v_head=128, head_dim=192
    )
    wide = toy_problem(replace(latent, v_head=192))
    narrow = toy_problem(latent)
    layout = plain_layout(narrow, dp=8)
    a, b = break_down(narrow, layout), break_down(wide, layout)
    for term in ("attention", "linear"):
        assert a.time_s[term] < b.time_s[term]
    assert a.peak_bytes < b.peak_bytes
    # Forward: 192 + 128 against 2 * 192.
    forward = [x.rows.layers.attention.forward_s.item() - 4e-6 for x in (a, b)]
    assert forward[0] / forward[1] == pytest.approx(320 / 384, rel=1e-9)
