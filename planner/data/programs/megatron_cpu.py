"""Stands in for a GPU, so that Megatron-LM and Megatron-Bridge train on CPU processes over gloo.

Only for a smoke run: what is trained, how it is split and what is sent stay Megatron's own.
Replaced is what needs a device or a kernel library:

  torch.cuda        streams, events, memory figures and generators that do nothing or are the CPU's
  device "cuda"     every tensor that is asked for there lies on the CPU
  norms             torch.nn.RMSNorm and LayerNorm, marked for sequence parallelism, in place of
                    Transformer Engine's
  attention         over context-parallel ranks: keys and values gathered from all of them, in
                    place of Transformer Engine's exchange; on one rank Megatron's own
  collectives       an average, which gloo does not have, is a sum and a division; what is sent
                    is kept until it is sent
  storage sharing   a copy, in place of a C++ extension (recomputed norms)
"""

import os
import signal
import socket
import sys
import traceback
import typing
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Megatron compiles small functions: minutes on a CPU
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not hasattr(typing, "override"):  # Python 3.11; megatron-core 0.19 asks for 3.12
    typing.override = lambda method: method  # type: ignore[assignment]

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

ARCH = (9, 0)
"""Compute capability that is claimed: a Hopper, so that no option of the plan is refused."""


class Nothing:
    """A stream, event or pool of a device that is not there."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: self

    def __enter__(self) -> "Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def elapsed_time(self, _: object) -> float:
        """Milliseconds between two events."""
        return 0.0


def _is_cuda(value: object) -> bool:
    return isinstance(value, (torch.device, str)) and str(value).startswith("cuda")


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class OnCpu(TorchFunctionMode):
    """Puts on the CPU whatever is asked for on a GPU."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if getattr(func, "__self__", None) is torch.Tensor.is_cuda:
            return True
        index = func is torch.Tensor.to
        args = tuple("cpu" if _is_cuda(x) or (index and _is_index(x)) else x for x in args)
        if _is_cuda(kwargs.get("device")) or _is_index(kwargs.get("device")):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")  # by this Megatron knows main weights
        return result


def _fake_cuda() -> None:
    """Put functions that do nothing, or speak of the CPU, in place of those of `torch.cuda`."""
    properties = SimpleNamespace(
        major=ARCH[0], minor=ARCH[1], name="cpu", total_memory=80 << 30, multi_processor_count=132
    )
    zero = lambda *_, **__: 0  # noqa: E731
    nothing = lambda *_, **__: None  # noqa: E731
    cuda: Any = torch.cuda
    values: dict[str, object] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: ARCH,
        "get_device_name": lambda *_: "cpu",
        "mem_get_info": lambda *_: (80 << 30, 80 << 30),
        "memory_stats": lambda *_: dict.fromkeys(_MEMORY_STATS, 0),
        "default_generators": (torch.default_generator,),
        "get_rng_state": lambda *_, **__: torch.default_generator.get_state(),
        "set_rng_state": lambda state, *_, **__: torch.default_generator.set_state(state),
        "stream": lambda *_: nullcontext(),
        "device": lambda *_: nullcontext(),
        "use_mem_pool": lambda *_, **__: nullcontext(),
        "current_stream": Nothing,
        "default_stream": Nothing,
        "cudart": Nothing,
    }
    values |= dict.fromkeys(("Stream", "Event", "MemPool"), Nothing)
    values |= dict.fromkeys(
        ("manual_seed", "manual_seed_all", "synchronize", "set_device"), nothing
    )
    values |= dict.fromkeys(("set_stream", "empty_cache", "reset_peak_memory_stats"), nothing)
    values |= dict.fromkeys(_FIGURES, zero)
    values["is_current_stream_capturing"] = lambda: False
    for name, value in values.items():
        setattr(cuda, name, value)
    for name in ("get_rng_state", "set_rng_state"):
        setattr(cuda.random, name, values[name])
    for kind in ("Float", "Half", "BFloat16", "Double", "Int", "Long", "Byte"):
        setattr(cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, nothing)
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        setattr(torch.optim.Optimizer, name, nothing)  # it asks the driver
    torch.Tensor.record_stream = nothing  # type: ignore[assignment, method-assign]


_FIGURES = (
    "memory_allocated",
    "memory_reserved",
    "max_memory_allocated",
    "max_memory_reserved",
    "device_memory_used",
    "utilization",
    "power_draw",
    "temperature",
    "clock_rate",
)
_MEMORY_STATS = (
    *tuple(
        f"{kind}.all.{when}"
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "allocation", "segment")
        for when in ("current", "peak", "allocated", "freed")
    ),
    "num_alloc_retries",
    "num_ooms",
)


class Scaled(float):
    """A sum of what every rank multiplies by this factor first."""


def _unlike(tensors: Sequence[torch.Tensor]) -> bool:
    return len({tensor.shape for tensor in tensors}) > 1


def _gathering_unlike_sizes(gather: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `all_gather` of tensors of any sizes: a broadcast from each rank."""

    def call(outputs: Any, tensor: torch.Tensor, group: Any = None, **kwargs: Any) -> Any:
        if not _unlike(outputs):
            return gather(outputs, tensor, group=group, **kwargs)
        for rank, output in zip(dist.get_process_group_ranks(group), outputs, strict=True):
            if rank == dist.get_rank():
                output.copy_(tensor)
            if output.numel():
                dist.broadcast(output, rank, group=group)
        return Nothing()

    return call


def _scattering_unlike_sizes(scatter: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `reduce_scatter` of tensors of any sizes: a sum for each rank."""

    def call(output: torch.Tensor, inputs: Any, group: Any = None, **kwargs: Any) -> Any:
        if not _unlike(inputs):
            return scatter(output, inputs, group=group, **kwargs)
        for rank, part in zip(dist.get_process_group_ranks(group), inputs, strict=True):
            total = part.clone()
            if total.numel():
                dist.all_reduce(total, group=group)
            if rank == dist.get_rank():
                output.copy_(total)
        return Nothing()

    return call


def _gloo_as_nccl() -> None:
    """Let averages be sums of parts, sizes differ, and what is sent live until it is sent.

    Gloo neither averages nor scales, and gathers like sizes only. Megatron frees an output while
    it is being sent, which is safe on a stream of a GPU alone; a second tensor over the same
    memory keeps it.
    """

    def scaling_first(collective: Callable[..., Any], at: int, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            op = kwargs.get("op", dist.ReduceOp.SUM)
            if op == dist.ReduceOp.AVG:
                op = Scaled(1 / dist.get_world_size(kwargs.get("group")))
            if isinstance(op, Scaled):
                kwargs["op"] = dist.ReduceOp.SUM
                (kwargs[name] if name in kwargs else args[at]).mul_(op)
            return collective(*args, **kwargs)

        return call

    dist.all_reduce = scaling_first(dist.all_reduce, 0, "tensor")
    dist.reduce_scatter_tensor = scaling_first(dist.reduce_scatter_tensor, 1, "input")
    dist._make_nccl_premul_sum = Scaled
    dist.all_gather = _gathering_unlike_sizes(dist.all_gather)
    dist.reduce_scatter = _scattering_unlike_sizes(dist.reduce_scatter)
    isend = dist.isend

    def isend_kept(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return isend(tensor.detach(), *args, **kwargs)

    dist.isend = dist.distributed_c10d.isend = isend_kept


def marked_norm(_: type, config: Any, hidden_size: int, eps: float = 1e-5, **__: object) -> Any:
    """Return torch's norm, its weights marked where Megatron has to sum their gradients."""
    rms = config.normalization == "RMSNorm"
    norm = (torch.nn.RMSNorm if rms else torch.nn.LayerNorm)(hidden_size, eps=eps)
    for weight in norm.parameters():
        weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def _gather_sequence(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Return keys or values of all context-parallel ranks in the order of the sequence.

    Rank r of n holds chunks r and 2n - 1 - r of 2n, so that all have equal work.
    """
    from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region

    n = dist.get_world_size(group)
    chunks = gather_from_sequence_parallel_region(tensor, group=group).chunk(2 * n)
    order = [2 * chunk if chunk < n else 4 * n - 1 - 2 * chunk for chunk in range(2 * n)]
    return torch.cat([chunks[at] for at in order])


def _attention_over_ranks(base: type) -> None:
    """Let Megatron's own attention take latent heads, and keys of all context-parallel ranks."""
    build, attend = base.__init__, base.forward  # type: ignore[misc]

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("k_channels", None)
        width = kwargs.pop("v_channels", None)
        n_ranks, config.context_parallel_size = config.context_parallel_size, 1
        build(self, config, *args, **kwargs)
        config.context_parallel_size = n_ranks
        if width:
            self.hidden_size_per_partition = width * self.num_attention_heads_per_partition

    def forward(self: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        from megatron.core.parallel_state import get_context_parallel_group

        if self.config.context_parallel_size > 1:
            group = get_context_parallel_group()
            key, value = (_gather_sequence(x, group).contiguous() for x in (key, value))
        return attend(self, query, key.contiguous(), value.contiguous(), *args, **kwargs)

    base.__init__, base.forward = __init__, forward  # type: ignore[misc, attr-defined]


def build_helpers() -> None:
    """See that the compiled helpers of Megatron's data sets are there.

    The wheel brings them for Python 3.12; for another one its helpers.cpp is built beside them.
    """
    import importlib
    import subprocess
    import sysconfig

    import megatron.core.datasets as datasets

    try:
        importlib.import_module("megatron.core.datasets.helpers_cpp")
        return
    except ImportError:
        import pybind11
    folder = datasets.__path__[0]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    include = [f"-I{sysconfig.get_path('include')}", f"-I{pybind11.get_include()}"]
    command = ["g++", "-O2", "-shared", "-std=c++17", "-fPIC", *include, "helpers.cpp"]
    subprocess.run([*command, "-o", f"helpers_cpp{suffix}"], cwd=folder, check=True)
    importlib.invalidate_caches()


def _replace_layers() -> None:
    """Put what needs no kernels in place of layers of megatron-core; call it before a model."""
    from megatron.core.datasets import utils
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    torch_norm.WrappedTorchNorm.__new__ = marked_norm
    _attention_over_ranks(DotProductAttention)
    utils.compile_helpers = lambda: None  # it wants a checkout; see build_helpers
    random._lazy_call = lambda function, **_: function()

    def copy_storage(to: torch.Tensor, of: torch.Tensor) -> None:
        to.untyped_storage().resize_(of.untyped_storage().nbytes())
        to.untyped_storage().copy_(of.untyped_storage())

    if hasattr(random, "_get_share_storage"):
        random._get_share_storage = lambda: copy_storage


@contextmanager
def no_gpu() -> typing.Iterator[None]:
    """Within it Megatron finds a GPU that is the CPU."""
    _fake_cuda()
    _replace_layers()
    with OnCpu():
        yield


def run_ranks(
    n_ranks: int,
    rank_main: Callable[[], None],
    node: int = 0,
    per_node: int = 0,
    address: str = "127.0.0.1",
    port: int = 0,
) -> int:
    """Run `rank_main` in one process a rank; return the worst exit status.

    All ranks, or with `per_node` those of one node, which meet the others at an address and port.
    Processes are forked, since importing takes longer than training. They find what `torchrun`
    would tell them in their environment. Once one fails, the others are ended.
    """
    if "RANK" in os.environ:  # torchrun started this process
        rank_main()
        return 0
    sys.stdout.flush()
    if not port:
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
    n_here = per_node or n_ranks
    os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
    os.environ.update(WORLD_SIZE=str(n_ranks), LOCAL_WORLD_SIZE=str(n_here))
    os.environ["GROUP_RANK"] = str(node)
    first = node * n_here
    pids = {_forked(rank, rank - first, rank_main): rank for rank in range(first, first + n_here)}
    worst = 0
    while pids:
        pid, status = os.wait()
        rank = pids.pop(pid, None)
        if status and not worst:
            worst = os.waitstatus_to_exitcode(status)
            sys.stderr.write(f"smoke: rank {rank} ended with {worst}\n")
            for other in pids:
                os.kill(other, signal.SIGTERM)
    return worst


def _forked(rank: int, local_rank: int, rank_main: Callable[[], None]) -> int:
    """Return the process id of a child that runs one rank."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(local_rank))
        rank_main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


_gloo_as_nccl()  # before Megatron is imported: it keeps some of the functions
