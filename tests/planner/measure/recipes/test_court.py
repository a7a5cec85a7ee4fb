"""Recipes beside the search: what a recipe is, where it stands, what is not priced."""

import csv
import json

import pytest

from costmodels.axes import AXES
from planner.cli.commands.validate import run_validate_recipes
from planner.errors import SpecError, UsageError
from planner.frameworks.bridge.recipe_axes import recipe_axes
from planner.frameworks.bridge.recipe_table import RECIPE_DATA, read_recipes
from planner.measure.recipes.court import RecipeSearches, compare_recipe
from planner.measure.recipes.report import RecipesReport, recipe_totals
from planner.solver.calibration.file import load_calibration

DENSE = "llama3_8b_pretrain_8gpu_gb200_fp8cs_config"
EXPERTS = "qwen3_30b_a3b_pretrain_8gpu_gb300_fp8mx_config"


@pytest.fixture(scope="module")
def table():
    return {recipe.name: recipe for recipe in read_recipes()}


def changed(one, **cells):
    return {**one.row, **{name: str(value) for name, value in cells.items()}}


def test_every_pretraining_recipe_is_priced_or_says_what_is_missing(table):
    assert len(table) == 239
    priced = [recipe for recipe in table.values() if not recipe.missing]
    assert len(priced) >= 128
    for recipe in priced:
        assert recipe.row["task"] == "pretrain"
        assert recipe.row["sane"] == "1"


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("llama3_70b_sft_32gpu_gb200_fp8cs_config", "fine-tuning"),
        ("qwen3_vl_30b_a3b_pretrain_8gpu_b200_bf16_config", "vision tower"),
        ("qwen3_235b_a22b_pretrain_64gpu_gb300_bf16_config", "contradicts itself"),
    ],
)
def test_what_is_missing_is_named(table, part, reason):
    assert any(reason in text for text in table[part].missing)


def test_printed_time_is_batch_over_throughput(table):
    # 128 x 8192 tokens at 31508 tokens/s on each of 8 devices.
    recipe = table[DENSE]
    assert recipe.row["meas_same_layout"] == "1"
    seconds, where = recipe.measured
    rate = float(recipe.row["meas_tok_s_gpu"])
    assert seconds == pytest.approx(128 * 8192 / (rate * 8))
    assert where.startswith("release")
    other = table["llama3_8b_pretrain_8gpu_gb300_fp8cs_config"]
    assert other.row["meas_same_layout"] == "0"
    assert other.measured is None


def test_racks_give_64_of_72_devices(table):
    recipe = table["deepseek_v3_pretrain_256gpu_gb200_bf16_config"]
    (pool,) = recipe.cluster_document()["pools"]
    assert (pool["nodes"], pool["segment"]) == (4 * 18, 64)
    (pool,) = table[DENSE].cluster_document()["pools"]
    assert (pool["nodes"], pool.get("segment")) == (2, None)


def test_layout_strings_and_ends_become_splits(table):
    row = table["deepseek_v3_pretrain_256gpu_b200_bf16_config"].row
    assert recipe_axes(row, 61).pins["split"] == "-".join(["4"] * 15 + ["1"])
    row = changed(table[DENSE], pp=8, embed_in_split=1, loss_in_split=1)
    assert recipe_axes(row, 126).pins["split"] == "ends"


def test_an_axis_counts_once_it_exists(table, monkeypatch):
    row = table[EXPERTS].row
    assert row["dispatcher"] == "hybridep"
    if "dispatcher" in AXES:
        assert recipe_axes(row, 48).pins["dispatcher"] == "hybridep"
    else:
        assert "dispatcher hybridep" in recipe_axes(row, 48).not_priced
    monkeypatch.setattr("planner.frameworks.bridge.recipe_axes.AXES", {})
    axes = recipe_axes(row, 48)
    assert axes.pins == {}
    assert "ep 8" in axes.not_priced


def test_numbers_of_a_recipe_are_fields_of_its_job(table):
    row = changed(
        table["gpt_oss_20b_pretrain_8gpu_gb200_nvfp4_config"],
        fp4_param_gather=1,
        fp8_dot_product_attention=1,
        main_grads="bfp16",
    )
    axes = recipe_axes(row, 24)
    assert axes.training == {
        "precision": "nvfp4",
        "grad_dtype": "bf16",
        "fp8_param_gather": True,
        "fp8_attention": True,
        "bf16_layers": [0, 4],
    }
    assert axes.not_priced == ("nccl_ub on",)
    # What a switch has in its price counts where the switch is off.
    row = changed(table[EXPERTS], ep_overlap=0, delay_wgrad=1)
    assert "delay_wgrad on" in recipe_axes(row, 48).not_priced
    row = changed(table[EXPERTS], ep_overlap=1, delay_wgrad=1)
    assert "delay_wgrad on" not in recipe_axes(row, 48).not_priced


def test_a_dense_recipe_stands_first(table):
    searches = RecipeSearches(load_calibration())
    one = compare_recipe(table[DENSE], searches)
    assert one.fits is True
    assert one.rank == 1
    assert one.agrees
    assert one.ratio == pytest.approx(1.0, abs=1e-3)
    assert one.plan.step_time_p10_s <= one.plan.step_time_s <= one.plan.step_time_p90_s
    assert one.is_inside == (
        one.plan.step_time_p10_s <= one.recipe.measured[0] <= one.plan.step_time_p90_s
    )
    assert len({x.degrees for x in one.first}) == len(one.first) == 3
    n = searches.n_searches
    assert compare_recipe(table[DENSE], searches).regret == one.regret
    assert searches.n_searches == n
    report = RecipesReport(
        load_calibration(),
        (one, compare_recipe(table["wan_14b_pretrain_32gpu_h100_bf16_config"], searches)),
    )
    totals = recipe_totals(report)
    assert (totals["n_recipes"], totals["n_priced"], totals["agree"]["n"]) == (2, 1, 1)
    assert totals["measured"]["n"] == 1


@pytest.mark.slow
def test_the_command_reads_a_table_of_ones_own(table, tmp_path, capsys):
    rows = [table[DENSE].row, changed(table[DENSE], recipe="mine", precision="int4")]
    path = tmp_path / "mine.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert run_validate_recipes(str(path), "", "json", "") == 0
    text = capsys.readouterr().out
    answer = json.loads(text)
    first, second = answer["recipes"]
    assert first["layout"]["tp"] == 1
    assert first["fits"]
    assert second["predicted_s"] is None
    assert second["missing"] == ["precision int4"]
    assert run_validate_recipes(str(path), "", "json", "") == 0
    assert capsys.readouterr().out == text
    for form in ("table", "md"):
        assert run_validate_recipes(str(path), "", form, "") == 0
        assert "mine" in capsys.readouterr().out or form == "md"


def test_bad_tables_are_one_error(table, tmp_path):
    models = str(RECIPE_DATA / "models.yaml")
    path = tmp_path / "mine.csv"
    path.write_text("recipe,model\nx,y\n")
    with pytest.raises(SpecError, match="no column"):
        read_recipes(path, models)
    row = changed(table[DENSE], tp="two")
    path.write_text(",".join(row) + "\n" + ",".join(f'"{x}"' for x in row.values()) + "\n")
    with pytest.raises(SpecError, match="tp is 'two'"):
        read_recipes(path, models)
    path.write_bytes(b"recipe,model\nx,\xe9\n")
    with pytest.raises(SpecError, match=r"mine\.csv:2: is not UTF-8 text\n  fix: save it"):
        read_recipes(path, models)
    path.write_text('recipe,model\n"x\n')
    with pytest.raises(SpecError, match="no column"):
        read_recipes(path, models)
    with pytest.raises(SpecError, match="no such file"):
        read_recipes(tmp_path / "none.csv", models)
    with pytest.raises(UsageError, match="format"):
        run_validate_recipes("", "", "xml", "")


def test_modules_on_the_host_are_read(table):
    one = table["deepseek_v3_pretrain_64gpu_gb300_bf16_fsdp_config"]
    axes = recipe_axes(one.row, 61)
    assert axes.pins["offload_modules"] == "core_attn+attn_proj"
    assert not any("offload" in text for text in axes.not_priced)
    row = changed(
        one, offload_modules="fused_group_mlp+core_attn", activation_offload_fraction=0.5
    )
    axes = recipe_axes(row, 61)
    assert axes.pins["offload_modules"] == "core_attn+expert_fc1+moe_act"
    assert "activation_offload_fraction 0.5" in axes.not_priced
