"""Inputs of calculators from text: units, ranges, followed fields, a message for every fault."""

import math

import pytest

from planner.learn import calculators
from planner.learn.fields import read_fields
from planner.learn.parallelism.tensor_parallel import TensorParallelInputs as TensorParallel
from planner.learn.resources.overlap import OverlapInputs as Overlap
from planner.learn.resources.pipeline import PipelineInputs as Pipeline

HOSTILE = (
    "-1",
    "0",
    "-0",
    "1e400",
    "1e308",
    "nan",
    "inf",
    "-inf",
    "abc",
    "1,5",
    "<script>alert(1)",
    "1" * 500,
    "\u202e12",
    "64 Mb",
    "12 bananas",
    "0x10",
    "--",
    "%",
    "1 2",
    ".",
    "e5",
    "None",
    "1/0",
    "'; drop",
    "\x00",
    "1e-400",
)


def value(kind: type, **texts: str) -> object:
    found = read_fields(kind, texts)
    assert not found.problems
    return found.values


def test_a_bare_number_has_the_unit_of_its_field_and_others_are_converted() -> None:
    assert value(Pipeline, message_bytes="64").message_bytes == 64e6
    assert value(Pipeline, message_bytes="64 MiB").message_bytes == 64 * 2**20
    assert value(Pipeline, link_bytes_per_s="400 Gb/s").link_bytes_per_s == 50e9
    assert value(Pipeline, stage_s="10.24").stage_s == pytest.approx(10.24e-3)
    assert value(Pipeline, stage_s="2 s").stage_s == 2.0
    assert value(TensorParallel, gemm_share="60 %").gemm_share == pytest.approx(0.6)
    assert value(TensorParallel, gemm_share="60").gemm_share == pytest.approx(0.6)
    assert value(Pipeline, micro_batches="4k").micro_batches == 4000
    assert value(Pipeline, micro_batches="1,024").micro_batches == 1024


def test_an_empty_field_follows_the_device_or_the_model() -> None:
    a100 = value(TensorParallel, device="a100-sxm-80gb")
    assert (a100.peak_flops_per_s, a100.link_bytes_per_s) == (312e12, 300e9)
    own = value(TensorParallel, device="a100-sxm-80gb", peak_flops_per_s="200")
    assert own.peak_flops_per_s == 200e12
    small = value(Overlap, model="llama3-8b", tp="1")
    assert (small.layers, small.hidden, small.tokens) == (32, 4096, 8192)
    # h (h_q + 2 h_kv) + h_q h + 3 h f and two norms, as in the model's 8.03 billion; the last norm
    layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    assert small.layer_weights == pytest.approx(layer + 4096 / 32)
    own_width = value(Overlap, model="own", hidden="1024", layers="8", pp="2")
    assert own_width.layer_weights == 12 * 1024**2


@pytest.mark.parametrize(
    ("texts", "name", "words"),
    [
        ({"stages": "0"}, "stages", "from 1 to 256"),
        ({"stages": "-3"}, "stages", "out of range"),
        ({"stages": "1e99"}, "stages", "out of range"),
        ({"stages": "nan"}, "stages", "finite"),
        ({"stages": "2.5"}, "stages", "2 or 3"),
        ({"stages": "four"}, "stages", "not a number"),
        ({"message_bytes": "64 Mb"}, "message_bytes", "write 64 MB"),
        ({"link_bytes_per_s": "50 GB"}, "link_bytes_per_s", "50 GB/s"),
        ({"schedule": "1f1"}, "schedule", "1f1b"),
        ({"stage": "4"}, "stage", "stages"),
        ({"stages": "100"}, "stages", "layers"),
        ({"schedule": "interleaved", "vpp": "2", "micro_batches": "6"}, "micro_batches", "4 or 8"),
        ({"vpp": "2"}, "vpp", "interleaved"),
        ({"stages": "8", "schedule": "dualpipe"}, "micro_batches", "needs 2 pp micro-batches"),
        ({"stages": "8", "schedule": "dualpipe-v"}, "micro_batches", "needs 2 pp micro-batches"),
        ({"schedule": "dualpipe", "stages": "5", "micro_batches": "10"}, "stages", "4 or 6"),
        ({"schedule": "dualpipe", "micro_batches": "9"}, "micro_batches", "8 or 10"),
    ],
)
def test_a_fault_is_told_at_its_field(texts: dict[str, str], name: str, words: str) -> None:
    found = read_fields(Pipeline, texts)
    assert found.values is None
    assert words in found.problems[name]
    assert len(found.problems) == 1


def test_a_faulty_field_is_not_blamed_on_those_that_follow_it() -> None:
    assert set(read_fields(TensorParallel, {"device": "h1000"}).problems) == {"device"}


@pytest.mark.parametrize("name", list(calculators()))
def test_no_text_in_any_field_breaks_a_calculator(name: str) -> None:
    one = calculators()[name]
    for key in one.specs:
        for text in HOSTILE:
            found = one.read({key: text})
            if found.values is not None:
                one.compute(found.values)
            for message in found.problems.values():
                assert 0 < len(message) < 400
                assert message.isprintable()


@pytest.mark.parametrize("name", list(calculators()))
def test_sliders_hold_their_range_and_their_default(name: str) -> None:
    one = calculators()[name]
    for key, spec in one.specs.items():
        if spec.kind == "choice":
            continue
        steps = [float(step) for step in spec.steps()]
        assert steps == sorted(steps)
        assert 2 <= len(steps) <= 120, key
        assert math.isclose(steps[0] * spec.factor, spec.lowest, rel_tol=1e-6, abs_tol=1e-30)
        assert math.isclose(steps[-1] * spec.factor, spec.highest, rel_tol=1e-6)
        for end in (spec.steps()[0], spec.steps()[-1]):  # both are in range
            problem = one.read({key: end}).problems.get(key, "")
            assert "out of range" not in problem
