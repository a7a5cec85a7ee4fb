"""Kinds of layers in model files: a registered twin of the dense layer, and what is refused."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.layers.dense import DENSE
from costmodels.layers.kinds import LAYER_KINDS, register_layer_kind
from costmodels.shapes import WindowShape
from planner.errors import SpecError
from planner.solver.problem import make_problem
from planner.solver.request import SolveRequest
from planner.specs.loader import load_cluster, load_model, model_from_dict
from planner.specs.summary import spec_summary
from searches.rules import Context
from searches.search import search


@pytest.fixture
def twin() -> Iterator[None]:
    """A kind of layer that equals the dense one but in its name."""
    register_layer_kind(replace(DENSE, name="twin", title="twin of the dense layer"))
    yield
    del LAYER_KINDS["twin"]


def document(model: str, **changes: object) -> dict:
    """The document of an example with some fields of its model exchanged, None: left out."""
    whole = load_model(model).document
    fields = {k: v for k, v in {**whole["model"], **changes}.items() if v is not None}
    job = {k: v for k, v in whole["training"].items() if v is not None}
    return {"model": fields, "training": job}


def finalists(model, cluster: str = "h100-x512"):
    options = SolveRequest.of(top=3, framework="any").options()
    problem = make_problem(model, load_cluster(cluster), options)
    context = Context(problem, options.search_options(), problem.pool.n_devices)
    return search(context).finalists


def test_a_registered_kind_is_searched_and_priced_as_the_dense_layer_that_it_is(twin):
    runs = [{"kind": "twin", "count": 32}]
    model = model_from_dict(document("llama3-8b", layer_kinds=runs, layers=None))
    assert model.shape.kinds == ("twin",)
    assert model.document["model"]["layer_kinds"] == runs  # in JSON answers too
    dense, found = finalists(load_model("llama3-8b")), finalists(model)
    assert len(found) > 3
    assert [(x.layout, x.peak_bytes) for x in found] == [(x.layout, x.peak_bytes) for x in dense]


def test_a_registered_kind_stands_in_the_docs(twin):
    path = Path(__file__).parents[3] / "docs" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "| `twin` | twin of the dense layer |" in module.layer_kinds_table()


def test_kinds_that_moe_could_say_are_the_same_document():
    plain = load_model("deepseek-v3")
    n = plain.shape.layers
    moe = {**plain.document["model"]["moe"], "dense_layers": 0}
    runs = [{"kind": "dense", "count": 3}, {"kind": "moe", "count": n - 3}]
    stated = model_from_dict(document("deepseek-v3", moe=moe, layer_kinds=runs))
    assert stated.shape == plain.shape
    assert stated.document == plain.document


def test_a_pattern_is_its_runs_and_halves_of_attention_have_one_name():
    window = {"size": 1024}
    pattern = [{"pattern": ["window+dense", "attention+dense"], "repeat": 16}]
    short = model_from_dict(document("llama3-8b", layer_kinds=pattern, window=window, layers=None))
    runs = [{"kind": x, "count": 1} for x in ("window+dense", "dense")] * 16
    long = model_from_dict(document("llama3-8b", layer_kinds=runs, window=window))
    assert short.shape == long.shape
    assert short.shape.layers == 32
    assert short.shape.window == WindowShape(1024)
    assert short.document == long.document
    assert short.document["model"]["layer_kinds"] == runs
    again = model_from_dict(
        {"model": short.document["model"], "training": document("llama3-8b")["training"]}
    )
    assert again.shape == short.shape


def test_windows_are_searched_faster_than_full_attention():
    pattern = [{"pattern": ["window+dense", "attention+dense"], "repeat": 16}]
    changes = {"layer_kinds": pattern, "window": {"size": 1024}, "layers": None}
    model = model_from_dict(document("llama3-8b", **changes))
    plain, windows = finalists(load_model("llama3-8b")), finalists(model)
    assert min(x.step_s for x in windows) < min(x.step_s for x in plain)


SECTIONS = {
    "chunk+dense": {"chunk": {"size": 1024}},
    "mamba2+none": {"mamba2": {"heads": 64, "head_dim": 128, "state": 128}},
    "gdn+dense": {"delta_net": {"k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 128}},
    "kda+dense": {"delta_net": {"k_heads": 32, "v_heads": 32, "k_dim": 128, "v_dim": 128}},
    "linear+dense": {"linear": {"heads": 32, "head_dim": 128}},
    "factored+dense": {"factored": {"q_rank": 1024}},
    "sparse+dense": {"indexer": {"heads": 64, "head_dim": 128, "top_k": 2048}},
    "hca+dense": {"compressed": {"q_rank": 1024, "window": 128, "groups": 8, "out_rank": 512}},
}


@pytest.mark.parametrize("kind", SECTIONS)
def test_sizes_of_mixers_are_read_written_and_needed(kind):
    runs = [{"kind": kind, "count": 31}, {"kind": "dense", "count": 1}]
    model = model_from_dict(document("llama3-8b", layer_kinds=runs, **SECTIONS[kind]))
    ((section, sizes),) = SECTIONS[kind].items()
    assert sizes.items() <= model.document["model"][section].items()
    again = {"model": model.document["model"], "training": document("llama3-8b")["training"]}
    assert model_from_dict(again).shape == model.shape
    assert f"  kinds: 31 {kind}, 1 dense\n" in spec_summary(model)
    with pytest.raises(SpecError) as caught:
        model_from_dict(document("llama3-8b", layer_kinds=runs))
    assert "layer_kinds.0.kind" in str(caught.value)
    assert f"`{section}`" in str(caught.value)


WINDOW = {"kind": "window+dense", "count": 32}
COMPRESSED = {"q_rank": 1024, "window": 128, "groups": 8, "out_rank": 512}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"layer_kinds": [WINDOW]}, "layer_kinds.0.kind"),
        ({"layer_kinds": [{"pattern": ["window+dense"], "repeat": 32}]}, "layer_kinds.0.pattern"),
        ({"window": {"size": 1024}}, "model.window"),
        (
            {
                "layer_kinds": [{"kind": "mamba2+none", "count": 32}],
                "mamba2": {"heads": 12, "head_dim": 64, "groups": 8, "state": 64},
            },
            "mamba2.groups",
        ),
        (
            {
                "layer_kinds": [{"kind": "gdn+none", "count": 32}],
                "delta_net": {"k_heads": 16, "v_heads": 24, "k_dim": 128, "v_dim": 128},
            },
            "delta_net.v_heads",
        ),
        ({"layer_kinds": [WINDOW], "window": {"size": 0}}, "window.size"),
        (
            {"layer_kinds": [{"kind": "csa+dense", "count": 32}], "compressed": COMPRESSED},
            "compressed.index_heads",
        ),
        (
            {
                "layer_kinds": [{"kind": "hca+dense", "count": 32}],
                "compressed": {**COMPRESSED, "groups": 5, "rope_dim": 256},
            },
            "compressed.groups",
        ),
        ({"residual_streams": {"count": 1}}, "residual_streams.count"),
        ({"details": {"router_scores": "sqrtsoftplus"}}, "details.router_scores"),
        ({"layer_kinds": [WINDOW], "window": {}}, "window.size"),
        ({"layer_kinds": [{"pattern": ["dense"], "repeat": 0}]}, "layer_kinds.0.repeat"),
        ({"layer_kinds": [{"pattern": [], "repeat": 32}]}, "layer_kinds.0.pattern"),
        ({"layer_kinds": [{"pattern": ["dense"], "count": 32}]}, "layer_kinds.0.count"),
        ({"layer_kinds": [{"pattern": ["mamba"], "repeat": 32}]}, "layer_kinds.0.pattern.0"),
        ({"layer_kinds": [{"kind": "dense", "count": 31}]}, "layer_kinds"),
        ({"layer_kinds": [{"kind": "moe", "count": 32}]}, "kind"),
        ({"layer_kinds": [{"kind": "mamba", "count": 32}]}, "kind"),
        ({"layer_kinds": [{"kind": "dense"}]}, "count"),
    ],
)
def test_kinds_that_contradict_the_rest_are_named(changes, path):
    with pytest.raises(SpecError) as caught:
        model_from_dict(document("llama3-8b", **changes))
    assert path in str(caught.value)


def unlike(**changes):
    """An example whose last layers are wider than the others."""
    runs = [{"kind": "dense", "count": 30}, {"kind": "dense@wide", "count": 2}]
    variants = {"wide": {"ffn": 28672, "heads": 64}}
    fields = {"layer_kinds": runs, "variants": variants, "layers": None, **changes}
    return document("llama3-8b", **fields)


def test_layers_of_unlike_widths_are_read_written_and_searched():
    model = model_from_dict(unlike())
    assert model.document["model"]["variants"] == {"wide": {"heads": 64, "ffn": 28672}}
    assert model_from_dict(model.document).shape == model.shape
    assert "30 dense, 2 dense@wide" in spec_summary(model)
    found, plain = finalists(model), finalists(load_model("llama3-8b"))
    assert {32 % x.layout.tp for x in found} == {0}
    assert min(x.step_s for x in found) > min(x.step_s for x in plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variants": None}, "dense@wide: there is no variant wide"),
        ({"variants": {"wide": {"heads": 60}}}, "60 heads cannot be shared out over 8 kv_heads"),
        ({"variants": {"wide": {}}}, "it says no size of its own"),
        ({"variants": {"wide": {"ffn": 8}, "odd": {"ffn": 9}}}, "no layer is of this variant"),
        ({"variants": {"wide": {"fnn": 8}}}, "fnn"),
        ({"layer_kinds": [{"kind": "dense", "count": 32}]}, "no layer is of this variant"),
        ({"layer_kinds": [{"kind": "dense@a b", "count": 32}]}, "is not a name"),
        (
            {
                "layer_kinds": [{"kind": "differential+dense", "count": 32}],
                "variants": None,
                "value_dim": 64,
            },
            "value_dim is not priced in layers of differential",
        ),
        (
            {
                "layer_kinds": [
                    {"kind": "dense", "count": 1},
                    {"kind": "cross+dense@wide", "count": 31},
                ],
                "cross": {"tokens": 256, "width": 1024},
                "variants": {"wide": {"kv_shared": True}},
            },
            "kv_shared is not priced in layers of cross",
        ),
        (
            {
                "layer_kinds": [{"kind": "dense@wide", "count": 32}],
                "variants": {"wide": {"reused": True}},
            },
            "the first layer has no earlier one",
        ),
    ],
)
def test_what_contradicts_itself_in_variants(changes, message):
    with pytest.raises(SpecError, match=message):
        model_from_dict(unlike(**changes))


def test_a_registered_kind_that_is_no_pair_has_no_variants(twin):
    runs = [{"kind": "twin@wide", "count": 32}]
    with pytest.raises(SpecError, match="layers of kind twin have no variants"):
        model_from_dict(unlike(layer_kinds=runs))


def test_embeddings_of_each_layer_need_their_section_and_layers_with_them():
    table, runs = {"width": 256, "vocab": 1000}, [{"kind": "attention+injected", "count": 32}]
    fields = {"layer_kinds": runs, "per_layer": table, "layers": None}
    model = model_from_dict(document("llama3-8b", **fields))
    assert model.document["model"]["per_layer"] == table
    assert model_from_dict(model.document).shape == model.shape
    with pytest.raises(SpecError, match="`injected` layers need a `per_layer` section"):
        model_from_dict(document("llama3-8b", **fields | {"per_layer": None}))
    with pytest.raises(SpecError, match="not every layer has such an embedding"):
        model_from_dict(document("llama3-8b", per_layer=table))
