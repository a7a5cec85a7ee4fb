#!/usr/bin/env python3
"""Times matrix products, attention, memory and collectives on this machine, for `planner`.

    python measure.py                                       one device, no collectives
    torchrun --nproc-per-node 8 measure.py                  one node
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \
        --rdzv-endpoint HOST0:29500 measure.py              on each of two nodes

Needs PyTorch and nothing else; GPUs of NVIDIA or AMD with nccl, or a CPU with gloo. Every device
is kept busy at the same time, as in training. Rank 0 writes measured.json, after every part, so
that what was timed before a failure is kept. Nothing waits for ever: a part that takes longer than
--part-limit ends the program on every rank (exit 4), and --limit ends all of it.

    planner calibrate --measured measured.json --out my-calibration.yaml
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

FORMAT = "planner-measured"
VERSION = 1
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
LOCAL_WORLD = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

# Rows x inner x columns of the products of transformer layers: 8192 tokens, hidden sizes 4096 to
# 8192 over tp 1 to 8, small inner lengths, and small products that show the cost of a kernel.
GEMM_SHAPES = [
    (8192, 8192, 8192),
    (8192, 4096, 4096),
    (8192, 4096, 14336),
    (8192, 14336, 4096),
    (8192, 8192, 1280),
    (8192, 1024, 8192),
    (8192, 8192, 3584),
    (8192, 3584, 8192),
    (4096, 4096, 4096),
    (4096, 5120, 5120),
    (16384, 4096, 12288),
    (2048, 4096, 4096),
    (8192, 512, 8192),
    (8192, 256, 8192),
    (8192, 128, 8192),
    (1024, 4096, 4096),
    (512, 4096, 1024),
    (256, 512, 512),
    (128, 128, 128),
]
ATTENTION_LENGTHS = [512, 1024, 2048, 4096, 8192, 16384]
ATTENTION_TOKENS, ATTENTION_HEADS, HEAD_DIM = 16384, 32, 128
COPY_BYTES = [2**i for i in (14, 18, 22, 26, 28, 30)]
MESSAGE_BYTES = [2**i for i in range(12, 31, 2)]
COLD_BYTES = 256 * 2**20
"""Operands of a product come in turn out of this much memory, more than any cache holds."""
BATCHES = 5
"""Batches of runs of one item; the median batch counts."""
GRAPH_RUNS, GRAPH_BELOW_S = 50, 100e-6
"""Kernels shorter than this are timed so many to a CUDA graph."""


class Watch:
    """Ends the process when a part takes too long: a collective whose peer died never returns."""

    def __init__(self, limit_s, part_limit_s):
        self.end, self.part_limit_s = time.monotonic() + limit_s, part_limit_s
        self.part, self.part_end = "start", time.monotonic() + part_limit_s
        threading.Thread(target=self._run, daemon=True).start()

    def enter(self, part):
        """Start the clock of a part."""
        self.part, self.part_end = part, time.monotonic() + self.part_limit_s
        say(part)

    def _run(self):
        while True:
            time.sleep(1.0)
            if time.monotonic() > min(self.end, self.part_end):
                sys.stderr.write(f"measure.py: rank {RANK}: no end of: {self.part}; given up\n")
                sys.stderr.flush()
                os._exit(4)


def say(text):
    """Print a line on rank 0."""
    if RANK == 0:
        print(text, flush=True)


class Timer:
    """Times a function on this rank's device."""

    def __init__(self, device, seconds):
        self.device, self.seconds = device, seconds

    def sync(self):
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def batch_s(self, run, n):
        """Return the time of `n` runs in a row, seconds."""
        if self.device.type != "cuda":
            start = time.perf_counter()
            for i in range(n):
                run(i)
            return time.perf_counter() - start
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for i in range(n):
            run(i)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    def count(self, run):
        """Warm up; return how many runs fill a batch and the time of one, both rank 0's."""
        for i in range(3):
            run(i)
        self.sync()
        once = agreed(max(self.batch_s(run, 2) / 2, 1e-7), self.device)
        return max(2, min(2000, int(self.seconds / BATCHES / once))), once

    def captured(self, run):
        """Return a function that runs `GRAPH_RUNS` of them as one CUDA graph; None if it cannot.

        Python launches a kernel in about as long as the smallest take; a graph shows the kernel.
        """
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for i in range(GRAPH_RUNS):
                    run(i)
            graph.replay()
            self.sync()
        except Exception:
            return None
        return lambda i: graph.replay()

    def median_s(self, run, in_graph=False):
        """Return the time of one run: the median over batches, seconds."""
        n, once = self.count(run)
        per = 1
        if in_graph and self.device.type == "cuda" and once < GRAPH_BELOW_S:
            many = self.captured(run)
            if everywhere(many is not None, self.device):
                run, per, n = many, GRAPH_RUNS, max(2, n // GRAPH_RUNS)
        return statistics.median(self.batch_s(run, n) / (n * per) for _ in range(BATCHES))


def agreed(number, device):
    """Return rank 0's number on every rank."""
    if WORLD == 1:
        return number
    shared = torch.tensor([number], dtype=torch.float64, device=device)
    dist.broadcast(shared, 0)
    return shared.item()


def over_ranks(value, device):
    """Return (median, largest) of a time over all ranks."""
    if WORLD == 1:
        return value, value
    mine = torch.tensor([value], dtype=torch.float64, device=device)
    every = [torch.zeros_like(mine) for _ in range(WORLD)]
    dist.all_gather(every, mine)
    values = [one.item() for one in every]
    return statistics.median(values), max(values)


def everywhere(ok, device):
    """Tell whether something went well on every rank."""
    if WORLD == 1:
        return ok
    good = torch.tensor([1.0 if ok else 0.0], device=device)
    dist.all_reduce(good, dist.ReduceOp.MIN)
    return good.item() > 0.5


def reason(error):
    """Return the first line of an exception, with its type."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def attempt(make, timer, left_out, what, in_graph=False):
    """Return the time of what `make` builds, or None where some rank cannot build or run it.

    All ranks build before any runs, and run once before any is timed, so that no rank waits for
    one that failed.
    """
    run, why = None, ""
    for stage in ("build", "run"):
        try:
            if stage == "build":
                run = make()
            else:
                run(0)
                timer.sync()
        except Exception as error:
            why = reason(error)
        if not everywhere(not why, timer.device):
            left_out.append({"what": what, "why": why or "failed on another rank"})
            run = None
            if timer.device.type == "cuda":
                torch.cuda.empty_cache()
            return None
    return timer.median_s(run, in_graph)


def heat(timer, seconds, size, dtype):
    """Keep the device busy, so that clocks are those of a long run, not of a cold start."""
    a = torch.randn(size, size, device=timer.device).to(dtype)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(10):
            torch.matmul(a, a)
        timer.sync()


def gemm_run(shape, precision, device):
    """Return a function that multiplies the i-th of several pairs of matrices."""
    m, k, n = shape
    if precision == "fp8":
        dtype, width = torch.float8_e4m3fn, 1
    else:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
        width = torch.finfo(dtype).bits // 8
    n_pairs = max(1, min(16, COLD_BYTES // (width * (m * k + k * n))))
    if device.type != "cuda":
        n_pairs = min(2, n_pairs)
    pairs = [
        (torch.randn(m, k, device=device).to(dtype), torch.randn(n, k, device=device).to(dtype))
        for _ in range(n_pairs)
    ]
    if precision == "fp8":
        one = torch.tensor(1.0, device=device)

        def run(i):
            a, b = pairs[i % n_pairs]
            torch._scaled_mm(
                a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
    else:

        def run(i):
            a, b = pairs[i % n_pairs]
            torch.matmul(a, b.t())

    return run


def time_gemms(timer, precisions, shapes, found, watch):
    """Time every shape in every precision."""
    for precision in precisions:
        watch.enter(f"matrix products, {precision}")
        for m, k, n in shapes:
            what = f"gemm {m}x{k}x{n} {precision}"
            mine = attempt(
                lambda m=m, k=k, n=n, p=precision: gemm_run((m, k, n), p, timer.device),
                timer,
                found["left_out"],
                what,
                in_graph=True,
            )
            if mine is None:
                continue
            time_s, _ = over_ranks(mine, timer.device)
            found["gemm"].append(
                {"rows": m, "inner": k, "columns": n, "precision": precision, "time_s": time_s}
            )


def attention_kernels(device):
    """Return the fused kernels that can be asked for, by the catalogue's names."""
    import torch.nn.functional as functional

    def plain(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if device.type != "cuda":
        return {"flash2": plain}

    def under(backend):
        from torch.nn.attention import sdpa_kernel

        def run(q, k, v):
            with sdpa_kernel(backend):
                return plain(q, k, v)

        return run

    kernels = {}
    from torch.nn.attention import SDPBackend

    kernels["flash2"] = under(SDPBackend.FLASH_ATTENTION)
    if hasattr(SDPBackend, "CUDNN_ATTENTION"):
        kernels["cudnn"] = under(SDPBackend.CUDNN_ATTENTION)
    try:
        from flash_attn_interface import flash_attn_func
    except Exception:
        return kernels

    def flash3(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = flash_attn_func(q, k, v, causal=True)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return {**kernels, "flash3": flash3}


def attention_runs(kernel, batch, heads, length, dtype, device):
    """Return functions that run the forward, and the forward with the backward."""
    size = (batch, heads, length, HEAD_DIM)
    q, k, v = (torch.randn(size, device=device).to(dtype).requires_grad_() for _ in range(3))
    grad = torch.randn(size, device=device).to(dtype)

    def forward(i):
        with torch.no_grad():
            kernel(q, k, v)

    def both(i):
        torch.autograd.grad(kernel(q, k, v), (q, k, v), grad)

    return forward, both


def time_attention(timer, tokens, heads, lengths, found, watch):
    """Time the causal attention core over sequence lengths at a fixed number of tokens."""
    device = timer.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for name, kernel in attention_kernels(device).items():
        watch.enter(f"attention, {name}")
        for length in lengths:
            batch = max(1, tokens // length)
            what = f"attention {name} at {length}"

            def make(which, kernel=kernel, batch=batch, length=length):
                return attention_runs(kernel, batch, heads, length, dtype, device)[which]

            one = attempt(lambda: make(0), timer, found["left_out"], what)
            two = one and attempt(lambda: make(1), timer, found["left_out"], f"{what}, backward")
            if not one or not two:
                continue
            forward_s, _ = over_ranks(one, device)
            both_s, _ = over_ranks(two, device)
            found["attention"].append(
                {
                    "kernel": name,
                    "batch": batch,
                    "heads": heads,
                    "length": length,
                    "head_dim": HEAD_DIM,
                    "causal": True,
                    "precision": "bf16" if device.type == "cuda" else "fp32",
                    "forward_s": forward_s,
                    "backward_s": max(both_s - forward_s, 0.0),
                }
            )


def time_memory(timer, sizes, found, watch):
    """Time a copy (two passes) and a triad (three) of arrays of several sizes."""
    watch.enter("memory")
    device = timer.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for size in sizes:
        n = size // torch.finfo(dtype).bits * 8

        def copy(n=n):
            a, b = (torch.ones(n, dtype=dtype, device=device) for _ in range(2))
            return lambda i: a.copy_(b)

        def triad(n=n):
            a, b, c = (torch.ones(n, dtype=dtype, device=device) for _ in range(3))
            return lambda i: torch.add(b, c, alpha=3.0, out=a)

        for kind, make, passes in (("copy", copy, 2), ("triad", triad, 3)):
            what = f"{kind} of {size} bytes"
            mine = attempt(make, timer, found["left_out"], what, in_graph=True)
            if mine is None:
                continue
            time_s, _ = over_ranks(mine, device)
            found["memory"].append({"kind": kind, "bytes": passes * size, "time_s": time_s})


def group_layouts():
    """Return the groups to time: (words, ranks of each group), all groups of one at once."""
    nodes, local = WORLD // LOCAL_WORLD, LOCAL_WORLD
    layouts = []
    size = 2
    while size < local:
        if local % size == 0:
            layouts.append(
                (
                    f"groups of {size} inside nodes",
                    [list(range(i, i + size)) for i in range(0, WORLD, size)],
                )
            )
        size *= 2
    if local > 1:
        layouts.append(
            ("whole nodes", [list(range(n * local, n * local + local)) for n in range(nodes)])
        )
    if nodes > 1:
        if local > 1:
            layouts.append(
                ("one rank per node", [list(range(i, WORLD, local)) for i in range(local)])
            )
        half = nodes // 2
        if half > 1 and nodes % 2 == 0:
            layouts.append(
                (
                    "half of the nodes",
                    [list(range(half * local)), list(range(half * local, WORLD))],
                )
            )
        layouts.append(("all ranks", [list(range(WORLD))]))
    return layouts


def collective_runs(name, ranks, group, size, dtype, device):
    """Return a function that runs one collective on a logical tensor of `size` bytes."""
    n = len(ranks)
    total = max(n, size // (torch.finfo(dtype).bits // 8) // n * n)
    whole = torch.zeros(total, dtype=dtype, device=device)
    if name == "all-reduce":
        return lambda i: dist.all_reduce(whole, group=group)
    if name in ("all-gather", "reduce-scatter"):
        part = torch.zeros(total // n, dtype=dtype, device=device)
        if name == "all-gather":  # renamed in torch 2.13
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            return lambda i: gather(whole, part, group=group)
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda i: scatter(part, whole, group=group)
    other = torch.zeros_like(whole)
    if name == "all-to-all":
        return lambda i: dist.all_to_all_single(other, whole, group=group)
    place = ranks.index(RANK)
    after, before = ranks[(place + 1) % n], ranks[(place - 1) % n]

    def send_receive(i):
        pair = [
            dist.P2POp(dist.isend, whole, after, group),
            dist.P2POp(dist.irecv, other, before, group),
        ]
        for request in dist.batch_isend_irecv(pair):
            request.wait()

    return send_receive


def time_collectives(timer, sizes, found, watch, timeout):
    """Time every collective over sizes, on every layout of groups; the slowest rank counts."""
    device = timer.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for words, groups in group_layouts():
        watch.enter(f"collectives, {words}: groups")
        mine = None
        for ranks in groups:
            made = dist.new_group(ranks, timeout=timeout)
            if RANK in ranks:
                mine, members = made, ranks
        n = len(members)
        n_nodes = len({rank // LOCAL_WORLD for rank in members})
        for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-receive"):
            watch.enter(f"collectives, {words}: {name}")
            for size in sizes:
                what = f"{name} of {size} bytes, {words}"
                taken = attempt(
                    lambda name=name, size=size, members=members, mine=mine: collective_runs(
                        name, members, mine, size, dtype, device
                    ),
                    timer,
                    found["left_out"],
                    what,
                )
                if taken is None:
                    break
                _, slowest = over_ranks(taken, device)
                found["collectives"].append(
                    {
                        "collective": name,
                        "n_ranks": n,
                        "n_nodes": n_nodes,
                        "busy_per_node": LOCAL_WORLD,
                        "size_bytes": size,
                        "time_s": slowest,
                    }
                )
        dist.destroy_process_group(mine)
        write(found)


def clocks(device):
    """Return what nvidia-smi says of this device; nothing where there is none."""
    if device.type != "cuda" or torch.version.hip:
        return {}
    asked = "clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu,driver_version"
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    which = f"GPU-{uuid}" if uuid else str(device.index)
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader,nounits", "-i", which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(asked.split(","), (x.strip() for x in done.stdout.split(",")), strict=False))


def provenance(device, backend):
    """Return where and with what the times were taken."""
    cuda = device.type == "cuda"
    nccl = ""
    if cuda and backend == "nccl":
        version = torch.cuda.nccl.version()
        nccl = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),  # noqa: UP017
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU {platform.machine()}",
        "n_nodes": WORLD // LOCAL_WORLD,
        "devices_per_node": LOCAL_WORLD,
        "backend": backend if WORLD > 1 else "",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or torch.version.hip or "",
        "nccl": nccl,
        "python": platform.python_version(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith("NCCL_") and "SECRET" not in name
        },
    }
    if cuda:
        properties = torch.cuda.get_device_properties(device)
        facts["memory_bytes"] = properties.total_memory
        facts["multiprocessors"] = properties.multi_processor_count
    return facts


def write(found):
    """Write the file on rank 0, whole or not at all."""
    if RANK == 0:
        partial = found["out"] + ".partial"
        with open(partial, "w", encoding="utf-8") as stream:
            json.dump({k: v for k, v in found.items() if k != "out"}, stream, indent=1)
            stream.write("\n")
        os.replace(partial, found["out"])


def parsed():
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="measured.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is one")
    parser.add_argument("--backend", choices=("nccl", "gloo"), help="nccl on GPUs, else gloo")
    parser.add_argument("--skip", default="", metavar="gemm,attention,memory,collectives")
    parser.add_argument("--quick", action="store_true", help="small sizes: a test of the set-up")
    parser.add_argument("--max-bytes", type=int, default=2**30, help="largest message (1 GiB)")
    parser.add_argument("--seconds", type=float, default=0.25, help="time spent on each item")
    parser.add_argument("--heat", type=float, default=20.0, help="warm-up of GPUs, seconds")
    parser.add_argument("--limit", type=float, default=3600.0, help="longest run, seconds")
    parser.add_argument("--part-limit", type=float, default=600.0, help="longest part, seconds")
    args = parser.parse_args()
    args.skip = {part for part in args.skip.split(",") if part}
    if wrong := args.skip - {"gemm", "attention", "memory", "collectives"}:
        parser.error(f"--skip: no part is called {', '.join(sorted(wrong))}")
    return args


def main():
    """Time all parts and write the file."""
    args = parsed()
    watch = Watch(args.limit, args.part_limit)
    kind = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and torch.cuda.device_count() <= LOCAL_RANK:
        sys.exit(f"measure.py: rank {RANK}: {torch.cuda.device_count()} GPUs are visible here")
    if WORLD % LOCAL_WORLD:
        sys.exit("measure.py: nodes with different numbers of processes; start as many on each")
    device = torch.device(kind, LOCAL_RANK) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // LOCAL_WORLD))
    backend = args.backend or ("nccl" if kind == "cuda" else "gloo")
    timeout = datetime.timedelta(seconds=args.part_limit)
    if WORLD > 1:
        dist.init_process_group(backend, timeout=timeout)
    small = args.quick or kind == "cpu"
    timer = Timer(device, min(args.seconds, 0.05) if args.quick else args.seconds)
    found = {
        "format": FORMAT,
        "version": VERSION,
        "complete": False,
        "provenance": provenance(device, backend),
        "gemm": [],
        "attention": [],
        "memory": [],
        "collectives": [],
        "left_out": [],
        "out": args.out,
    }
    if "collectives" not in args.skip and WORLD > 1:
        most = min(args.max_bytes, 2**20 if small else args.max_bytes)
        time_collectives(timer, [n for n in MESSAGE_BYTES if n <= most], found, watch, timeout)
    if "memory" not in args.skip:
        sizes = [n for n in COPY_BYTES if n <= (2**26 if small else 2**30)]
        time_memory(timer, sizes, found, watch)
        write(found)
    if kind == "cuda" and not {"gemm", "attention"} <= args.skip:
        watch.enter("warm-up")
        heat(timer, 1.0 if args.quick else args.heat, 8192, torch.bfloat16)
        found["provenance"]["under_load"] = clocks(device)
    if "gemm" not in args.skip:
        shapes = GEMM_SHAPES
        if small:
            shapes = sorted({tuple(max(32, x // 16) for x in shape) for shape in GEMM_SHAPES})
        precisions = ("bf16", "fp16", "fp8") if kind == "cuda" else ("fp32",)
        time_gemms(timer, precisions, shapes, found, watch)
        write(found)
    if "attention" not in args.skip:
        lengths = [n for n in ATTENTION_LENGTHS if n <= (1024 if small else 16384)]
        tokens, heads = (1024, 4) if small else (ATTENTION_TOKENS, ATTENTION_HEADS)
        time_attention(timer, tokens, heads, lengths, found, watch)
    found["complete"] = True
    write(found)
    watch.enter("end")
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()
    say(f"wrote {args.out}: planner calibrate --measured {args.out} --out my-calibration.yaml")


if __name__ == "__main__":
    main()
