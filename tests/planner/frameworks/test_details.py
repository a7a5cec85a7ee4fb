"""What makes a model and changes no figure: from a configuration to emitted files and back."""

import ast
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.analyze.check.check import check
from planner.analyze.plan_files import header_lines
from planner.errors import SpecError
from planner.frameworks.emit import emit_plan
from planner.frameworks.emit_request import EmitRequest
from planner.frameworks.megatron.core_details import core_details
from planner.frameworks.megatron.details import stated_details
from planner.frameworks.megatron.flags import flag_table, parse_flags
from planner.frameworks.megatron.model import read_megatron_model
from planner.solver.solve import evaluate
from planner.solver.sources import read_inputs
from planner.specs.importers.imported import Imported
from planner.specs.inputs import ModelInput
from planner.specs.loader import load_model, model_from_dict
from planner.specs.schema import DetailsSpec
from searches.frameworks.registry import framework_names, framework_rules
from tests.searches.instances import one_in

CONFIGS = Path(__file__).parents[1] / "specs" / "importers" / "data"
RUNS: dict[str, dict[str, Any]] = {
    "qwen3-8b": {"tp": 2},
    "qwen2-7b": {"tp": 2},
    "llama3-8b": {"tp": 4},
    "deepseek-v2-lite": {"ep": 8},
    "gpt-oss-20b": {"ep": 8},
    "gemma-2b": {"zero": 1},
    "gpt-j-6b": {"tp": 2},
    "gpt-neo-2.7b": {"tp": 2},
    "olmoe-1b-7b": {"ep": 8},
    "phi3-mini-4k": {"zero": 1},
    "qwen3-30b-a3b": {"ep": 8, "recompute": "full"},
}
"""Layouts of Megatron-LM on eight H100 by configuration."""
OTHERS = {"deepseek-v2-lite": {"ep": 8, "zero": 3}}
"""The same of the other frameworks; ZeRO-3 alone where none stands here."""

OF_GPUS = [x for x in framework_names() if "NVIDIA" in framework_rules(x).vendors]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)
    monkeypatch.setattr("planner.analyze.check.check.best_changes", lambda *_: ())


def of(name: str) -> DetailsSpec:
    return load_model(CONFIGS / f"{name}.json").details


def model(**details: Any) -> ModelInput:
    """Return Llama 3 8B with these details."""
    document = load_model("llama3-8b").document
    return model_from_dict({**document, "model": {**document["model"], "details": details}})


EXPECTED: dict[str, dict[str, Any]] = {
    "qwen3-8b": {"rotary_base": 1e6, "norm_epsilon": 1e-6, "qk_norm": "head", "init_std": 0.02},
    "qwen2-7b": {"rotary_base": 1e6, "norm_epsilon": 1e-6, "qkv_bias": True, "init_std": 0.02},
    "llama2-70b": {"rotary_base": 1e4, "norm_epsilon": 1e-5, "init_std": 0.02},
    "llama3.1-405b": {
        "rotary_base": 5e5,
        "rope_scaling": "llama3",
        "rope_scaling_factor": 8.0,
        "rope_original_positions": 8192,
        "rope_low_frequency": 1.0,
        "rope_high_frequency": 4.0,
        "norm_epsilon": 1e-5,
        "init_std": 0.02,
    },
    "mixtral-8x7b": {
        "rotary_base": 1e6,
        "norm_epsilon": 1e-5,
        "init_std": 0.02,
        "router_scores": "softmax",
        "router_norm_topk": True,
    },
    "deepseek-v3": {
        "rotary_base": 1e4,
        "rope_scaling": "yarn",
        "rope_scaling_factor": 40.0,
        "rope_original_positions": 4096,
        "rope_beta_fast": 32.0,
        "rope_beta_slow": 1.0,
        "rope_mscale": 1.0,
        "rope_mscale_all_dim": 1.0,
        "norm_epsilon": 1e-6,
        "qk_norm": "head",
        "init_std": 0.02,
        "router_scores": "sigmoid",
        "router_norm_topk": True,
        "router_scale": 2.5,
        "router_bias": True,
        "aux_loss": 0.0,
    },
    "deepseek-v2-lite": {
        "router_scores": "softmax",
        "router_norm_topk": False,
        "aux_loss": 0.001,
        "aux_loss_scope": "sequence",
        "rope_mscale": 0.707,
    },
    "gpt-oss-20b": {
        "rotary_base": 150000.0,
        "rope_scaling": "yarn",
        "rope_scaling_factor": 32.0,
        "rope_original_positions": 4096,
        "rope_beta_fast": 32.0,
        "rope_beta_slow": 1.0,
        "rope_truncate": False,
        "norm_epsilon": 1e-5,
        "activation": "clamped_swiglu",
        "window": 128,
        "full_attention_every": 2,
        "attention_sinks": True,
        "init_std": 0.02,
        "router_scores": "softmax",
        "router_norm_topk": True,
        "aux_loss": 0.001,
    },
    "gemma-2b": {"norm_epsilon": 1e-6, "activation": "gelu"},
    "gemma-7b": {"norm_epsilon": 1e-6},
    "gemma2-27b": {"activation": "gelu_tanh", "window": 4096, "full_attention_every": 2},
    "gemma3-27b": {"qk_norm": "head", "window": 1024, "full_attention_every": 6},
    "olmo2-7b": {"qk_norm": "width"},
    "llama4-scout": {"qk_norm": "l2", "no_rope_every": 4, "router_scores": "sigmoid"},
    "qwen2-57b-a14b": {"shared_expert_gate": True, "qkv_bias": True, "router_norm_topk": False},
    "gpt-j-6b": {"rotary_percent": 0.25, "qkv_bias": False, "attention_out_bias": False},
    "gpt-neox-20b": {"rotary_percent": 0.25},
    "glm-4.5": {"rotary_percent": 0.5, "qkv_bias": True, "router_scale": 2.5, "router_bias": True},
    "starcoder2-15b": {"norm_epsilon": 1e-5},
    "smollm3-3b": {"no_rope_every": 4, "rotary_base": 5e6},
    "mistral-7b": {"window": 4096, "rotary_base": 1e4},
}
WHOLE = ("qwen3-8b", "qwen2-7b", "llama2-70b", "llama3.1-405b", "deepseek-v3", "gpt-oss-20b")


class TestHuggingFace:
    @pytest.mark.parametrize("name", EXPECTED)
    def test_what_a_published_configuration_says(self, name: str) -> None:
        found = of(name).stated()
        assert {key: found.get(key) for key in EXPECTED[name]} == EXPECTED[name]
        if name in WHOLE:
            assert found == EXPECTED[name]

    def test_learned_positions_have_no_base(self) -> None:
        assert not [key for key in of("gpt2-xl").stated() if key.startswith(("rotary", "rope"))]

    def test_the_newer_section_of_rotary_positions(self) -> None:
        data = json.loads((CONFIGS / "qwen3-8b.json").read_text())
        del data["rope_theta"]
        rope = {"rope_theta": 5e6, "rope_type": "yarn", "factor": 4.0}
        found = model_from_dict({**data, "rope_parameters": rope}).details
        assert (found.rotary_base, found.rope_scaling, found.rope_scaling_factor) == (
            5e6,
            "yarn",
            4.0,
        )

    def test_a_base_that_is_no_number(self, tmp_path: Path) -> None:
        data = json.loads((CONFIGS / "qwen3-8b.json").read_text()) | {"rope_theta": "big"}
        (tmp_path / "config.json").write_text(json.dumps(data, indent=1))
        with pytest.raises(SpecError, match=r"config.json:\d+.*rope_theta: expected a number"):
            load_model(tmp_path / "config.json")


class TestModelFile:
    def test_a_plan_is_the_same_with_and_without(self) -> None:
        plain, given = load_model("llama3-8b").document, model(rotary_base=5e5).document
        ids = [
            evaluate(document, "h100-x8", pins={"tp": 2}).best.plan_id
            for document in (plain, given)
        ]
        assert ids[0] == ids[1]
        assert "details" not in plain["model"]
        assert given["model"]["details"] == {"rotary_base": 5e5}
        assert model_from_dict(given).details == DetailsSpec(rotary_base=5e5)

    def test_a_result_carries_them(self) -> None:
        result = evaluate(CONFIGS / "qwen3-8b.json", "h100-x8", pins={"tp": 2})
        assert result.to_json()["inputs"]["model"]["model"]["details"]["qk_norm"] == "head"

    @pytest.mark.parametrize(
        ("details", "message"),
        [
            ({"rope_scaling": "llama3"}, "stands without `rope_scaling_factor`"),
            ({"rope_scaling_factor": 8}, "stands without `rope_scaling`"),
            ({"router_scores": "sigmoid"}, "stands in a model without experts"),
            ({"full_attention_every": 2}, "stands without `window`"),
            ({"qk_norm": "both"}, "allowed: head, width, l2"),
            ({"rotary_percent": 25}, "0 to 1"),
            ({"norm_epsilon": "small"}, "expected a number"),
            ({"rotary_bse": 1}, "unknown key"),
        ],
    )
    def test_faults(self, details: dict[str, Any], message: str) -> None:
        with pytest.raises(SpecError, match=re.escape(message)):
            model(**details)

    def test_an_exponent_without_a_point_is_a_number(self) -> None:
        given = load_model("llama3-8b", [("model.details.norm_epsilon", "1e-6")])
        assert given.details.norm_epsilon == 1e-6


def written(name: str, framework: str, folder: Path) -> tuple[str, ModelInput]:
    """Write the files of a configuration's plan; return its id and the model."""
    source = CONFIGS / f"{name}.json"
    pins = RUNS.get(name, {"tp": 8}) if framework == "megatron" else OTHERS.get(name, {"zero": 3})
    result = evaluate(source, "h100-x8", pins=pins, framework=framework)
    given, cluster = read_inputs(source, "h100-x8", ())
    plan = result.best
    header = header_lines((given, cluster), plan, plan.breakdown, "")
    files = emit_plan(
        framework,
        EmitRequest(
            plan.layout, given.shape, given.job, cluster.cluster.pools[0], header, given.details
        ),
    )
    for file, text in files.items():
        (folder / file).write_text(text)
    return plan.plan_id, given


@pytest.mark.parametrize("name", one_in(3, RUNS))
def test_megatron_gives_the_same_plan_and_the_same_details(name: str, tmp_path: Path) -> None:
    plan_id, given = written(name, "megatron", tmp_path)
    report = check(tmp_path / "megatron.sh", "h100-x8")
    assert report.plan is not None, report.not_priced
    assert report.plan.plan_id == plan_id
    assert not report.run.unknown
    assert report.model is not None
    assert report.model.details == given.details
    assert report.model.document["model"] == given.document["model"]


def test_a_flag_that_is_edited_wins_over_what_the_header_repeats(tmp_path: Path) -> None:
    written("qwen3-8b", "megatron", tmp_path)
    file = tmp_path / "megatron.sh"
    text = file.read_text().replace(" --rotary-base 1000000", " --rotary-base 10000")
    file.write_text(text.replace(" --qk-layernorm", ""))
    report = check(file, "h100-x8")
    assert report.model is not None
    assert report.model.details.rotary_base == 1e4
    assert report.model.details.qk_norm is None


def test_a_script_without_details_gives_none(tmp_path: Path) -> None:
    result = evaluate("mixtral-8x7b", "h100-x512", pins={"ep": 8})
    given, cluster = read_inputs("mixtral-8x7b", "h100-x512", ())
    files = emit_plan(
        "megatron",
        EmitRequest(result.best.layout, given.shape, given.job, cluster.cluster.pools[0]),
    )
    (tmp_path / "m.sh").write_text(files["megatron.sh"])
    report = check(tmp_path / "m.sh", "h100-x512")
    assert report.model is not None
    assert report.model.details == DetailsSpec()


@pytest.mark.parametrize("name", one_in(6, ["qwen3-8b", "deepseek-v2-lite", "llama3-8b"]))
def test_torchtitan_recipes_give_them_back(name: str, tmp_path: Path) -> None:
    _, given = written(name, "torchtitan", tmp_path)
    text = (tmp_path / "torchtitan_recipe.py").read_text()
    ast.parse(text)
    report = check(tmp_path / "torchtitan_recipe.py", "h100-x8")
    assert report.model is not None
    assert report.model.details == given.details
    (tmp_path / "torchtitan_recipe.py").write_text(
        re.sub("ROTARY_BASE = .*", "ROTARY_BASE = 7.0", text)
    )
    edited = check(tmp_path / "torchtitan_recipe.py", "h100-x8")
    assert edited.model is not None
    assert edited.model.details.rotary_base == 7.0


class TestFlags:
    @pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.json")))
    def test_each_exists_and_takes_its_value(self, name: str) -> None:
        given = load_model(CONFIGS / f"{name}.json")
        found = core_details(given.details, LAYOUT, given.shape, given.job)
        by_dest = flag_table()[2]
        own = {"original_max_position_embeddings", "beta_fast", "beta_slow", "softmax_scale"}
        kinds = {"int": int, "float": (int, float), "str": (str, tuple), "pattern": (int, list)}
        for dest, value in {**found.model, **found.experts}.items():
            if dest in own:
                continue
            flag = by_dest[dest]
            assert (
                isinstance(value, bool) if flag.is_switch else isinstance(value, kinds[flag.kind])
            )  # type: ignore[arg-type]
            assert not flag.choices or value in flag.choices

    def test_words(self, tmp_path: Path) -> None:
        written("gpt-oss-20b", "megatron", tmp_path)
        text = " ".join((tmp_path / "megatron.sh").read_text().replace("\\\n", " ").split())
        for words in (
            "--rotary-base 150000",
            "--norm-epsilon 1e-05",
            "--position-embedding-type yarn",
            "--rotary-scaling-factor 32",
            "--no-yarn-correction-range-round-to-int",
            "--window-size 127,0 --window-attn-skip-freq 2",
            "--softmax-type learnable",
            "--quick-geglu --glu-linear-offset 1 --activation-func-clamp-value 7",
            "--moe-aux-loss-coeff 0.001",
            "--attention-backend auto",
        ):
            assert words in text
        assert "--swiglu" not in text
        assert text.count("--position-embedding-type") == 1

    def test_what_no_flag_says_is_named(self) -> None:
        given = load_model(CONFIGS / "kimi-k2.json")
        found = core_details(given.details, LAYOUT, given.shape, given.job)
        assert found.model["beta_fast"] == 1.0  # a field of the configuration, but no flag
        gemma = load_model(CONFIGS / "gemma-2b.json")
        assert core_details(gemma.details, LAYOUT, gemma.shape, gemma.job).yours == (
            "activation gelu: Megatron-LM has no option for a gated MLP with it",
            "embedding_scale 45.254834: megatron-core has none",  # the root of 2048
        )

    def test_multi_token_prediction_has_no_yarn_but_in_latent_attention(self) -> None:
        given = model(rope_scaling="yarn", rope_scaling_factor=32.0, no_rope_every=4)
        plain = core_details(given.details, LAYOUT, given.shape, given.job)
        assert plain.model["position_embedding_type"] == "yarn"
        shape = replace(given.shape, mtp_layers=1)
        found = core_details(given.details, LAYOUT, shape, given.job)
        assert found.model == {"no_rope_freq": 4}
        assert [line.split(":")[0] for line in found.yours] == ["rope_scaling yarn"]
        latent = load_model(CONFIGS / "deepseek-v3.json")
        assert latent.shape.mtp_layers
        said = core_details(latent.details, LAYOUT, latent.shape, latent.job)
        assert said.model["rope_type"] == "yarn"

    def test_a_ring_of_ranks_has_no_window(self) -> None:
        given = load_model(CONFIGS / "gpt-oss-20b.json")
        ring = replace(LAYOUT, cp=2, cp_comm="p2p")
        found = core_details(given.details, ring, given.shape, given.job)
        assert "window_size" not in found.model
        assert any(line.startswith("window 128") for line in found.yours)

    @pytest.mark.parametrize("framework", OF_GPUS)
    def test_every_framework_names_or_says_them(self, framework: str, tmp_path: Path) -> None:
        """Rotary base and epsilon stand in some file of every framework."""
        written("llama3-8b", framework, tmp_path)
        text = "".join(path.read_text() for path in tmp_path.iterdir())
        assert re.search(r"rotary[_-]base", text, re.I)
        assert "500000" in text


class TestMegatronArguments:
    def test_they_are_read_with_their_flags(self) -> None:
        found = imported(
            "--rotary-base 500000 --position-embedding-type rope --qk-layernorm --use-rope-scaling"
            " --disable-bias-linear --add-qkv-bias --norm-epsilon 1e-6"
        )
        assert found.document["model"]["details"] == {
            "rotary_base": 5e5,
            "norm_epsilon": 1e-6,
            "rope_scaling": "llama3",
            "rope_scaling_factor": 8.0,
            "qk_norm": "head",
            "qkv_bias": True,
        }
        origins = {origin.path: origin.text for origin in found.origins}
        assert origins["model", "details", "qk_norm"] == "--qk-layernorm"
        assert model_from_dict(found.document).details.qk_norm == "head"

    @pytest.mark.parametrize(
        "flags",
        [
            "--rotary-base 500000",
            "--rotary-percent 3 --position-embedding-type rope",
            "--window-size 128,128",
            "--window-size -1,0",
            "--moe-aux-loss-coeff 0.1",
            "--window-size 9,0 --window-attn-skip-freq '([0]*2)'",
            "--norm-epsilon $EPS",
        ],
    )
    def test_what_a_model_file_cannot_hold_is_left_out(self, flags: str) -> None:
        """A base beside learned positions, shares above one, other windows, routers of none."""
        assert "details" not in imported(flags).document["model"]

    def test_several_losses_are_left_out(self) -> None:
        words = ["--num-experts", "8", "--moe-aux-loss-coeff", "0.1", "0.2"]
        assert stated_details(parse_flags(words).settings) == []


def imported(flags: str) -> Imported:
    small = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32"
    return read_megatron_model(f"{small} --micro-batch-size 1 {flags}", "x.sh")


LAYOUT = evaluate("llama3-8b", "h100-x8", pins={"tp": 2}).best.layout


class TestAnotherModel:
    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("olmo2-7b", "post_norms instead"),
            ("phi-2", "parallel_block true"),
            ("gemma2-27b", "attention_soft_cap 50.0"),
        ],
    )
    def test_the_script_asks(self, name: str, line: str, tmp_path: Path) -> None:
        written(name, "megatron", tmp_path)
        script = tmp_path / "megatron.sh"
        assert f"#   {line}: " in script.read_text().split("NOT THE SAME MODEL")[1]
        asked = subprocess.run(["bash", str(script)], capture_output=True, text=True)
        assert asked.returncode
        assert "--accept-differences trains it all the same" in asked.stderr
        told = script.read_text().replace("command torchrun", "echo")
        script.write_text(told)
        words = ["--accept-differences", "--train-iters", "20"]
        ran = subprocess.run(["bash", str(script), *words], capture_output=True, text=True)
        assert ran.returncode == 0
        assert ran.stdout.strip().endswith("--train-iters 20")
        assert "--accept-differences" not in ran.stdout

    def test_a_usual_model_is_not_asked_for(self, tmp_path: Path) -> None:
        written("llama3-8b", "megatron", tmp_path)
        assert "accept-differences" not in (tmp_path / "megatron.sh").read_text()
