"""Logs of four frameworks: formats, warm-up, restarts, memory, what is cut short."""

import pytest

from planner.measure.trial.logs import MIN_STEPS, Reading, read_log
from planner.units import GIB

MIB = 2.0**20
TOKENS, GBS, DEVICES = 512 * 4096.0, 512, 64


def read(text: str) -> Reading:
    return read_log(text, TOKENS, GBS, DEVICES)


def megatron(step: int, seconds: float, gbs: int = GBS) -> str:
    return (
        f" [2026-01-02 03:04:05.678901] iteration {step:8d}/      25 | consumed samples: "
        f"{step * gbs:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} | throughput "
        f"per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.500000E-04 | global batch size: "
        f"{gbs:5d} | lm loss: 1.123456E+01 | loss scale: 1.0 | grad norm: 3.2 |"
    )


SLOW_START = [9.0, 4.0, 3.0, 2.5, 2.0, 2.0, 2.01, 1.99, 2.0, 2.02, 1.98, 2.0]


def test_megatron() -> None:
    lines = [megatron(i, s) for i, s in enumerate(SLOW_START, 1)]
    lines.insert(
        2,
        "[Rank 1] (after 2 iterations) memory (MB) | allocated: 20000.5 | max allocated: 41000.25 "
        "| reserved: 45000.0 | max reserved: 46000.0",
    )
    lines.insert(2, lines[2].replace("Rank 1", "Rank 0").replace("46000.0", "44000.0"))
    found = read("\n".join(lines))
    assert found.printed_by == "megatron"
    assert found.n_warm_up == 4
    assert found.step_s == pytest.approx(2.0)
    assert found.spread < 0.02
    assert found.peak == (46000.0 * MIB, "reserved")
    assert found.peaks["allocated"] == 41000.25 * MIB
    assert len(found.ranks) == 2
    assert found.facts == {"gbs": 512}
    assert found.notes == ()


def test_the_mean_that_a_fork_prints_beside_it_is_not_the_step() -> None:
    lines = [megatron(i, 2.0).replace("2000.0 |", "2000.0/9000.0 |") for i in range(1, 10)]
    assert read("\n".join(lines)).step_s == 2.0


def test_arguments_of_megatron_are_facts() -> None:
    dots = "." * 20
    text = (
        f"  global_batch_size {dots} 512\n  seq_length {dots} 4096\n  micro_batch_size {dots} 2\n"
        f"  tensor_model_parallel_size {dots} 8\n  world_size {dots} 64\n"
        f"  decoder_seq_length {dots} None\n"
    )
    assert read(text).facts == {
        "gbs": 512,
        "seq_len": 4096,
        "mbs": 2,
        "tp": 8,
        "n_devices": 64,
    }


def test_torchtitan_in_colour_on_several_ranks() -> None:
    # 512 * 4096 tokens on 64 devices in 2 s: 16,384 tokens a second and device.
    line = (
        "[rank{rank}]:[titan] 2026-01-02 03:04:05,678 - root - INFO - \x1b[31mstep: {step:2}  "
        "\x1b[32mloss: 12.2440  \x1b[38;2;180;60;0mgrad_norm:  2.1  \x1b[36mmemory: {gib:5.2f}GiB"
        "(58.50%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 412.50  \x1b[35mmfu: 41.71%\x1b[39m"
    )
    lines = [
        "[titan] - root - INFO - Trainer is initialized with local batch size 8, global batch "
        "size 512, gradient accumulation steps 1, sequence length 4096, total steps 25 (warmup 2)"
    ]
    for step in range(1, 13):
        for rank in (0, 1):
            tps = 2000 if step == 1 else 16384
            lines.append(line.format(rank=rank, step=step, gib=40 + rank, tps=tps))
    found = read("\n".join(lines))
    assert found.printed_by == "torchtitan"
    assert len(found.steps_s) == 12
    assert found.step_s == pytest.approx(2.0)
    assert found.peak == (41 * GIB, "reserved")
    assert len(found.ranks) == 2
    assert (found.facts["gbs"], found.facts["seq_len"]) == (512, 4096)


def test_deepspeed_samples_per_second() -> None:
    lines = [
        f"[2026-01-02 03:04:05,678] [INFO] [timer.py:264:stop] epoch=0/micro_step={8 * i}/"
        f"global_step={i}, RunningAvgSamplesPerSec=250.1, CurrSamplesPerSec={256.0}, "
        "MemAllocated=20.5GB, MaxMemAllocated=41.25GB"
        for i in range(2, 14)
    ]
    found = read("\n".join(lines))
    assert found.step_s == pytest.approx(2.0)
    assert found.peak == (41.25 * GIB, "allocated")
    doubled = "[config.py:1003:print]   train_batch_size ............. 1024\n"
    assert read(doubled + "\n".join(lines)).step_s == pytest.approx(4.0)


def test_deepspeed_pipelines_and_breakdowns() -> None:
    pipe = [
        f"steps: {i} loss: 5.5508 iter time (s): 2.004 samples/sec: 255.5" for i in range(1, 9)
    ]
    assert read("\n".join(pipe)).step_s == pytest.approx(2.004)
    parts = [
        "[Rank 0] time (ms) | fwd_microstep: 10.0 | bwd_microstep: 20.0 | step_microstep: 1.0\n"
        "[Rank 0] time (ms) | fwd: 600.00 | bwd: 1200.00 | bwd_inner: 1100.00 | bwd_allreduce: "
        "100.00 | step: 200.00"
    ] * 8
    assert read("\n".join(parts)).step_s == pytest.approx(2.0)
    memory = "MA 5.2 GB         Max_MA 10.1 GB         CA 11.0 GB         Max_CA 12 GB"
    assert read(memory).peak == (12 * GIB, "reserved")


def test_breakdowns_do_not_hide_the_whole_step() -> None:
    lines = []
    for i in range(2, 12):
        lines.append(f"global_step={i}, RunningAvgSamplesPerSec=2, CurrSamplesPerSec=256.0, x")
        lines.append("time (ms) | fwd: 600.00 | bwd: 1200.00 | step: 100.00")
    assert read("\n".join(lines)).step_s == pytest.approx(2.0)


@pytest.mark.parametrize("key", ["elapsed_time_per_iteration_ms", "time_per_iteration_ms"])
def test_nanotron(key: str) -> None:
    lines = [
        f"01/02/2026 03:04:05 [INFO|DP=0|PP=1|TP=0|ip-10]: iteration: {i} / 25 | consumed_tokens: "
        f"{i * 2.1:.1f}M | {key}: 2K | tokens_per_sec: 1.05M | tokens_per_sec_per_gpu: 16.4K | "
        "global_batch_size: 512 | lm_loss: 10.9 | lr: 0.0003 | model_tflops_per_gpu: 380"
        for i in range(1, 13)
    ]
    lines.append(
        " Memory usage: 20000.00MiB. Peak allocated 30000.00MiB. Peak reserved: 31000.00MiB"
    )
    found = read("\n".join(lines))
    assert found.printed_by == "nanotron"
    assert found.step_s == pytest.approx(2.0)
    assert found.peak == (31000 * MIB, "reserved")
    assert found.facts["gbs"] == 512


def test_of_several_runs_in_one_log_the_last_is_read() -> None:
    first = [megatron(i, 5.0) for i in range(1, 20)]
    second = [megatron(i, 2.0) for i in range(1, 12)]
    found = read("\n".join([*first, "torch.OutOfMemoryError: CUDA out of memory.", *second]))
    assert found.step_s == 2.0
    assert not found.ran_out
    assert "holds 2 runs" in found.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "RuntimeError: CUDA error: out of memory",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 4.00 GiB",
    ],
)
def test_out_of_memory(line: str) -> None:
    found = read("\n".join([*(megatron(i, 2.0) for i in range(1, 9)), line]))
    assert found.ran_out
    assert found.step_s is None


def test_a_log_cut_short_gives_no_time() -> None:
    found = read("\n".join(megatron(i, 2.0) for i in range(1, MIN_STEPS)))
    assert found.step_s is None
    assert "cut short" in found.notes[0]
    half = "\n".join(megatron(i, 2.0) for i in range(1, 12))[:-150]
    assert read(half).step_s == 2.0


def test_an_unsteady_run_is_doubted() -> None:
    text = "\n".join(megatron(i, 2.0 if i % 2 else 3.0) for i in range(1, 26))
    found = read(text)
    assert found.step_s is not None
    assert "time more steps" in found.notes[0]


def test_a_file_that_is_no_log() -> None:
    found = read("#!/usr/bin/env bash\necho iteration\n")
    assert found.printed_by == ""
    assert "no step line" in found.notes[0]


def test_one_log_of_two_frameworks_says_so() -> None:
    titan = [f"step: {i} loss: 1.0 memory: 40.0GiB(50%) tps: 16,384 x" for i in range(1, 5)]
    found = read("\n".join([*(megatron(i, 2.0) for i in range(1, 12)), *titan]))
    assert found.printed_by == "megatron"
    assert "torchtitan" in " ".join(found.notes)


OUT_OF_MEMORY = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
MEMORY = "[Rank 0] (after 2 iterations) memory (MB) | max allocated: 1.0 | max reserved: {}"


def test_an_attempt_after_one_out_of_memory_counts() -> None:
    first = [MEMORY.format(79000.0), megatron(1, 9.0), OUT_OF_MEMORY]
    found = read(
        "\n".join(first + [megatron(i, 2.0) for i in range(1, 26)] + [MEMORY.format(5.0)])
    )
    assert not found.ran_out
    assert found.step_s == 2.0
    assert found.peaks["reserved"] == 5.0 * MIB
    assert "memory ran out at first" in found.notes[0]


def test_a_late_line_of_another_rank_does_not_undo_the_end_of_memory() -> None:
    lines = [MEMORY.format(79000.0), *(megatron(i, 2.0) for i in range(1, 12)), OUT_OF_MEMORY]
    found = read("\n".join([*lines, megatron(11, 2.0), megatron(12, 2.0)]))
    assert found.ran_out
    assert found.step_s is None
    assert found.peaks["reserved"] == 79000.0 * MIB


def test_memory_that_ran_out_again_at_the_end_is_out() -> None:
    lines = [OUT_OF_MEMORY, *(megatron(i, 2.0) for i in range(1, 12)), OUT_OF_MEMORY]
    assert read("\n".join(lines)).ran_out


def test_seconds_of_bigscience() -> None:
    lines = [megatron(i, 0.002).replace("(ms)", "(s)") for i in range(1, 12)]
    assert read("\n".join(lines)).step_s == 2.0


@pytest.mark.parametrize("word", ["0.0", "1e400", "nan"])
def test_a_time_that_is_none_is_passed_over(word: str) -> None:
    lines = [megatron(i, 2.0).replace("2000.0", word) for i in range(1, 12)]
    assert read("\n".join(lines)).steps_s == ()


def test_validation_of_torchtitan_is_no_step() -> None:
    line = "{}step: {:2d}  loss:  8.1  memory: 46.28GiB(58.50%)  tps: {}  tflops: 52.1"
    lines = [line.format("", i, "1,000") for i in range(1, 21)]
    lines[5::5] = [f"{one}\n{line.format('validate ', 6, '9,000')}" for one in lines[5::5]]
    found = read("\n".join(lines))
    assert set(found.steps_s) == {TOKENS / (1000 * DEVICES)}


def test_world_size_of_deepspeed_may_be_that_of_its_replicas() -> None:
    dots = "." * 20
    line = f"[2024-01-01 00:00:00,000] [INFO] [config.py:1001:print]   world_size {dots} 8"
    assert "n_devices" not in read(line).facts
    assert read(f"  world_size {dots} 8").facts == {"n_devices": 8}
