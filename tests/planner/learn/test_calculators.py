"""Numbers of the calculators, computed by hand or asked of the cost model, and what must hold."""

import doctest
import math
import random
import re
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from costmodels.comm.collectives import collective_s
from planner.learn import calculators, closed_forms, drawing, results
from planner.learn.machines import group_of
from planner.learn.parallelism import collectives
from planner.learn.parallelism.data_parallel import sent_bytes
from planner.learn.resources import compression, intensity, overlap, strong_scaling
from planner.learn.results import CalculatorResult, shown
from tests.costmodels.pipelines import exact_s

NAMES = list(calculators())


def answer(name: str, **texts: object) -> CalculatorResult:
    return calculators()[name].answer({key: str(value) for key, value in texts.items()})


def number(name: str, key: str, **texts: object) -> float:
    return answer(name, **texts).number(key).value


def approx(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


# By hand


def test_pipeline() -> None:
    assert number("pipeline", "bubble_frac", stages=4, micro_batches=8) == approx(3 / 11)
    assert number("pipeline", "bubble_overhead", stages=4, micro_batches=8) == approx(3 / 8)
    step = number("pipeline", "step_s", stages=4, micro_batches=8, stage_s="3 s")
    assert step == approx((8 + 3) * 3.0)
    found = answer("pipeline", schedule="interleaved", vpp=2, stages=4, micro_batches=8)
    assert found.number("bubble_frac").value == approx(3 / 19)
    assert found.number("held").value == approx(11 / 2)  # min(16, 2 * 3 + 4 + 1) chunks of half
    assert found.number("transfer").value == approx(2 * 8 * 2 * 64e6)
    assert number("pipeline", "held", schedule="gpipe", micro_batches=64) == 64
    assert number("pipeline", "held", schedule="1f1b", micro_batches=64) == 4
    # m = 8, p = 4: tau (2 * 3 * (1 + 8/4) - 2) = 16 tau, tau = 64 MB / 50 GB/s
    assert number("pipeline", "p2p_s") == approx(16 * 64e6 / 50e9)
    # a third of 10.24 ms is the forward
    assert number("pipeline", "least_bandwidth") == approx(64e6 / (10.24e-3 / 3))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1"])
def test_pipeline_steps_are_simulated(schedule: str) -> None:
    vpp = 2 if schedule == "interleaved" else 1
    found = number(
        "pipeline",
        "step_with_messages_s",
        schedule=schedule,
        vpp=vpp,
        stages=4,
        micro_batches=8,
        stage_s="3 s",
        message_bytes="1 GB",
        link_bytes_per_s=10,
    )
    forward, backward = [1.0 / vpp] * 4 * vpp, [2.0 / vpp] * 4 * vpp
    weights = [1.0] * 4 if schedule == "zb-h1" else ()
    assert found == approx(exact_s(schedule, 4, vpp, 8, forward, backward, 0.1, weights))


@pytest.mark.parametrize(
    ("texts", "messages"),
    [
        # by hand: 2 (p - 1) + 2 (m - 1 - ceil((m - 1)/p)) messages of 64 MB at 50 GB/s
        ({"stages": 6}, 20),
        ({"stages": 4, "micro_batches": 10}, 18),
        ({"stages": 5, "micro_batches": 7}, 16),
        ({"stages": 200, "layers": 200}, 410),
        ({"schedule": "gpipe", "stages": 200, "layers": 200}, 398),
        ({"schedule": "interleaved", "vpp": 4, "stage_s": "40 ms"}, 30),
        ({"schedule": "interleaved", "vpp": 4}, None),
        ({"schedule": "zb-v", "micro_batches": 16}, None),
        ({"schedule": "dualpipe"}, None),
        ({"schedule": "dualpipe-v"}, None),
    ],
)
def test_messages_waited_for_are_what_the_step_takes_longer(texts, messages) -> None:
    found = answer("pipeline", **texts)
    waits = found.number("p2p_s").value
    steps = [found.number(key).value for key in ("step_with_messages_s", "step_s")]
    assert waits == pytest.approx(steps[0] - steps[1], rel=1e-9)
    assert "simulation" in found.number("p2p_s").source
    if messages is not None:
        assert waits == approx(messages * 64e6 / 50e9)
    cells = {row[0]: row[-1] for row in found.tables[0].table.rows}
    name = texts.get("schedule", "1f1b")
    name += ", 4 chunks" if name == "interleaved" else ""
    assert cells.get(name, shown(waits, "seconds")) == shown(waits, "seconds")


def test_messages_of_a_very_long_pipeline_are_named_a_closed_form() -> None:
    texts = {"stages": 66, "vpp": 4, "layers": 264, "micro_batches": 66, "stage_s": "1 s"}
    found = answer("pipeline", schedule="interleaved", **texts)
    assert found.number("p2p_s").value == approx(2 * (66 * 4 - 1) * 64e6 / 50e9)
    for key in ("p2p_s", "step_with_messages_s"):
        assert "closed form" in found.number(key).source
    last = {row[0]: row[-1] for row in found.tables[0].table.rows}
    assert "closed form" in last["interleaved, 4 chunks"]
    assert "closed form" not in last["interleaved, 2 chunks"]


def test_tensor_parallel() -> None:
    tensor = 2 * 2048 * 12288
    assert number("tensor-parallel", "layer") == approx(4 * 2 * 7 / 8 * tensor)
    assert number("tensor-parallel", "layer_sp") == approx(10 * 7 / 8 * tensor)
    assert number("tensor-parallel", "model") == approx(96 * 8 * 7 / 8 * tensor)
    at_peak = number("tensor-parallel", "tax_peak", hidden=8192)
    assert at_peak == approx(7 * 989e12 / (3 * 450e9 * 8192))
    assert number("tensor-parallel", "tax", hidden=8192) == approx(0.6 * at_peak)
    assert number("tensor-parallel", "tax_step", hidden=8192) == approx(0.4 * at_peak)


def test_memory() -> None:
    for zero, gb in enumerate((112, 38.5, 26.25, 14)):
        assert number("memory", f"zero{zero}", params=7, ranks=8) == approx(gb * 1e9)
    walls = answer("memory", memory_bytes=80, reserve=0, params=7)
    assert walls.number("wall1").value == pytest.approx(80e9 / 4, rel=1e-6)
    assert walls.number("wall2").value == pytest.approx(80e9 / 2, rel=1e-6)
    assert walls.number("largest3").value == approx(8 * 80e9 / 16)
    assert number("memory", "least_devices", params=70, memory_bytes=80, reserve=0) == 14
    # two units of 100 million: 2 * 2 bytes of weights and 2 * 2 of gradients
    more = number("memory", "zero3", params=7, ranks=8, unit_params=100) - 14e9
    assert more == approx(100e6 * 8)


def test_activations() -> None:
    base = 2048 * 12288
    assert number("activations", "layer") == approx(base * (34 + 5 * 96 * 2048 / 12288))
    flash = number("activations", "layer", flash="yes")
    assert flash == approx(base * 34 + 4 * 96 * 2048)
    assert number("activations", "layer", recompute="full") == approx(2 * base)
    assert number("activations", "layer", recompute="selective") == approx(34 * base)
    split = number("activations", "layer", recompute="selective", tp=8)
    assert split == approx(base * (10 + 24 / 8))
    assert number("activations", "layer", recompute="selective", tp=8, sp="yes") == approx(
        base * 34 / 8
    )


def test_data_parallel() -> None:
    n, share = 7e9, 63 / 64
    texts = {"params": 7, "ranks": 64, "gradient_bytes": 4, "micro_batches": 8}
    for zero, each in enumerate((8, 6, 8 * 4 + 2, 8 * (4 + 4))):
        assert number("data-parallel", "sent", zero=zero, **texts) == approx(each * n * share)
    window = number("data-parallel", "window_s", params=7, tokens=4096, mfu=40)
    assert window == approx(4 * 7e9 * 4096 / (0.4 * 989e12))
    assert number("data-parallel", "least_tokens", mfu=40) == approx(0.4 * 989e12 / 50e9)


def test_intensity() -> None:
    assert number("intensity", "ccr", batch=4, tokens=1000) == approx(6 * 4000 / 4)
    assert number("intensity", "ridge_scale_up") == approx(989e12 / 450e9)
    tokens = number("intensity", "tokens_scale_out")
    assert tokens == approx(2 * 989e12 / (3 * 50e9))
    assert number("intensity", "ccr", batch=1, tokens=math.ceil(tokens)) >= number(
        "intensity", "ridge_scale_out"
    )


def test_buckets() -> None:
    one = 5e-6 + 2 * 7 / 8 * 500e6 / 16 / 300e9
    assert number("buckets", "bucket_s") == approx(one)
    assert number("buckets", "exposed_s") == approx(one)  # the wire has time to spare
    full = answer("buckets", gradients_bytes="60 GB", buckets=4)
    whole = 4 * 5e-6 + 1.75 * 60e9 / 300e9
    assert full.number("total_s").value == approx(whole)
    assert full.number("exposed_s").value == approx(0.2 / 4 + whole - 0.2)
    assert number("buckets", "ddp") == math.ceil(500e6 / (25 * 2**20))
    assert number("buckets", "megatron") == math.ceil(250e6 / 40e6)
    assert answer("buckets", buckets=1, ranks=19).number("hidden").text == "0 %"


@pytest.mark.parametrize("gradients", ["500 MB", "30 GB", "60 GB"])
def test_the_best_number_of_buckets_exposes_least_of_all(gradients: str) -> None:
    from planner.learn.resources.buckets import BucketsInputs, exposed_s

    found = answer("buckets", gradients_bytes=gradients, latency_s="50 us")
    x = calculators()["buckets"].read({"gradients_bytes": gradients, "latency_s": "50 us"}).values
    assert isinstance(x, BucketsInputs)
    least = min(exposed_s(x, k) for k in range(1, 6000))
    assert exposed_s(x, round(found.number("best").value)) == approx(least)
    enough = round(found.number("enough").value)
    assert exposed_s(x, enough) <= least + 0.01 * x.window_s
    assert enough == 1 or exposed_s(x, enough - 1) > least + 0.01 * x.window_s


def test_ring_attention() -> None:
    texts = {"model": "own", "tokens": 32768, "ranks": 16, "heads": 64, "kv_heads": 8}
    found = answer("ring-attention", **texts)
    assert found.number("least_tokens").value == approx(2000)  # 2 * 400e12 / (8 * 50e9)
    block = 2 * 2 * 2048 * 1024
    assert found.number("block").value == approx(block)
    assert found.number("send_s").value == approx(block / 50e9)
    assert found.number("attend_s").value == approx(2 * 2048**2 * 8192 / 400e12)
    assert found.number("exposed_s").value == pytest.approx(0, abs=1e-12)
    slower = answer("ring-attention", **texts, link_bytes_per_s=25)
    send, attend = block / 25e9, 2 * 2048**2 * 8192 / 400e12
    # forward 15 messages; backward 2 plain and 14 with gradients, beside 2.5 times the attention
    waits = 15 * (send - attend) + 14 * max(0, 2 * send - 2.5 * attend)
    assert slower.number("exposed_s").value == approx(waits)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({}, "no: 8 KV heads do not divide by tp * cp = 64 (CP002)"),
        ({"ranks": 8}, "yes"),
        ({"ranks": 8, "tp": 2}, "no: 8 KV heads do not divide by tp * cp = 16 (CP002)"),
        ({"ranks": 3}, "no: 64 heads do not divide by tp * cp = 3 (CP002)"),
        ({"model": "own"}, "yes"),
    ],
)
def test_ulysses_runs_where_heads_divide(texts, words) -> None:
    found = answer("ring-attention", **texts)
    assert found.tables[0].table.rows[2][-1] == words
    assert words == "yes" or "Ulysses" not in " ".join(found.advice)


def test_sequence_parallel() -> None:
    tensor = 2 * 2048 * 8192
    assert number("sequence-parallel", "pair_s") == approx(2 * tensor / 100e9)
    assert number("sequence-parallel", "layer_s") == approx(10 * 7 / 8 * tensor / 100e9)


def test_volumes() -> None:
    texts = {"model": "own", "params": 100, "tp": 4, "pp": 5, "dp": 8, "gradient_bytes": 4}
    tensor, local = 2 * 2048 * 12288, 100e9 / 20
    assert number("volumes", "tp_layer", **texts) == approx(8 * 3 / 4 * tensor)
    assert number("volumes", "pp_all", **texts) == approx(2 * 4 * tensor)
    assert number("volumes", "dp_step", **texts) == approx(2 * 7 / 8 * 4 * local)
    assert number("volumes", "dp_sharded", **texts) == approx(7 / 8 * 6 * local)


def test_strong_scaling() -> None:
    found = answer("strong-scaling", workers=64)
    assert found.number("compute_s").value == approx(6 * 7e9 * 2048 * 2048 / (312e12 * 64))
    assert found.number("all_reduce_s").value == approx(2 * 63 / 64 * 14e9 / 600e9)
    limit = found.number("break_even").value
    assert limit == approx(1 + 3 * 2048 * 2048 * 600e9 / (2 * 312e12))
    assert number("strong-scaling", "gamma", workers=math.ceil(limit)) >= 1
    assert number("strong-scaling", "gamma", workers=math.floor(limit)) <= 1


def test_bandwidth_is_where_traffic_takes_as_long_as_compute() -> None:
    found = answer("bandwidth", tokens=8192, gradient_bytes=4)
    rate = 0.6 * 989e12
    assert found.number("dp").value == approx(4 * rate / (2 * 8192))
    assert found.number("zero3").value == approx(8 * rate / (6 * 8192))
    assert found.number("cp").value == approx(2 * rate / 8 / 8192)
    tokens = number("overlap", "dp_least_tokens", far_bytes_per_s=found.number("dp").value / 1e9)
    assert tokens == approx(8192)
    tax = number(
        "tensor-parallel",
        "tax",
        hidden=8192,
        link_bytes_per_s=number("bandwidth", "tp", model="own", hidden=8192) / 1e9,
    )
    assert tax == approx(0.1)


def test_overlap() -> None:
    found = answer("overlap", model="own", hidden=8192, layers=80, tokens=8192)
    rate, local = 0.6 * 989e12, 12 * 8192**2 * 20 / 8
    core = 20 * 2 * 8192 * 8192 * 8192 / 8
    forward, backward = (2 * local * 8192 + core) / rate, (4 * local * 8192 + 2.5 * core) / rate
    work = 16 * (forward + backward)
    assert found.number("compute_s").value == approx(work)
    tensor = 16 * 20 * 8 * 7 / 8 * 2 * 8192 * 8192
    assert found.number("comm_tp").value == approx(tensor / 450e9)
    assert found.number("comm_dp").value == approx(15 / 16 * 6 * local / 50e9)
    assert found.number("bubble_s").value == approx(work * 3 / 16)


def test_compression() -> None:
    plain = 2 * 63 / 64 * 14e9
    assert number("compression", "plain") == approx(plain)
    assert number("compression", "sent", method="one-bit") == approx(plain / 16)
    assert number("compression", "sent", method="powersgd", rank=4, width=4096) == approx(
        2 * 63 / 64 * 28e9 * 2 * 4 / 4096
    )
    assert number("compression", "sent", method="top-k", kept=1) == approx(63 * 0.01 * 7e9 * 6)
    assert number("compression", "sent", method="diloco", inner_steps=500) == approx(plain / 500)
    # 3 M of 2-byte elements to 0.75 M, over many nodes
    many = {"ranks": 65536, "gradient_bytes": 2}
    ratio = number("compression", "plain", method="zero++", **many) / number(
        "compression", "sent", method="zero++", **many
    )
    assert ratio == pytest.approx(4, rel=1e-3)
    assert number("compression", "held", method="zero++") == approx(2 * 7e9 / 8)


@pytest.mark.parametrize("method", [name for name, _ in compression.METHODS])
def test_compression_pays_below_and_not_above(method: str) -> None:
    x = calculators()["compression"].read({"method": method, "far_bytes_per_s": "1"}).values
    limit = compression.pays_below(x, method)
    if method in ("plain", "zero3"):
        assert limit == 0
        return
    for share, pays in ((0.9, True), (1.1, False)):
        at = replace(x, far_bytes_per_s=limit * share)
        saved = compression.step_s(at, compression.baseline(method)) - compression.step_s(
            at, method
        )
        assert (saved > 0) is pays


# Collectives


def test_textbook_collectives() -> None:
    a, b, n, p = 1e-6, 1 / 450e9, 64e6, 8
    rows = {
        ("all-reduce", "naive"): 2 * 7 * (a + n * b),
        ("all-reduce", "tree"): 2 * 3 * (a + n * b),
        ("all-reduce", "ring"): 2 * 7 * (a + n / p * b),
        ("all-reduce", "recursive"): 2 * 3 * a + 2 * 7 / 8 * n * b,
        ("all-reduce", "in-switch"): 2 * a + 9 / 8 * n * b,
        ("broadcast", "naive"): 7 * (a + n * b),
        ("broadcast", "tree"): 3 * (a + n * b),
        ("broadcast", "ring"): 7 * a + n * b,
        ("reduce", "in-switch"): a + n * b,
        ("scatter", "naive"): 7 * (a + n / p * b),
        ("gather", "tree"): 3 * a + 7 / 8 * n * b,
        ("all-gather", "ring"): 7 * (a + n / p * b),
        ("all-gather", "naive"): 7 * (a + n / p * b) + 7 * (a + n * b),
        ("reduce-scatter", "recursive"): 3 * a + 7 / 8 * n * b,
        ("all-to-all", "recursive"): 3 * (a + n / 2 * b),
        ("all-to-all", "ring"): 7 * (a + n / 2 * b),
        ("all-to-all", "hierarchical"): 7 * a + 7 / 8 * n * b,
    }
    for (name, way), expected in rows.items():
        x = calculators()["collectives"].read({"collective": name}).values
        one = collectives.algorithm_cost(x, way)
        assert one is not None
        assert one.seconds(x) == approx(expected), (name, way)


def test_hierarchical_all_reduce_uses_every_port() -> None:
    x = calculators()["collectives"].read({"ranks": "32"}).values
    one = collectives.algorithm_cost(x, "hierarchical")
    assert one is not None
    near = 2 * 7 * 1e-6 + 2 * 7 / 8 * 64e6 / 450e9
    far = 2 * 3 * 5e-6 + 2 * 3 / 4 * 64e6 / 8 / 50e9
    assert one.seconds(x) == approx(near + far)


@pytest.mark.parametrize("name", collectives.COLLECTIVES)
def test_expected_time_is_that_of_the_cost_model(name: str) -> None:
    found = number("collectives", "expected_s", collective=name, ranks=16, size_bytes="1 GB")
    group, pool = group_of("h100-sxm-80gb", 16)
    assert found == approx(collective_s(name, 1e9, group, pool).item())
    half = number("collectives", "half_size", collective=name, ranks=16)
    plateau = collectives.LARGE / collective_s(name, collectives.LARGE, group, pool).item()
    assert half / collective_s(name, half, group, pool).item() == pytest.approx(plateau / 2, 1e-4)


@pytest.mark.parametrize("name", collectives.COLLECTIVES)
def test_more_bytes_or_ranks_never_take_less(name: str) -> None:
    for way in collectives.WAYS:
        for key, values in (("size_bytes", (1, 10, 100)), ("ranks", (2, 4, 8, 16, 64))):
            if (way, key) == ("in-switch", "ranks"):
                continue  # (P + 1)/P of the bytes: fewer for more ranks
            found = []
            for value in values:
                texts = {"collective": name, key: str(value)}
                x = calculators()["collectives"].read(texts).values
                one = collectives.algorithm_cost(x, way)
                found += [one.seconds(x)] if one else []
            assert found == sorted(found), (way, key)


# What must hold of all

FASTER = {
    "pipeline": [("link_bytes_per_s", "step_with_messages_s")],
    "overlap": [("near_bytes_per_s", "step_s"), ("far_bytes_per_s", "step_s")],
    "collectives": [("link_bytes_per_s", "textbook_s"), ("far_bytes_per_s", "textbook_s")],
    "data-parallel": [("link_bytes_per_s", "wire_s"), ("link_bytes_per_s", "exposed_s")],
    "buckets": [("link_bytes_per_s", "total_s"), ("link_bytes_per_s", "exposed_s")],
    "tensor-parallel": [("link_bytes_per_s", "layer_s"), ("link_bytes_per_s", "tax")],
    "sequence-parallel": [("link_bytes_per_s", "model_s")],
    "ring-attention": [("link_bytes_per_s", "exposed_s"), ("link_bytes_per_s", "least_tokens")],
    "strong-scaling": [("link_bytes_per_s", "gamma")],
    "compression": [("far_bytes_per_s", "step_after"), ("far_bytes_per_s", "step_before")],
    "intensity": [("link_bytes_per_s", "ridge_scale_up")],
}


@pytest.mark.parametrize("name", list(FASTER))
def test_more_bandwidth_is_never_slower(name: str) -> None:
    one, chance = calculators()[name], random.Random(7)
    for field, key in FASTER[name]:
        for _ in range(3):
            texts = drawn(one, chance, keep=(field,))
            found = [
                one.answer({**texts, field: speed}).number(key).value
                for speed in ("1", "7", "50", "450", "3000")
            ]
            assert all(b <= a * (1 + 1e-9) for a, b in pairwise(found)), texts


def drawn(one: Any, chance: random.Random, keep: tuple[str, ...] = ()) -> dict[str, str]:
    """Texts of some inputs, drawn from their sliders, that go together."""
    while True:
        texts = {}
        for key, spec in one.specs.items():
            if key in keep or chance.random() < 0.6:
                continue
            options = [x for x, _ in spec.choices] or spec.steps()
            texts[key] = chance.choice(options)
        if one.read(texts).values is not None:
            return texts


OVER = {("buckets", "of_backward"), ("pipeline", "bubble_overhead"), ("overlap", "tp_tax")} | {
    ("tensor-parallel", key) for key in ("tax", "tax_peak", "tax_step")
}
"""Written in per cent of something that they may exceed; all others are shares of a whole."""


ENDLESS = {("compression", "ratio"), ("compression", "pays_below")}
"""`no limit`: against nothing sent at all, and where it pays on any network."""


def check_numbers(name: str, texts: dict[str, str], found: CalculatorResult) -> None:
    """No NaN, no infinity, nothing below 0, no -0, no share above 100 %, in no sentence either."""
    for x in found.numbers:
        assert math.isfinite(x.value) or (name, x.key) in ENDLESS, (texts, x)
        assert x.value >= 0.0, (texts, x)
        assert math.copysign(1.0, x.value) > 0.0, (texts, x)
        assert x.kind != "fraction" or x.value <= 1.0 or (name, x.key) in OVER, (texts, x)
        assert x.text != "-", (texts, x)
    cells = [str(cell) for x in found.tables for row in x.table.rows for cell in row]
    for text in (found.headline, *found.advice, *cells):
        assert not re.search(r"\b(nan|inf)\b|(?<![\w.)-])-\d", text), (texts, text)


def ends_and_choices(one: Any) -> list[dict[str, str]]:
    """Every choice and both ends of every range, alone; of those that the others allow."""
    found = []
    for key, spec in one.specs.items():
        values = [x for x, _ in spec.choices] or [spec.steps()[0], spec.steps()[-1]]
        found += [{key: value} for value in values]
    return [texts for texts in found if one.read(texts).values is not None]


def drawn_freely(one: Any, chance: random.Random) -> dict[str, str]:
    """Texts of some inputs from anywhere in their ranges, also between the places of a slider."""
    while True:
        texts = {}
        for key, spec in one.specs.items():
            if chance.random() < 0.5:
                continue
            if spec.choices:
                texts[key] = chance.choice(spec.choices)[0]
                continue
            low, high = spec.lowest / spec.factor, spec.highest / spec.factor
            at = chance.choice(
                (
                    low,
                    high,
                    math.exp(chance.uniform(math.log(max(low, high * 1e-9)), math.log(high))),
                )
            )
            texts[key] = str(min(round(at), int(high))) if spec.kind == "count" else repr(at)
        if one.read(texts).values is not None:
            return texts


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_choice_or_corner_breaks_a_calculator(name: str) -> None:
    one, chance = calculators()[name], random.Random(f"corners of {name}")
    for texts in [*ends_and_choices(one), *(drawn_freely(one, chance) for _ in range(40))]:
        check_numbers(name, texts, one.answer(texts))


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("collectives", {"ranks": "47748", "per_node": "23", "size_bytes": "100 TB"}),
        ("buckets", {"buckets": "1", "ranks": "19"}),
        ("pipeline", {"schedule": "dualpipe", "stages": "2", "micro_batches": "100000"}),
    ],
)
def test_rounding_makes_no_share_of_less_than_nothing_or_more_than_all(name, texts) -> None:
    check_numbers(name, texts, answer(name, **texts))


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_whole(name: str) -> None:
    """Numbers drawn at random: no NaN, no negative, every number with formula and source."""
    one, chance = calculators()[name], random.Random(name)
    for texts in [{}, *(x.values for x in one.presets), *(drawn(one, chance) for _ in range(12))]:
        found = one.answer(texts)
        check_numbers(name, texts, found)
        keys = [x.key for x in found.numbers]
        assert len(set(keys)) == len(keys) >= 5
        assert found.differences
        assert found.left_out
        for x in found.numbers:
            assert x.formula
            assert x.substituted
            assert x.source
        for y in found.differences:
            assert y.claim
            assert y.where
            assert y.why
            assert "-" not in y.texts


@pytest.mark.parametrize("name", NAMES)
def test_figures_show_the_inputs_and_hold_their_data(name: str) -> None:
    one = calculators()[name]
    for chart in one.charts(one.read({}).values):
        assert chart.says
        assert chart.table.rows
        assert len(chart.table.heads) == len(chart.table.rows[0])
        for trace in chart.figure.data:
            assert any(value is not None for value in trace.y)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_figures_of_any_inputs(name: str) -> None:
    one, chance = calculators()[name], random.Random(name)
    for texts in [*(x.values for x in one.presets), *(drawn(one, chance) for _ in range(25))]:
        for chart in one.charts(one.read(texts).values):
            chart.figure.to_plotly_json()


def test_closed_forms_agree_with_the_cost_model() -> None:
    x = calculators()["data-parallel"].read({"zero": "1", "ranks": "8", "params": "8"}).values
    assert sent_bytes(x, 1) == approx(7 / 8 * 4 * 8e9)
    # a ring of two sends a whole tensor once in an all-reduce
    assert closed_forms.all_reduce_bytes(10.0, 2) == 10.0
    found = overlap.links(calculators()["overlap"].read({"tp": "4", "dp": "4"}).values)
    assert found["tp"] == (450e9, True)
    assert found["dp"] == (100e9, False)  # two ranks of a group in a node, two ports
    assert found["pp"] == (50e9, False)


def test_sizes_are_written_for_people() -> None:
    assert shown(1.024e9, "bytes") == "1.024 GB"
    assert shown(97.65625e9 / 8, "bits_per_s") == "97.66 Gb/s"
    assert shown(0.0, "seconds") == "0 s"
    assert shown(math.inf, "bytes_per_s") == "no limit"
    assert shown(999.96e6, "bytes") == "1 GB"


@pytest.mark.parametrize("module", [closed_forms, drawing, intensity, results, strong_scaling])
def test_worked_numbers_of_docstrings(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0
