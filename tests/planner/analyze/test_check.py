"""`check` as a library: what a report says of runs whose answer is known."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.analyze.check.check import check
from planner.analyze.check.report import Report
from planner.errors import PlannerError, SpecError, UsageError
from planner.render.document import text_of
from planner.solver.solve import evaluate, solve
from tests.searches.instances import one_in

FLAGS = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
    " --group-query-attention --num-query-groups 8 --seq-length 8192"
    " --max-position-embeddings 8192 --swiglu --normalization RMSNorm --disable-bias-linear"
    " --position-embedding-type rope --untie-embeddings-and-output-weights --bf16"
    " --attention-dropout 0 --hidden-dropout 0 --mock-data --tokenizer-type NullTokenizer"
    " --vocab-size 128256 --cross-entropy-loss-fusion --use-distributed-optimizer"
    " --overlap-grad-reduce --overlap-param-gather --sequence-parallel"
)
OWN = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
Check = Callable[..., Report]


@pytest.fixture
def standing() -> None:
    """Ask for the search for the best plan, as `check` does."""


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave that search out where a test does not look at what it finds."""
    if "standing" not in request.fixturenames:
        monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)


@pytest.fixture
def checked(tmp_path: Path) -> Check:
    """Check Llama 3 8B with further flags on a number of nodes."""

    def run(flags: str, nodes: int = 2, *, launch: str = "", **options: Any) -> Report:
        text = f"{launch} {FLAGS} {flags}".strip()
        file = tmp_path / "launch.sh"
        file.write_text(text)
        cluster = {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": nodes}], "fabric": {}}
        return check(file, cluster, env=OWN, **options)

    return run


GOOD = "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 128"


def test_a_run_that_is_accepted_and_fits(checked: Check) -> None:
    report = checked(GOOD)
    assert (report.accepted, report.fits, report.exit_code) == (True, True, 0)
    assert (report.refusals, report.repairs, report.not_priced) == ((), (), "")
    assert report.plan is not None
    x = report.plan.layout
    assert (x.tp, x.dp, x.zero, x.sp, x.n_micro) == (2, 8, 1, True, 16)


def test_its_price_is_that_of_evaluate(checked: Check) -> None:
    report = checked(GOOD)
    assert report.plan is not None
    assert report.model is not None
    result = evaluate(
        report.model.document, report.cluster.document, pins={"tp": 2}, framework="megatron"
    )
    assert report.plan.plan_id == result.best.plan_id
    assert report.plan.step_time_s == pytest.approx(result.best.step_time_s, rel=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("standing")
def test_the_best_plan_is_that_of_solve_and_the_rank_counts_faster_ones(checked: Check) -> None:
    report = checked(GOOD)
    assert report.model is not None
    assert report.plan is not None
    assert report.standing is not None
    result = solve(report.model.document, report.cluster.document, framework="megatron", top=400)
    standing = report.standing
    assert standing.best is not None
    assert standing.best.plan_id == result.best.plan_id
    # `check` prices every plan; a solve leaves out those that a bound excludes, fitting or not.
    assert result.counts.fit <= standing.n_fit <= result.counts.fit + result.counts.excluded
    assert standing.ratio == report.plan.step_time_s / result.best.step_time_s
    assert standing.rank is not None
    assert 1 <= standing.rank <= standing.n_fit + 1


def test_changes_are_worth_what_they_say(checked: Check) -> None:
    report = checked("--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 128")
    assert report.plan is not None
    assert report.model is not None
    assert 1 <= len(report.changes) <= 3
    gains = [change.gain_frac for change in report.changes]
    assert gains == sorted(gains, reverse=True)
    assert all(gain >= 0.005 for gain in gains)
    first = next(change for change in report.changes if change.layout)
    assert first.layout is not None
    x = first.layout
    pins = {
        "tp": x.tp,
        "pp": x.pp,
        "vpp": x.vpp,
        "mbs": x.mbs,
        "zero": x.zero,
        "sp": int(x.sp),
        "cp": x.cp,
        "recompute": x.recompute,
    }
    same = evaluate(
        report.model.document, report.cluster.document, pins=pins, framework="megatron"
    ).best
    assert same.plan_id == first.plan_id
    assert first.step_s == pytest.approx(same.step_time_s, rel=1e-9)
    assert any(word.startswith("--") for word in first.settings)


def test_the_words_of_a_change_make_it(checked: Check, tmp_path: Path) -> None:
    """Writing what a change says gives its plan."""
    report = checked("--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 128")
    change = next(
        c for c in report.changes if c.layout and not any("drop" in w for w in c.settings)
    )
    again = checked(
        "--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 128 "
        + " ".join(change.settings)
    )
    assert again.plan is not None
    assert again.plan.plan_id == change.plan_id


@pytest.mark.parametrize(
    "flags",
    one_in(
        3,
        [
            "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 "
            "--recompute-granularity"
            " full --recompute-method uniform --recompute-num-layers 1",
            "--tensor-model-parallel-size 8 --recompute-activations --tp-comm-overlap",
            "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2"
            " --num-layers-per-virtual-pipeline-stage 3",
        ],
    ),
)
def test_changes_are_whole_and_accepted(checked: Check, flags: str) -> None:
    """Every change written into the script gives its plan, and no refusal that was not there."""
    base = f"{flags} --micro-batch-size 1 --global-batch-size 128"
    report = checked(base)
    before = {broken.rule.code for broken in report.refusals}
    with_layout = [change for change in report.changes if change.layout]
    assert with_layout
    for change in with_layout:
        text = f"{base} {' '.join(w for w in change.settings if not w.startswith('drop'))}"
        for word in change.settings:
            if word.startswith("drop "):
                text = re.sub(rf"{word[5:]}\b( [\w.]+)?(?= --|$)", "", text)
        again = checked(text)
        assert again.plan is not None
        assert again.plan.layout == change.layout
        assert {broken.rule.code for broken in again.refusals} <= before


def test_uniform_recompute_becomes_block_and_recompute_is_changed_once(checked: Check) -> None:
    report = checked(
        "--tensor-model-parallel-size 2 --recompute-granularity full --recompute-method uniform"
        " --recompute-num-layers 1 --micro-batch-size 2 --global-batch-size 128"
    )
    of_recompute = [c for c in report.changes if "recompute" in c.text]
    assert len(of_recompute) == 1
    if "recompute_layers" in of_recompute[0].text:
        assert "--recompute-method block" in of_recompute[0].settings


def test_a_first_degree_over_one_comes_with_its_environment(tmp_path: Path) -> None:
    file = tmp_path / "launch.sh"
    file.write_text(f"{FLAGS} --micro-batch-size 1 --global-batch-size 128")
    cluster = {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": 1}], "fabric": {}}
    report = check(file, cluster)
    named = [c for c in report.changes if c.layout and c.layout.tp * c.layout.cp > 1]
    assert named
    for change in named:
        assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in change.settings


def test_missing_overlap_is_named_with_its_flag(tmp_path: Path) -> None:
    plain = FLAGS.replace("--overlap-grad-reduce --overlap-param-gather ", "")
    file = tmp_path / "launch.sh"
    file.write_text(f"{plain} {GOOD}")
    cluster = {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": 8}], "fabric": {}}
    report = check(file, cluster, env=OWN)
    with_flags = check(
        file,
        cluster,
        env=OWN,
        overrides=(("overlap_grad_reduce", "true"), ("overlap_param_gather", "true")),
    )
    assert report.plan is not None
    assert with_flags.plan is not None
    named = [c for c in report.changes if c.text == "dp_overlap off -> on"]
    assert {"--overlap-grad-reduce", "--overlap-param-gather"} <= set(named[0].settings)
    assert named[0].step_s == pytest.approx(with_flags.plan.step_time_s)


EXPERTS = (
    "--num-experts 32 --expert-model-parallel-size 32 --moe-router-topk 8"
    " --moe-token-dispatcher-type alltoall --moe-grouped-gemm --micro-batch-size 1"
    " --global-batch-size 128 --moe-ffn-hidden-size 1024"
)
DEEPEP = "dispatcher alltoall -> deepep"


def test_a_setting_that_the_framework_would_refuse_is_no_change(checked: Check) -> None:
    """DeepEP cannot pad experts to capacity (DSP004)."""
    offered = checked(EXPERTS, nodes=4)
    named = {change.text: change for change in offered.changes}
    assert {"--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend deepep"} <= set(
        named[DEEPEP].settings
    )
    padded = checked(
        f"{EXPERTS} --moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity", nodes=4
    )
    assert padded.accepted
    assert DEEPEP not in {change.text for change in padded.changes}


def test_a_changed_setting_gives_the_time_of_the_run_with_it(checked: Check) -> None:
    report = checked(f"{GOOD} --no-gradient-accumulation-fusion")
    texts = {change.text: change for change in report.changes}
    assert texts["tp_overlap off -> on"].step_s == pytest.approx(
        checked(f"{GOOD} --no-gradient-accumulation-fusion --tp-comm-overlap").plan.step_time_s  # type: ignore[union-attr]
    )


@pytest.mark.usefixtures("standing")
def test_what_does_not_fit_and_what_would_make_it(checked: Check) -> None:
    report = checked("--micro-batch-size 4 --global-batch-size 128", nodes=1)
    assert (report.accepted, report.fits, report.exit_code) == (True, False, 3)
    assert report.standing is not None
    assert report.standing.rank is None
    assert report.changes
    usable = report.cluster.cluster.pools[0].usable_bytes
    assert all(change.fits and change.peak_bytes <= usable for change in report.changes)
    times = [change.step_s for change in report.changes]
    assert times == sorted(times)
    assert "what would make it fit:" in text_of(report)


@pytest.mark.parametrize(
    ("flags", "code", "when", "repair"),
    [
        ("--tensor-model-parallel-size 3", "MLM101", "parse", "15 devices"),
        ("--micro-batch-size 3", "MLM112", "parse", "global batch"),
        ("--pipeline-model-parallel-size 4 --num-layers 30", "MLM210", "parse", "of 7 to 8"),
        ("--expert-model-parallel-size 2", "MLM301", "parse", "the model is dense"),
        (
            "--pipeline-model-parallel-size 8 --num-layers-per-virtual-pipeline-stage 2"
            " --global-batch-size 12 --tensor-model-parallel-size 2",
            "MLM203",
            "first step",
            "interleaving",
        ),
    ],
)
def test_refused_runs_are_priced_as_the_nearest(
    checked: Check, flags: str, code: str, when: str, repair: str
) -> None:
    report = checked(f"--micro-batch-size 1 --global-batch-size 128 {flags}")
    assert report.exit_code == 3
    found = {broken.rule.code: broken.rule.when for broken in report.refusals}
    assert found[code] == when
    if code == "MLM101":
        assert "heads" in " ".join(b.rule.title for b in report.refusals)
        return  # heads do not divide either: there is no nearest
    assert report.plan is not None, report.not_priced
    assert repair in " ".join(report.repairs)
    assert "priced as the nearest that divides:" in text_of(report)


def test_what_cannot_be_priced_says_why(checked: Check) -> None:
    report = checked(
        f"{GOOD} --tensor-model-parallel-size 16 --num-attention-heads 24 --kv-channels 128"
    )
    assert report.plan is None
    assert "TP001" in report.not_priced
    assert report.exit_code == 3


def test_sizes_that_no_model_has_are_refused_and_not_priced(checked: Check) -> None:
    report = checked(f"{GOOD} --num-attention-heads 30")
    assert "MLM124" in {b.rule.code for b in report.refusals}
    assert report.plan is None
    assert report.not_priced


def test_other_numbers_of_devices(checked: Check) -> None:
    start = "torchrun --nnodes {} --nproc-per-node {} pretrain_gpt.py"
    fewer = checked(GOOD, nodes=4, launch=start.format(2, 8))
    assert fewer.cluster.cluster.pools[0].n_devices == 16
    assert any("uses 16 of the 32 devices" in note for note in fewer.notes)
    assert fewer.exit_code == 0
    part = checked(GOOD, nodes=4, launch=start.format(1, 4))
    assert part.cluster.cluster.pools[0].n_devices == 4
    more = checked(GOOD, nodes=1, launch=start.format(2, 8))
    assert (more.enough, more.exit_code) == (False, 3)
    assert more.plan is not None
    odd = checked(GOOD, nodes=4, launch=start.format(3, 6))
    assert odd.plan is None
    assert "18 devices" in odd.not_priced


def test_releases_have_rules_of_their_own(checked: Check) -> None:
    flags = f"{GOOD} --tensor-model-parallel-size 16"
    assert checked(flags).accepted  # 8 KV heads on 16 ranks are replicated
    old = checked(flags, version="0.12.0")
    assert (old.release, old.accepted) == ("0.12.0", False)
    with pytest.raises(UsageError, match="is not a release"):
        checked(GOOD, version="newest")


def test_settings_model_and_cluster_can_be_changed(checked: Check) -> None:
    report = checked(
        GOOD,
        overrides=(
            ("global_batch_size", "64"),
            ("model.vocab", "1000"),
            ("pools.0.nodes", "4"),
            ("training.seq_len", "4096"),
        ),
    )
    assert report.model is not None
    assert report.plan is not None
    assert (report.model.shape.vocab, report.model.job.seq_len) == (1000, 4096)
    assert (report.plan.layout.gbs, report.plan.layout.n_devices) == (64, 32)
    assert report.run.written["global_batch_size"] == "--set global_batch_size=64"


def test_a_model_file_in_place_of_the_flags(checked: Check) -> None:
    report = checked(GOOD, model="llama3-8b")
    assert report.model is not None
    assert report.model.shape.name == "llama3-8b"
    assert report.run.assumed == ()


def test_flags_win_over_the_job_of_a_model_file(checked: Check) -> None:
    report = checked(
        f"{GOOD} --seq-length 4096 --train-iters 100 --fp8-format e4m3 --fp8-recipe blockwise",
        model="llama3-8b",
    )
    assert report.model is not None
    assert report.model.job.seq_len == 4096  # the file: 8192
    assert report.model.job.global_batch == 128  # the file: 512
    assert report.model.job.precision == "fp8-blockwise"
    assert report.model.job.tokens == 100 * 128 * 4096
    asked = checked(
        f"{GOOD} --seq-length 4096", model="llama3-8b", overrides=(("training.seq_len", "2048"),)
    )
    assert asked.model is not None
    assert asked.model.job.seq_len == 2048


def test_the_batch_of_micro_batches_alone_is_not_that_of_a_model_file(checked: Check) -> None:
    """One micro-batch on each of 16 ranks: 48, where 512 would not divide by 3 x 16."""
    report = checked("--micro-batch-size 3", model="llama3-8b")
    assert report.model is not None
    assert (report.refusals, report.model.job.global_batch) == ((), 48)
    assert any(text.startswith("gbs = 48: no --global-batch-size") for text in report.run.assumed)


def test_a_model_file_fills_what_the_flags_do_not_say(tmp_path: Path) -> None:
    file = tmp_path / "launch.sh"
    file.write_text(
        "torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096"
        " --num-attention-heads 32 --use-distributed-optimizer"
    )
    report = check(file, "h100-x8", model="llama3-8b")
    assert report.model is not None
    job = report.model.job
    assert (job.seq_len, job.global_batch, job.precision) == (8192, 512, "bf16")
    assert [text.split(":")[0] for text in report.run.assumed] == [
        "seq_len = 8192",
        "gbs = 512",
        "precision = bf16",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("standing")
def test_the_same_bytes_each_time(checked: Check) -> None:
    first, second = (checked(GOOD).dumps() for _ in range(2))
    assert first == second
    data = json.loads(first)
    assert set(data) == {
        "schema_version",
        "source",
        "format",
        "framework",
        "release",
        "accepted",
        "fits",
        "fork",
        "partial",
        "not_understood",
        "memory_not_judged",
        "refusals",
        "ignored",
        "unwritten",
        "n_devices",
        "enough_devices",
        "layout",
        "plan",
        "repairs",
        "not_priced",
        "standing",
        "changes",
        "assumed",
        "notes",
        "inputs",
        "calibration",
    }
    assert set(data["changes"][0]) == {
        "change",
        "words",
        "step_time_s",
        "gain_frac",
        "peak_bytes",
        "fits",
        "plan_id",
        "layout",
    }


@pytest.mark.usefixtures("standing")
def test_the_table_is_readable_at_100_columns(checked: Check) -> None:
    for flags in (GOOD, "--micro-batch-size 3 --global-batch-size 100 --nope 1"):
        text = text_of(checked(flags))
        assert max(len(line) for line in text.splitlines()) <= 100
    assert "not understood: --nope" in text
    assert "(when it reads its configuration)" in text


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}


def test_pins_say_what_a_file_cannot(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(DEEPSPEED | {"zero_optimization": {"stage": 1}}))
    report = check(file, "h100-x8", model="llama3-8b", pins={"pp": 4, "recompute": "full"})
    assert report.plan is not None
    assert (report.plan.layout.pp, report.plan.layout.recompute) == (4, "full")
    flags = tmp_path / "f.sh"
    flags.write_text(f"{FLAGS} {GOOD}")
    with pytest.raises(UsageError, match="says its whole layout"):
        check(flags, "h100-x8", pins={"pp": 4})


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        (
            "a.yaml",
            "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n"
            "  fsdp_version: 2\n  fsdp_reshard: true\n",
            "ACC121",
        ),
        ("a.json", json.dumps(DEEPSPEED | {"zero_optimisation": 3}), "DSP122"),
    ],
)
def test_a_key_that_is_passed_over_is_a_warning(
    tmp_path: Path, name: str, text: str, code: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    report = check(file, "h100-x8", model="llama3-8b")
    assert (report.refusals, report.accepted) == ((), True)
    assert [broken.rule.code for broken in report.ignored] == [code]
    (told,) = report.to_json()["ignored"]
    assert (told["code"], told["when"]) == (code, "ignored")
    assert f"\nwarning {code}: " in text_of(report)


def test_a_file_whose_batch_sizes_are_for_fewer_devices_is_judged_on_those(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(DEEPSPEED | {"train_batch_size": 32}))  # 32 / (1 x 4): 8 ranks
    two = {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": 2}], "fabric": {}}
    report = check(file, two, model="llama3-8b", pins={"recompute": "full"})
    assert report.plan is not None
    assert (report.accepted, report.run.n_devices, report.plan.layout.dp) == (True, 8, 8)
    assert any("the file is for 8 of the cluster's 16 devices" in note for note in report.notes)
    assert all(c.layout.n_devices == 8 for c in report.changes if c.layout)
    # Whoever says the number of nodes means them.
    told = check(file, two, model="llama3-8b", overrides=(("pools.0.nodes", "2"),))
    assert "DSP123" in {broken.rule.code for broken in told.refusals}
    script = tmp_path / "run.sh"
    script.write_text("deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed ds.json\n")
    launched = check(script, two, model="llama3-8b")
    assert "DSP123" in {broken.rule.code for broken in launched.refusals}
    assert launched.run.n_devices == 16


def test_a_file_whose_batch_sizes_are_for_more_devices_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(DEEPSPEED | {"train_batch_size": 128}))
    report = check(file, "h100-x8", model="llama3-8b")
    assert "DSP123" in {broken.rule.code for broken in report.refusals}
    assert any("for 32 devices, the cluster has 8" in note for note in report.notes)


@pytest.mark.parametrize(
    ("name", "text", "options", "error", "message"),
    [
        ("empty.sh", " \n", {}, SpecError, "the file is empty"),
        ("a.txt", "hello world\n", {}, SpecError, "is not a run that is known here"),
        ("a.sh", "#!/bin/bash\necho hi\n", {}, SpecError, "no training command and no flags"),
        ("a.sh", "torchrun train.py --lr 1\n", {}, SpecError, "no flags of Megatron-LM"),
        (
            "a.sh",
            f"torchrun pretrain_gpt.py {FLAGS} --global-batch-size $GBS",
            {},
            SpecError,
            "depends on GBS, which nothing sets",
        ),
        (
            "a.json",
            '{"train_batch_size": 1,}',
            {"model": "llama3-8b"},
            SpecError,
            "not valid JSON",
        ),
        ("a.json", json.dumps(DEEPSPEED), {}, SpecError, "does not say the model"),
        ("config.json", '{"model_type": "llama", "hidden_size": 8}', {}, SpecError, "is a model"),
        ("a.toml", "[training\n", {}, SpecError, "not valid TOML"),
        ("a.yaml", "distributed_type: FSDP\n", {}, SpecError, "does not say the model"),
        ("a.sh", f"{FLAGS} {GOOD}", {"framework": "deepspeed"}, UsageError, "for megatron"),
        (
            "a.sh",
            f"{FLAGS} {GOOD}",
            {"overrides": (("no_such_flag", "1"),)},
            UsageError,
            "no such flag",
        ),
        ("a.sh", f"{FLAGS} {GOOD}", {"pool": "x"}, UsageError, "no pool"),
        (
            "a.sh",
            "deepspeed train.py --deepspeed ds.json",
            {"model": "llama3-8b"},
            SpecError,
            "names ds.json, which cannot be read",
        ),
    ],
)
def test_one_clear_error(
    name: str,
    text: str,
    options: dict[str, Any],
    error: type[PlannerError],
    message: str,
    tmp_path: Path,
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(error) as caught:
        check(file, "h100-x8", **options)
    assert message in str(caught.value)
    assert "\n  fix: " in str(caught.value)


def test_model_that_is_not_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    words = "model_name=gpt-oss-120b per_device_batch_size=1"
    file.write_text(f"python3 -m maxtext.trainers.pre_train.train base.yml {words}")
    with pytest.raises(SpecError, match="decoder block gpt_oss: its sizes are not read") as caught:
        check(file, "8xtpu-v6e")
    assert "--model llama3-8b" in str(caught.value)


def test_fewer_tokens_than_a_larger_batch(tmp_path: Path) -> None:
    """A batch that does not divide is priced as the nearest that does, also of a short run."""
    file = tmp_path / "run.sh"
    flags = re.sub(r"--global-batch-size \S+", "--global-batch-size 4", f"{FLAGS} {GOOD}")
    start = "torchrun --nnodes 8 --nproc_per_node 8 pretrain_gpt.py"
    file.write_text(f"{start} {flags} --train-iters 1")
    report = check(file, "64xh100")
    assert report.plan is not None
    assert any("global batch" in repair for repair in report.repairs)


def test_no_such_file_and_several_pools(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        check(tmp_path / "none.sh", "h100-x8")
    file = tmp_path / "f.sh"
    file.write_text(f"{FLAGS} {GOOD}")
    with pytest.raises(UsageError, match="the cluster has 2 pools"):
        check(file, "mixed-h100-a100")


@pytest.mark.parametrize("flag", ["--num-layers", "--hidden-size", "--seq-length"])
def test_a_missing_flag_is_a_refusal_and_not_a_file_that_cannot_be_read(
    flag: str, tmp_path: Path
) -> None:
    words = {
        "--num-layers": 32,
        "--hidden-size": 4096,
        "--num-attention-heads": 32,
        "--seq-length": 4096,
        "--max-position-embeddings": 4096,
        "--micro-batch-size": 1,
    }
    del words[flag]
    flags = " ".join(f"{name} {value}" for name, value in words.items())
    file = tmp_path / "launch.sh"
    file.write_text(f"torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py {flags} --bf16\n")
    report = check(file, "h100-x8")
    assert [broken.rule.code for broken in report.refusals] == ["MLM122"]
    assert flag in report.refusals[0].reason
    assert report.plan is None


def test_sizes_that_no_model_can_have_are_still_judged(tmp_path: Path) -> None:
    # 6 query groups of 32 heads are no model of ours; Megatron-LM says that they do not fit tp 4.
    file = tmp_path / "launch.sh"
    file.write_text(
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096"
        " --num-attention-heads 32 --group-query-attention --num-query-groups 6 --seq-length 4096"
        " --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 8 --bf16"
        " --tensor-model-parallel-size 4 --vocab-size 32000 --swiglu --ffn-hidden-size 11008\n"
    )
    report = check(file, "h100-x8")
    assert "MLM103" in {broken.rule.code for broken in report.refusals}
    assert "kv_heads" in report.not_priced


def test_flags_that_the_output_of_a_program_may_hold_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "launch.sh"
    file.write_text("torchrun pretrain_gpt.py --num-layers 4 $(python sizes.py)")
    cluster = {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": 1}], "fabric": {}}
    with pytest.raises(SpecError, match=r"may stand in \$\(python sizes.py\)"):
        check(file, cluster)


def test_values_no_framework_takes_are_no_defect(checked: Check) -> None:
    """Negative and huge numbers are refused and the rest is judged."""
    report = checked(
        f"{GOOD} --recompute-granularity full --recompute-method block --recompute-num-layers -5"
    )
    assert report.plan is not None
    assert report.plan.layout.recompute_layers == 1
    huge = checked("--tensor-model-parallel-size 99999999999999999999 --micro-batch-size 1")
    assert "MLM101" in {broken.rule.code for broken in huge.refusals}


@pytest.mark.parametrize(("n", "recompute", "layers"), [(0, "none", 0), (3, "full", 3)])
def test_blocks_recompute_as_many_layers_as_they_name(
    checked: Check, n: int, recompute: str, layers: int
) -> None:
    """Megatron-Core checkpoints a layer whose index is below the number: none below 0."""
    report = checked(
        f"{GOOD} --recompute-granularity full --recompute-method block --recompute-num-layers {n}"
    )
    assert (report.run.layout["recompute"], report.run.layout["recompute_layers"]) == (
        recompute,
        layers,
    )


def test_all_to_alls_that_need_more_heads_are_priced_as_a_ring(checked: Check) -> None:
    report = checked(
        "--context-parallel-size 16 --cp-comm-type a2a --micro-batch-size 1 --global-batch-size 16"
    )
    assert "MLM107" in {broken.rule.code for broken in report.refusals}
    assert report.plan is not None
    assert report.plan.layout.cp_comm == "p2p"
    assert any("cp_comm p2p" in repair for repair in report.repairs)


def test_keys_of_fsdp1_are_passed_over_and_said(tmp_path: Path) -> None:
    file = tmp_path / "accelerate.yaml"
    file.write_text(
        "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_use_orig_params: true\n"
    )
    report = check(file, "h100-x8", model="llama3-8b")
    assert report.accepted
    assert any("fsdp_use_orig_params: of FSDP1" in note for note in report.notes)
