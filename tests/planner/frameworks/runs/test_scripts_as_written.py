"""Scripts and configurations as people write them: shells in shells, forks, other releases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.analyze.check.check import check
from planner.analyze.check.report import Report
from planner.errors import SpecError
from planner.frameworks.runs.existing_run import ExistingRun
from planner.frameworks.runs.query import RunQuery
from planner.frameworks.runs.reader import read_run
from planner.frameworks.shell.wrappers import filtered, with_placeholders
from planner.frameworks.torchtitan.releases import split_counts, with_present_names
from tests.searches.instances import one_in

SIZES = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048"
    " --max-position-embeddings 2048 --vocab-size 32000"
)
BATCH = "--micro-batch-size 1 --global-batch-size 64 --bf16 --train-iters 10 --lr 1e-4"


def cluster(nodes: int) -> dict[str, Any]:
    return {"pools": [{"accelerator": "h100-sxm-80gb", "nodes": nodes}], "fabric": {}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the search for the best plan, which other tests look at."""
    monkeypatch.setattr("planner.analyze.check.check.standing_of", lambda *_: None)


def read(tmp_path: Path, files: Mapping[str, str], **asked: Any) -> ExistingRun:
    """Return the run of the first of some files that lie beside each other."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return read_run(str(tmp_path / next(iter(files))), RunQuery(n_devices=64, **asked))


def layout(run: ExistingRun, *names: str) -> tuple[Any, ...]:
    return tuple(run.layout[name] for name in names)


NESTED = f"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
GPUS=4
TP=2
PP=4
config=./ds_config.$SLURM_JOB_ID.json
cat <<EOT > $config
{{
  "train_micro_batch_size_per_gpu": 1,
  "train_batch_size": 64,
  "zero_optimization": {{"stage": 1}},
  "bf16": {{"enabled": true}}
}}
EOT
SIZES=" \\
    {SIZES} \\
    {BATCH} \\
    --checkpoint-activations \\
    --pp-partition-method 'type:transformer' \\
    "
export LAUNCHER="python -u -m torch.distributed.run \\
    --nproc_per_node $GPUS \\
    --nnodes $SLURM_NNODES \\
    "
export CMD=" \\
    `pwd`/pretrain_gpt.py \\
    --tensor-model-parallel-size $TP \\
    --pipeline-model-parallel-size $PP \\
    $SIZES \\
    --deepspeed --deepspeed_config ${{config}} --zero-stage 1 \\
    "
"""


@pytest.mark.parametrize(
    "start",
    [
        "clear; srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'"
        " 2>&1 | tee -a log.txt",
        'srun -l --output=logs/%x_$(date).log sh -c "$LAUNCHER --node_rank 0 $CMD" &',
        'eval "$LAUNCHER $CMD"',
        'srun singularity exec --nv /images/torch.sif bash -x -c "$LAUNCHER $CMD" &> log.txt',
        'sbatch <<EOF\n#!/bin/bash\nsrun bash -c "$LAUNCHER $CMD"\nEOF',
    ],
)
def test_a_shell_in_a_shell_and_the_json_that_it_writes(start: str, tmp_path: Path) -> None:
    run = read(tmp_path, {"run.slurm": f"{NESTED}{start}\n"})
    assert (run.framework, run.n_devices, run.fork) == ("deepspeed", 16, "Megatron-DeepSpeed")
    assert layout(run, "tp", "pp", "dp", "zero", "gbs") == (2, 4, 2, 1, 64)
    assert layout(run, "recompute", "counts") == ("full", (2, 2, 2, 2))
    assert run.settings["zero_optimization.stage"] == 1
    assert run.doubts == ()


def test_embeddings_that_count_as_layers_of_a_stage(tmp_path: Path) -> None:
    text = NESTED.replace("--num-layers 8", "--num-layers 10").replace(
        "'type:transformer'", "'type:transformer|embedding'"
    )
    run = read(tmp_path, {"run.slurm": f'{text}srun bash -c "$LAUNCHER $CMD"\n'})
    assert run.layout["counts"] == (2, 3, 3, 2)


def test_files_that_set_write_and_start(tmp_path: Path) -> None:
    """Sizes are sourced, a template becomes the JSON, sbatch starts another script."""
    files = {
        "submit.sh": "#!/bin/bash\nTP=4\nNNODES=2\n. `pwd`/sizes.sh\n"
        'sed "s/MICRO/${MBS}/" template.json | sed -e "s/STAGE/2/" > ds.json\n'
        "sbatch --nodes=${NNODES} --export=OPTIONS job.sh\nexit 0\n",
        "sizes.sh": f'MBS=2\nOPTIONS="{SIZES} --global-batch-size 64 --fp16'
        ' --micro-batch-size $MBS --tensor-model-parallel-size $TP"\n',
        "template.json": '{"train_micro_batch_size_per_gpu": MICRO, "train_batch_size": 64,\n'
        '"zero_optimization": {"stage": STAGE}}',
        "job.sh": "#!/bin/bash\n#SBATCH --ntasks-per-node=8\n"
        'CMD="python -u pretrain_gpt.py ${OPTIONS} --deepspeed --deepspeed_config ds.json"\n'
        'srun -l sh -c "${CMD}"\n',
    }
    run = read(tmp_path, files)
    assert (run.n_devices, run.n_nodes) == (16, 2)
    assert layout(run, "tp", "dp", "mbs", "zero") == (4, 4, 2, 2)
    assert run.job["precision"] == "fp16-grads"  # DeepSpeed sums fp16 gradients in fp16


def test_a_sourced_file_that_is_missing_is_named(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        {
            "run.sh": f"source env/site.sh\ntorchrun --nproc_per_node 8 pretrain_gpt.py"
            f" {SIZES} {BATCH}\n"
        },
    )
    assert any("env/site.sh" in note for note in run.notes)
    assert run.n_devices == 8


def test_placeholders_are_no_redirections(tmp_path: Path) -> None:
    text = f"""GPUS_PER_NODE=8
NNODES=1
DATA=<Specify path and file prefix>_text_document
SAVE="your checkpoint path"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py {SIZES} {BATCH} \\
    --data-path $DATA --vocab-file <PATH TO vocab.json> --save $SAVE --save-interval 100 \\
    --tensor-model-parallel-size 2
"""
    run = read(tmp_path, {"run.sh": text})
    assert (run.n_devices, run.refused, run.unknown, run.fork) == (8, (), (), "")
    assert layout(run, "tp", "dp") == (2, 4)
    for plain in (
        "sort <in.txt >out.txt",
        "cat <<EOF > x\nEOF",
        "diff <(a) <(b)",
        "x <in>/dev/null",
    ):
        assert with_placeholders(plain) == plain


def test_a_size_that_is_a_placeholder_is_asked_for(tmp_path: Path) -> None:
    text = (
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH}"
        " --tensor-model-parallel-size <TP size>\n"
    )
    with pytest.raises(SpecError, match="<TP size>"):
        read(tmp_path, {"run.sh": text})


def test_what_filters_print() -> None:
    files = {"a.json": '{"x": ONE,\n "y": ONE}'}
    assert filtered(["sed", "s/ONE/1/", "a.json"], None, files.get) == '{"x": 1,\n "y": 1}'
    assert filtered(["cat", "a.json"], None, files.get) == files["a.json"]
    assert filtered(["sed", "-i", "s/ONE/1/", "a.json"], None, files.get) is None
    assert filtered(["sed", "/ONE/d", "a.json"], None, files.get) is None


def launch(flags: str) -> str:
    return f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {SIZES} {BATCH} {flags}\n"


def test_options_of_mindspeed_tell_its_scripts(tmp_path: Path) -> None:
    flags = (
        "--tensor-model-parallel-size 2 --swap-attention \\\n --tokenizer-name-or-path /m"
        " --use-fused-rmsnorm --tokenizer-type PretrainedFromHF --tp-2d \\\n"
        " --context-parallel-size 2 --context-parallel-algo ulysses_cp_algo"
    )
    run = read(tmp_path, {"run.sh": launch(flags)})
    assert (run.framework, run.fork, run.doubts) == ("mindspeed", "", ())
    assert any(note.startswith("--tp-2d") for note in run.notes)
    assert run.overestimated == "--swap-attention"
    assert layout(run, "tp", "cp", "cp_comm") == (2, 2, "a2a")


FORKS = {
    "Megatron-LM 1 to 3": (
        "--model-parallel-size 2 --checkpoint-activations --DDP-impl torch",
        {"tp": 2, "recompute": "full", "recompute_layers": 8},
    ),
    "Megatron-LLaMA": (
        "--RMSNorm --causal-lm --overlapped-distributed-optimizer"
        " --use-rotary-position-embeddings",
        {"zero": 1, "dp_overlap": True},
    ),
    "Megatron-LLM (epfLLM)": (
        "--use_rms_norm --glu_activation swiglu --num_attention_heads_kv 4"
        " --tensor_model_parallel_size 2 --sequence_parallel",
        {"tp": 2, "sp": True},
    ),
    "Megatron-DeepSpeed": (
        "--ds-sequence-parallel-size 2 --num-key-value-heads 8 --no-pipeline-parallel",
        {"cp": 2, "cp_comm": "a2a"},
    ),
}


@pytest.mark.parametrize("fork", FORKS)
def test_what_flags_of_forks_mean(fork: str, tmp_path: Path) -> None:
    flags, expected = FORKS[fork]
    run = read(tmp_path, {"run.sh": launch(flags)})
    assert run.fork == fork
    assert {name: run.layout[name] for name in expected} == expected
    assert run.doubts == ()
    model = run.model.document["model"] if run.model else {}
    if "epfLLM" in fork:
        assert (model["kv_heads"], model["gated"], model["bias"]) == (4, True, False)
    if fork == "Megatron-LLaMA":
        assert (model["norm"], model["tied"], model["positions"]) == ("rmsnorm", False, "rope")


@pytest.mark.usefixtures("quick")
def test_a_flag_that_nobody_has_is_a_refusal_only_of_a_release_that_is_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.sh"
    file.write_text(launch("--no-such-flag 3 --eval-interval 100"))
    report = check(file, cluster(2))
    assert (report.accepted, report.partial) == (True, True)
    assert [d.what for d in report.run.doubts] == ["--no-such-flag"]
    named = check(file, cluster(2), version="0.19.2")
    assert [b.rule.code for b in named.refusals] == ["MLM120"]
    assert "a fork or another release may have it" in named.refusals[0].reason


@pytest.mark.usefixtures("quick")
def test_only_rules_on_sizes_are_held_against_a_fork(tmp_path: Path) -> None:
    """No CUDA_DEVICE_MAX_CONNECTIONS, but 8 layers still do not go into 3 stages."""
    file = tmp_path / "run.sh"
    file.write_text(launch("--data-impl mmap --tensor-model-parallel-size 2"))
    assert check(file, cluster(2)).refusals == ()
    file.write_text(launch("--data-impl mmap --pipeline-model-parallel-size 16"))
    assert [b.rule.code for b in check(file, cluster(2)).refusals] == ["MLM210"]


@pytest.mark.usefixtures("quick")
def test_a_deepspeed_file_that_is_not_here_is_a_doubt(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(launch("--deepspeed --deepspeed_config away.json --zero-stage 2"))
    report = check(file, cluster(2))
    assert (report.refusals, report.run.layout["zero"]) == ((), 2)
    assert [d.what for d in report.run.doubts] == ["away.json"]
    assert report.to_json()["not_understood"][0]["what"] == "away.json"


def offloaded() -> dict[str, Any]:
    """Return parts of the configurations that keep weights off the device, by framework."""
    return {
        "ds.json": '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8,'
        ' "activation_checkpointing": {"partition_activations": false},'
        ' "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},'
        ' "bf16": {"enabled": true}}',
        "fsdp.yaml": "distributed_type: FSDP\nnum_machines: 1\nnum_processes: 8\n"
        "mixed_precision: bf16\nfsdp_config:\n  fsdp_version: 2\n  fsdp_offload_params: true\n"
        "  fsdp_activation_checkpointing: true\n",
        "job.toml": '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 8192\nenable_cpu_offload = true\n",
    }


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", one_in(3, offloaded()))
def test_memory_is_not_judged_where_weights_are_off_the_device(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(offloaded()[name])

    def judged(model: str) -> Report:
        own = None if name.endswith("toml") else model
        return check(tmp_path / name, cluster(1), model=own)

    large = judged("llama3-70b")
    assert (large.fits, large.exit_code) == (None, 0)
    assert large.memory_not_judged
    if not name.endswith("toml"):  # what fits although all of it is counted does fit
        assert judged("llama3-8b").fits is True


@pytest.mark.usefixtures("quick")
def test_the_report_says_that_memory_is_not_judged(tmp_path: Path) -> None:
    from planner.render.document import text_of

    (tmp_path / "ds.json").write_text(offloaded()["ds.json"])
    text = text_of(check(tmp_path / "ds.json", cluster(1), model="llama3-70b"))
    assert "memory not judged: priced without offload_param to cpu" in text
    assert "does not fit" not in text


OLD_TOML = """[model]
name = "llama3"
flavor = "8B"
norm_type = "rmsnorm"

[training]
batch_size = 4
seq_len = 4096
steps = 100
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
warmup_steps = 20
compile = true

[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_split_points = "layers.12"
enable_async_tensor_parallel = false

[activation_checkpoint]
mode = "full"

[float8]
enable_float8_linear = true
"""


def test_job_files_of_the_first_releases(tmp_path: Path) -> None:
    run = read(tmp_path, {"old.toml": OLD_TOML})
    assert (run.release, run.unknown, run.doubts) == ("0.0", (), ())
    # Micro-batches are as many as stages: 4 sequences in 2.
    assert layout(run, "tp", "pp", "dp", "mbs", "gbs") == (2, 2, 16, 2, 64)
    assert layout(run, "counts", "recompute") == ((12, 20), "full")
    assert (run.job["seq_len"], run.job["precision"]) == (4096, "fp8-tensorwise")
    assert run.stack["compiled"] is True


def test_a_key_that_no_release_has_is_not_understood(tmp_path: Path) -> None:
    run = read(tmp_path, {"old.toml": OLD_TOML.replace("norm_type", "norm_typ")})
    assert [doubt.what for doubt in run.doubts] == ["model.norm_typ"]


def test_names_of_old_keys() -> None:
    new = with_present_names({"training.batch_size": 3, "training.data_parallel_degree": -1})
    assert new == {"training.local_batch_size": 3, "parallelism.data_parallel_shard_degree": -1}
    assert split_counts(["layers.2", "layers.5"], 8) == (2, 3, 3)
    assert split_counts("norm", 8) == ()


PRIMUS = """work_group: ${TEAM:mine}
modules:
  pre_trainer:
    framework: megatron
    config: trainer.yaml
    model: tiny.yaml
    overrides:
      tensor_model_parallel_size: ${PRIMUS_TP:2}
      micro_batch_size: 2
      global_batch_size: 64
      overlap_grad_reduce: true
      recompute_granularity: full
      recompute_layer_ids: [0, 1]
"""
TINY = "extends:\n  - base.yaml\nnum_layers: 8\nhidden_size: 1024\nnum_attention_heads: 16\n"
BASE = "swiglu: true\nadd_bias_linear: false\nvocab_size: 32000\nnum_layers: 2\n"
TRAINER = "bf16: true\nseq_length: 2048\nuse_distributed_optimizer: true\nmicro_batch_size: 1\n"


def test_an_experiment_of_primus(tmp_path: Path) -> None:
    files = {"exp.yaml": PRIMUS, "tiny.yaml": TINY, "base.yaml": BASE, "trainer.yaml": TRAINER}
    run = read(tmp_path, files, env={"PRIMUS_TP": "4"})
    assert (run.framework, run.fork) == ("primus", "")
    assert layout(run, "tp", "dp", "mbs", "gbs", "zero") == (4, 16, 2, 64, 1)
    assert run.doubts == ()
    assert layout(run, "recompute", "recompute_layers") == ("full", 2)
    model = run.model.document["model"] if run.model else {}
    assert (model["layers"], model["bias"], model["gated"]) == (8, False, True)


def test_an_experiment_whose_model_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"tiny\.yaml"):
        read(tmp_path, {"exp.yaml": PRIMUS})


FOREIGN = {
    "LLaMA-Factory": "model: some/model\ntrain_dataset: data.yaml\ninit_config:\n  name: x\n",
    "torchtune": "model:\n  _component_: torchtune.models.x\ntokenizer:\n  path: a\n",
    "GPT-NeoX": '# sizes\n{\n  "pipe-parallel-size": 1,\n  "num-layers": 12,\n'
    '  "zero_optimization": {"stage": 1}\n}\n',
    "NeMo": "trainer:\n  devices: 8\nexp_manager:\n  name: x\nmodel:\n  micro_batch_size: 4\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_files_of_other_trainers_are_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"{kind} file, which planner does not read yet"):
        read(tmp_path, {"run.yaml": FOREIGN[kind]})


def with_model(tmp_path: Path, script: str, model: str = "llama3-8b") -> Report:
    file = tmp_path / "run.sh"
    file.write_text(script)
    return check(file, cluster(1), model=model)


TRAINER_SCRIPT = (
    "torchrun --nproc_per_node=4 train.py --bf16 True --per_device_train_batch_size 2"
    " --gradient_accumulation_steps 4 --model_max_length 2048 --gradient_checkpointing True"
)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("more", "zero", "form"),
    [
        ("--fsdp 'full_shard auto_wrap'", 3, "FSDP1"),
        ("--fsdp shard_grad_op", 2, "FSDP1"),
        ("", 0, "DDP"),
    ],
)
def test_scripts_of_the_trainer(more: str, zero: int, form: str, tmp_path: Path) -> None:
    run = with_model(tmp_path, f"{TRAINER_SCRIPT} {more}\n").run
    assert run.format == f"Hugging Face Trainer launch script, {form}"
    assert layout(run, "zero", "dp", "mbs", "gbs") == (zero, 4, 2, 32)
    assert layout(run, "recompute") == ("full",)


@pytest.mark.usefixtures("quick")
def test_a_script_that_makes_its_own_deepspeed_configuration(tmp_path: Path) -> None:
    script = (
        "deepspeed --num_gpus 4 main.py --zero_stage 3 --per_device_train_batch_size 4"
        " --gradient_checkpointing --dtype bf16 --lora_dim 64\n"
    )
    run = with_model(tmp_path, script).run
    assert (run.framework, run.n_devices) == ("deepspeed", 4)
    assert layout(run, "zero", "mbs", "gbs") == (3, 4, 16)
    assert [doubt.what for doubt in run.doubts] == ["--zero_stage"]
    assert "lora_dim" in run.overestimated


@pytest.mark.usefixtures("quick")
def test_swift_on_megatron(tmp_path: Path) -> None:
    script = (
        "NPROC_PER_NODE=8 \\\nmegatron sft --model Some/Model --tensor_model_parallel_size 4"
        " --sequence_parallel true --recompute_granularity full --recompute_method uniform"
        " --recompute_num_layers 1 --max_length 4096 --no_save_optim true --packing true\n"
    )
    run = with_model(tmp_path, script).run
    assert run.n_devices == 8
    # Its defaults: a batch of 16, the distributed optimizer, bf16.
    assert layout(run, "tp", "dp", "gbs", "zero", "sp", "recompute") == (4, 2, 16, 1, True, "full")
    assert (run.job["seq_len"], run.job["precision"]) == (4096, "bf16")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/bin/bash\nif [ $# = 0 ]; then exit 1; fi\ntorchrun x.py\n", "CLUSTER -- bash"),
        ("llamafactory-cli train a.yaml\n#SBATCH x\n", "LLaMA-Factory"),
    ],
)
def test_scripts_that_cannot_be_read_say_what_to_do(
    script: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, {"run.sh": script})
    assert words in str(caught.value)


def test_a_variable_that_counts_all_devices(tmp_path: Path) -> None:
    text = f"NUM_GPUS=32\ndeepspeed --hostfile hosts pretrain_gpt.py {SIZES} {BATCH}\n"
    assert read(tmp_path, {"run.sh": text}).n_devices == 32
