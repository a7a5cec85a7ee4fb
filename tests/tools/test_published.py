"""The table of published settings: its page, how examples are found, and rows made again."""

from pathlib import Path
from typing import Any

import pytest

from tests.repeats import slow
from tools.published.examples import benchmark_entries, named_devices
from tools.published.page import OUTCOMES, differences, layout_words, page
from tools.published.record import CannotRun, checkouts, document, examples
from tools.published.survey import REFUSED, row_of, stable

ROOT = Path(__file__).resolve().parents[2]
COPIES = Path(__file__).parent / "published"
"""One example of each source, in the folders of its repository, with what is read of it."""
ROWS = {(row["source"], row["file"]): row for row in document()["rows"]}
FOUND = {
    "Primus": COPIES / "primus",
    "MindSpeed-LLM": COPIES / "mindspeed",
    "tpu-recipes": COPIES / "tpu",
}


def test_page_is_that_of_the_rows() -> None:
    assert (ROOT / "docs" / "published.md").read_text() == page(document())


@pytest.mark.parametrize(
    ("source", "least"), [("Primus", 30), ("MindSpeed-LLM", 20), ("tpu-recipes", 20)]
)
def test_as_many_examples_as_promised(source: str, least: int) -> None:
    read = [row for row in ROWS.values() if row["source"] == source and "layout" in row]
    assert len([row for row in ROWS.values() if row["source"] == source]) >= least
    assert len(read) >= least


def test_every_row_has_an_outcome_and_a_reason() -> None:
    for row in ROWS.values():
        assert row["outcome"] in OUTCOMES
        if "layout" not in row:
            assert row.get("reason") or row.get("rules"), row["file"]


def test_only_what_a_framework_refuses_itself_is_refused() -> None:
    """MaxText's own parser refuses `output_dir` too (docs/maxtext.md)."""
    for row in ROWS.values():
        if row["outcome"] == REFUSED:
            told = [x for x in row["rules"] if x["kind"] == "refused"]
            assert [x["reason"] for x in told] == ["unknown: output_dir"], row["file"]


@pytest.mark.parametrize(
    "source",
    [pytest.param("Primus", marks=pytest.mark.slow), "MindSpeed-LLM", slow("tpu-recipes")],
)
def test_row_is_made_again(source: str) -> None:
    (example,) = examples({source: FOUND[source]}, COPIES / "maxtext")
    found, kept = stable(row_of(example)), ROWS[source, example.file]
    for key in ("outcome", "n_devices", "layout", "part", "precision", "seq_len", "n_fit", "rank"):
        assert found[key] == kept[key], key
    for key in ("step_s", "peak_gb", "ratio"):
        assert found[key] == pytest.approx(kept[key], rel=1e-3), key
    assert found["best"]["layout"] == kept["best"]["layout"]


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("a: 1 # 32nodes\n", 256),
        ("# tuned for 32N on MI355X\n", 256),
        ("# hyper parameters (optimized for 8-node 64-GPU MI355X)\n", 64),
        ("# parallel (for 8 nodes)\n", 64),
        ("# a single-node run\n", 8),
        ("# what the reference ran (4 GPUs)\n# max batch (8 GPUs)\n", 8),
        ("# nothing of the kind\nnodes: 4\n", None),
    ],
)
def test_devices_that_comments_name(text: str, n: int | None) -> None:
    assert named_devices(text) == n


def test_entries_of_benchmarks_are_read_without_running_them() -> None:
    path = COPIES / "maxtext" / "benchmarks" / "maxtext_trillium_model_configs.py"
    (entry,) = benchmark_entries(path).values()
    assert (entry["model_name"], entry["per_device_batch_size"]) == ("llama3.1-8b", 3)
    assert entry["ici_fsdp_parallelism"] == -1  # no plain constant of the language


def test_recipes_of_trillium_need_maxtext() -> None:
    assert list(examples({"tpu-recipes": FOUND["tpu-recipes"]}, None)) == []


def _layout(**changes: Any) -> dict[str, Any]:
    usual = {"tp": 1, "pp": 2, "dp": 4, "zero": 1, "mbs": 1, "gbs": 64, "ep": 1, "vpp": 1}
    usual |= {"recompute": "none", "recompute_layers": 0, "recompute_modules": []}
    return usual | {"stage_layers": [8, 8]} | changes


def test_words_of_layouts() -> None:
    full = _layout(recompute="full", recompute_layers=8)
    assert layout_words(full) == "pp2 dp4 zero1 mbs1, gbs 64, recompute full"
    told = differences(full, _layout(recompute="full", recompute_layers=3, tp=2))
    assert told == [("tp", "1", "2"), ("recompute", "full", "3 of 8")]


def test_missing_checkouts_are_told(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="set PRIMUS_SRC, MINDSPEED_SRC, TPU_RECIPES_SRC"):
        checkouts({})
    with pytest.raises(CannotRun, match="name a checkout of Primus"):
        checkouts({"PRIMUS_SRC": str(tmp_path / "none")})
