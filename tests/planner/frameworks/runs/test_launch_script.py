import shutil
import subprocess
from pathlib import Path

import pytest

from planner.errors import SpecError
from planner.frameworks.runs.launch_script import (
    LaunchCommand,
    looks_like_script,
    read_launch,
    sbatch_header,
)
from planner.frameworks.shell.marks import unmarked, unresolved
from tests.planner.frameworks.runs.published import DATA, scripts

SCRIPTS = DATA / "megatron"


def launch(text: str, **env: str) -> LaunchCommand:
    return read_launch(text, "x.sh", env)


@pytest.mark.parametrize(
    ("text", "world"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8 train.py", (4, 8, 32)),
        ("torchrun --nproc_per_node=8 train.py", (1, 8, 8)),
        ("torchrun --standalone --nnodes=1:4 --nproc_per_node 2 train.py", (4, 2, 8)),
        ("torchrun train.py --x 1", (1, 1, 1)),
        ("python -m torch.distributed.run --nnodes 2 --nproc_per_node 8 train.py", (2, 8, 16)),
        ("python3 -u -m torch.distributed.launch --nproc_per_node=4 t.py", (1, 4, 4)),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed ds.json", (2, 8, 16)),
        ("deepspeed --hostfile hf train.py", (None, None, None)),
        ("accelerate launch --num_processes 16 --num_machines 2 train.py", (2, 8, 16)),
        ("srun -N 4 --ntasks-per-node=8 python train.py", (4, 8, 32)),
        ("srun -n 64 --ntasks-per-node 8 python train.py", (8, 8, 64)),
        ("mpirun -np 16 python train.py", (None, None, 16)),
        ("WORLD_SIZE=4 python train.py", (None, None, 4)),
        (
            "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun torchrun --nnodes $SLURM_NNODES "
            "--nproc-per-node $SLURM_GPUS_ON_NODE train.py",
            (4, 8, 32),
        ),
        ("#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\nsrun python train.py", (2, 4, 8)),
        (
            "#SBATCH --nodes 2 # two\n#SBATCH --gres=gpu:h100:8\n"
            "torchrun --nnodes 2 --nproc-per-node gpu train.py",
            (2, 8, 16),
        ),
        (
            "#SBATCH --nodes=2\n#SBATCH --gpus-per-task=1\n#SBATCH --ntasks-per-node=8\n"
            "srun python train.py",
            (2, 8, 16),
        ),
        ("torchrun --nnodes $NNODES --nproc-per-node 8 train.py", (None, 8, None)),
    ],
)
def test_processes_by_launcher(text: str, world: tuple[int | None, ...]) -> None:
    found = launch(text)
    assert (found.n_nodes, found.per_node, found.n_devices) == world


def test_an_unknown_number_of_nodes_is_said() -> None:
    found = launch("torchrun --nnodes $NNODES --nproc-per-node 8 train.py")
    assert found.notes == (
        "x.sh: the number of nodes is ${NNODES}, which it does not set: the cluster's is taken",
    )
    assert launch("torchrun --nnodes $NNODES --nproc-per-node 8 t.py", NNODES="4").n_devices == 32


def test_sbatch_options_in_their_forms() -> None:
    text = "#!/bin/bash\n#SBATCH -N 4 --gres=gpu:8 -t 1:00\n#SBATCH --ntasks-per-node=8\n"
    assert sbatch_header(text) == {
        "nodes": "4",
        "gres": "gpu:8",
        "t": "1:00",
        "ntasks-per-node": "8",
    }


def test_the_training_command_among_others() -> None:
    text = (
        "python tools/preprocess_data.py --input a --workers 8\n"
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2\n"
        "python tools/checkpoint/convert.py --model-type GPT\n"
    )
    found = launch(text)
    assert (found.script, found.line, found.launcher) == ("pretrain_gpt.py", 2, "torchrun")
    assert found.argv == ("--num-layers", "2")


def test_of_several_like_it_the_last_and_it_is_said() -> None:
    text = "torchrun train.py --a 1\ntorchrun train.py --a 2\n"
    found = launch(text)
    assert found.argv == ("--a", "2")
    assert found.notes == ("x.sh: of 2 training commands the one of line 2",)


def test_a_module_in_place_of_a_script() -> None:
    found = launch("torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file a.toml")
    assert (found.script, found.argv) == ("torchtitan.train", ("--job.config_file", "a.toml"))


def test_redirections_and_pipes_end_the_words() -> None:
    assert launch("torchrun t.py --a 1 2>&1 | tee log.txt").argv == ("--a", "1")
    assert launch("eval 'torchrun t.py --a 1 > log 2>&1 &'").argv == ("--a", "1")


def test_variables_that_the_launch_itself_sets() -> None:
    for front in ("env A=1 B=x", "mpirun -np 8 -x A=1 -x B=x", "srun --export=ALL,A=1,B=x"):
        assert dict(launch(f"{front} python train.py --c d=3").env) == {"A": "1", "B": "x"}


def test_what_functions_print() -> None:
    text = """
size() { echo "--layers $1"; }
more() {
  cat <<EOF
--width 8
EOF
}
other() { echo "--from"; nvidia-smi; }
torchrun train.py $(size 4) $(more) $(other)
"""
    words = launch(text).argv
    assert words[:4] == ("--layers", "4", "--width", "8")
    assert [unmarked(word) for word in words[4:]] == ["$(other)"]


def test_only_flags() -> None:
    text = "--num-layers 2 --hidden-size 8 \\\n  --bf16 # comment\n--lr 1e-4\n"
    assert launch(text).argv == (
        "--num-layers",
        "2",
        "--hidden-size",
        "8",
        "--bf16",
        "--lr",
        "1e-4",
    )
    arrays = 'GPT_ARGS=(--num-layers 2)\nOTHER="--bf16 --lr 1"\nNAME=x\n'
    assert launch(arrays).argv == ("--num-layers", "2", "--bf16", "--lr", "1")
    assert launch("--num-layers 2", A="1").env == {"A": "1"}


def test_no_command_at_all() -> None:
    with pytest.raises(SpecError, match="no training command and no flags"):
        launch("#!/bin/bash\necho hello\n")


def test_which_texts_are_scripts() -> None:
    assert looks_like_script("#!/bin/bash\n")
    assert looks_like_script("--num-layers 2")
    assert looks_like_script("A=1\ntorchrun x.py --b 2")
    assert not looks_like_script("[training]\nseq_len = 8\n")
    assert not looks_like_script("model:\n  layers: 2\n")


STUBS = """
torchrun() { emit "$@"; }; deepspeed() { emit "$@"; }
emit() { local seen= w; for w in "$@"; do
  if [ -n "$seen" ]; then printf '%s\\037' "$w" >&3; fi
  case $w in *.py) seen=1 ;; esac
done; printf '\\036' >&3; }
mkdir() { :; }; scontrol() { :; }; srun() { :; }
exec 3>&1 1>/dev/null 2>&1
"""
RUNS_BY_ITSELF = ("torchrun", "deepspeed")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash to compare with")
@pytest.mark.parametrize("path", scripts(), ids=lambda p: p.name)
def test_whole_scripts_give_the_words_of_bash(path: Path, tmp_path: Path) -> None:
    """The training command is a function that prints; what is not set is empty in bash."""
    text = path.read_text()
    starts = any(line.startswith(RUNS_BY_ITSELF) for line in text.splitlines())
    if not starts or path.suffix != ".sh":
        pytest.skip("started by another program")
    for other in SCRIPTS.iterdir():
        (tmp_path / other.name).write_text(other.read_text())
    (tmp_path / "pretrain_gpt.py").write_text("")
    done = subprocess.run(
        ["bash", "-c", f"{STUBS}\n. ./{path.name}"],
        capture_output=True,
        text=True,
        timeout=20,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
    )
    calls = done.stdout.split("\036")[:-1]
    assert len(calls) == 1
    found = read_launch(text, path.name, None, lambda name: (SCRIPTS / name).read_text())
    ours = [w for w in found.argv if not unresolved(w)]
    # bash knows the folder it stands in; a word with it is not compared.
    theirs = [w for w in calls[0].split("\037")[:-1] if str(tmp_path) not in w]
    assert [w for w in ours if not unmarked(w).startswith("$")] == theirs
