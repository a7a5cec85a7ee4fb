"""Recipes of Megatron-Bridge read as trees: what is followed, listed, asked for."""

from pathlib import Path

import pytest

from planner.analyze.check.check import check
from planner.errors import SpecError, UsageError
from planner.frameworks.bridge.recipe_settings import HELPERS
from planner.frameworks.bridge.recipe_table import read_recipes
from planner.frameworks.bridge.recipe_tree import UNREAD, RecipeTree
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run

HEAD = "from megatron.bridge.training.config import ConfigContainer\nimport torch\n"
SIZES = """
    cfg.model.num_layers = 32
    cfg.model.hidden_size = 4096
    cfg.model.num_attention_heads = 32
    cfg.model.num_query_groups = 8
    cfg.model.ffn_hidden_size = 14336
    cfg.model.gated_linear_unit = True
    cfg.model.vocab_size = 128256
    cfg.model.share_embeddings_and_output_weights = False
    cfg.model.seq_length = 8192
    cfg.train.global_batch_size = 128
"""


DEF = "def mine() -> ConfigContainer:\n"


def fields(body, before="", files=None, name="r.py"):
    text = f"{HEAD}{before}\n{DEF}    cfg = ConfigContainer()\n{body}\n    return cfg\n"
    tree = RecipeTree(text, name, (files or {}).get, HELPERS)
    return tree.config("mine").flat(), tree


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)


def test_assignments_arithmetic_and_branches_are_followed():
    read, tree = fields(
        """
    n = 4
    cfg.model.tensor_model_parallel_size = n // 2
    cfg.model.recompute_modules = ["mlp"] + ["layernorm"]
    cfg.optimizer.exp_avg_dtype = torch.bfloat16
    cfg.model.a, cfg.model.b = 1, -2
    if n > 3 and cfg.model.a == 1:
        cfg.train.micro_batch_size = 2
    else:
        cfg.train.micro_batch_size = 9
    cfg.train.micro_batch_size *= 2
    cfg.model.cp = {(1, 2): 7}[(1, 2)] if n in (4, 5) else None
    cfg.model.c = getattr(cfg.model, "none", 3)
"""
    )
    assert read == {
        "model.tensor_model_parallel_size": 2,
        "model.recompute_modules": ["mlp", "layernorm"],
        "optimizer.exp_avg_dtype": "bf16",
        "model.a": 1,
        "model.b": -2,
        "train.micro_batch_size": 4,
        "model.cp": 7,
        "model.c": 3,
    }
    assert tree.not_read == []


def test_functions_of_the_file_and_of_the_checkout_are_followed():
    files = {
        "../../../megatron/bridge/x/common.py": "TP = 2\n"
        "def help(cfg, *, pp=1):\n    cfg.model.tp = TP\n    cfg.model.pp = pp\n"
    }
    before = (
        "from megatron.bridge.x.common import help\ndef base(n=1):\n"
        "    c = ConfigContainer(train=TrainingConfig(micro_batch_size=n))\n    return c\n"
    )
    read, tree = fields(
        "    cfg = base(3)\n    help(cfg, pp=8)", before, files, "src/megatron/bridge/y/mine.py"
    )
    assert read == {"train.micro_batch_size": 3, "model.tp": 2, "model.pp": 8}
    assert tree.not_read == []
    _, tree = fields("    cfg = base(3)\n    help(cfg, pp=8)", before)
    assert [one.why for one in tree.not_read] == ["its source is not beside this file"]


def test_helpers_whose_source_is_elsewhere():
    read, _ = fields(
        """
    cfg.mixed_precision = _perf_precision("fp8_mx")
    apply_flex_dispatcher_backend(cfg.model, "hybridep")
    cfg.model.x = 1
"""
    )
    assert read["mixed_precision.fp8_recipe"] == "mxfp8"
    assert read["mixed_precision.grad_reduce_in_fp32"] is False
    read, _ = fields(
        '    cfg.model.x = 1\n    apply_flex_dispatcher_backend(cfg.model, "hybridep")'
    )
    assert read["model.moe_token_dispatcher_type"] == "flex"
    assert read["model.moe_flex_dispatcher_backend"] == "hybridep"


def test_nothing_is_executed_and_nothing_runs_away(tmp_path: Path):
    mark = tmp_path / "mark"
    body = f"""
    open({str(mark)!r}, "w")
    __import__("os").system("touch {mark}")
    cfg.model.big = [0] * 10 ** 9
    cfg.model.wide = "x" * 1000000000
    cfg.model.seq_length = int(open("/etc/hostname").read())
"""
    read, tree = fields(body)
    assert not mark.exists()
    assert read == {}
    assert {one.name for one in tree.not_read} == {
        "cfg.model.big",
        "cfg.model.wide",
        "cfg.model.seq_length",
    }
    _, tree = fields("    cfg.model.x = loop(1)", "def loop(n):\n    return loop(n + 1)\n")
    assert tree.not_read
    with pytest.raises(SpecError, match="statements"):
        fields("    f(1)", "def f(n):\n" + "    f(n)\n    f(n)\n")
    assert repr(UNREAD) == "not read"


def test_a_recipe_is_priced_and_changed(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(
        f"{HEAD}\ndef mine() -> ConfigContainer:\n    cfg = ConfigContainer(){SIZES}"
        '    cfg.mixed_precision = "bf16_mixed"\n'
        "    cfg.model.tensor_model_parallel_size = 2\n    cfg.model.sequence_parallel = True\n"
        "    cfg.ddp.use_distributed_optimizer = True\n"
        "    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)\n"
        "    return cfg\n"
    )
    report = check(path, "h100-x8")
    assert report.plan is not None
    layout = report.plan.layout
    assert (layout.tp, layout.zero, layout.sp, layout.dp_overlap) == (2, 1, True, True)
    texts = [line for change in report.changes for line in change.settings]
    assert texts
    assert all("cfg." in text for text in texts)
    changed = check(path, "h100-x8", overrides=(("cfg.model.tensor_model_parallel_size", 4),))
    assert changed.plan.layout.tp == 4
    with pytest.raises(UsageError, match="no field of a recipe"):
        check(path, "h100-x8", overrides=(("tensor_parallel", 4),))


def test_what_is_not_read_is_listed_and_asked_for(tmp_path: Path):
    path = tmp_path / "mine.py"
    base = "from megatron.bridge.recipes.llama import base_config\n\n"
    text = f"{HEAD}{base}{DEF}    cfg = base_config()\n"
    path.write_text(text + "    return cfg\n")
    with pytest.raises(SpecError, match=r"cfg\.model\.num_layers"):
        check(path, "h100-x8")
    path.write_text(
        text + SIZES + "    cfg.model.pipeline_model_parallel_size = other()\n    return cfg\n"
    )
    report = check(path, "h100-x8")
    assert [doubt.line for doubt in report.run.doubts] == [6, 18]
    assert all("not read" in doubt.why for doubt in report.run.doubts)
    stated = check(path, "h100-x8", overrides=(("cfg.model.pipeline_model_parallel_size", 2),))
    assert [doubt.line for doubt in stated.run.doubts] == [6]
    assert stated.plan is not None, stated.not_priced
    assert stated.plan.layout.pp == 2
    assert stated.plan.precision == "bf16"
    assert any("mixed_precision" in text for text in stated.run.assumed)
    two = HEAD + "def a_config():\n    return 1\ndef b_config():\n    return 2\n"
    path.write_text(two)
    with pytest.raises(SpecError, match="2 recipes in one file"):
        check(path, "h100-x8")
    path.write_text(HEAD + "x = (\n")
    with pytest.raises(SpecError, match="not valid Python"):
        check(path, "h100-x8")


def test_a_published_recipe_goes_by_its_name():
    report = check("llama3_8b_pretrain_8gpu_gb200_bf16_config", "gb200-nvl72-x576")
    assert report.plan is not None
    assert report.plan.layout.n_devices == 8
    assert report.plan.precision == "bf16-grads" or report.plan.precision == "bf16"
    with pytest.raises(SpecError, match="vision tower"):
        check("qwen3_vl_30b_a3b_pretrain_8gpu_b200_bf16_config", "h100-x8")
    with pytest.raises(SpecError):
        check("llama3_8b_pretrain_9gpu_none_config", "h100-x8")


def test_the_name_and_the_table_say_one_layout():
    for recipe in read_recipes()[::9]:
        if recipe.missing:
            continue
        run = read_run(recipe.name, RunQuery(n_devices=recipe.number("n_gpus")))
        pins = recipe.axes.pins
        for axis in ("tp", "pp", "cp", "ep", "vpp", "mbs", "zero"):
            default = {"zero": run.layout["zero"], "vpp": 1}.get(axis, 1)
            assert run.layout.get(axis, 1) == pins.get(axis, default), (recipe.name, axis)
        assert run.n_devices == recipe.number("n_gpus")
