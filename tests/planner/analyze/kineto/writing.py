"""Small traces in the format of pytorch/kineto libkineto/src/output_json.cpp, times in us."""

import json
from pathlib import Path
from typing import Any

GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NNT"
FLASH = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false>>(flash::Params)"
)
SILU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::silu_"
    "kernel(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul>>(int, T2, T3)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous"
    " namespace)::TensorListMetadata<4>, at::native::FusedAdamMathFunctor<float, 4>>(T1, T2)"
)
LOSS = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float>(T1*)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


class TraceWriter:
    """Collects rows as Kineto writes them; a launch row stands beside each kernel."""

    def __init__(self, rank: int | None = 0, world: int = 8) -> None:
        self.events: list[dict[str, Any]] = []
        self.header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0}]}
        if rank is not None:
            self.header["distributedInfo"] = {
                "backend": "nccl",
                "rank": rank,
                "world_size": world,
                "pg_count": 0,
                "pg_config": [],
            }
        self.rank = rank or 0
        self.count = 0

    def group(self, name: str, desc: str, ranks: list[int]) -> None:
        """Add a process group to the header."""
        self.header["distributedInfo"]["pg_config"].append(
            {
                "pg_name": name,
                "pg_desc": desc,
                "backend_config": "cuda:nccl",
                "pg_size": len(ranks),
                "ranks": ranks,
            }
        )

    def row(
        self, cat: str, name: str, at: float, dur: float, tid: int = 7, **args: Any
    ) -> dict[str, Any]:
        """Add any complete row."""
        event = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 0,
            "tid": tid,
            "ts": at,
            "dur": dur,
            "args": args,
        }
        self.events.append(event)
        return event

    def kernel(
        self,
        name: str,
        at: float,
        dur: float,
        stream: int = 7,
        launched: float | None = None,
        cat: str = "kernel",
        **args: Any,
    ) -> dict[str, Any]:
        """Add a kernel whose launch returned at `launched`, by default 10 us before it starts."""
        self.count += 1
        returned = at - 10.0 if launched is None else launched
        about = {"correlation": self.count, "device": 0, "cbid": 211}
        self.row("cuda_runtime", "cudaLaunchKernel", returned - 4.0, 4.0, tid=1, **about)
        more = {"device": 0, "context": 1, "stream": stream, "correlation": self.count, **args}
        return self.row(cat, name, at, dur, tid=stream, **more)

    def nccl(
        self,
        name: str,
        at: float,
        dur: float,
        *,
        collective: str,
        nelems: tuple[int, int],
        size: int,
        group: str = "1",
        desc: str = "",
        ranks: str = "",
        dtype: str = "BFloat16",
        stream: int = 20,
    ) -> dict[str, Any]:
        """Add a kernel of NCCL with what it inherits from record_param_comms."""
        args = {
            "Collective name": collective,
            "In msg nelems": nelems[0],
            "Out msg nelems": nelems[1],
            "Group size": size,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group,
        }
        args |= {"Process Group Description": desc} if desc else {}
        args |= {"Process Group Ranks": ranks} if ranks else {}
        return self.kernel(name, at, dur, stream, **args)

    def step(self, number: int, at: float, dur: float, *, device: bool = True) -> None:
        """Add a step on the host, 50 us ahead, and what the device did for it."""
        name = f"ProfilerStep#{number}"
        self.row("user_annotation", name, at - 50.0, dur, tid=1)
        if device:
            self.row("gpu_user_annotation", name, at, dur)

    def text(self) -> str:
        """Return the file."""
        head = json.dumps(self.header, indent=2)[:-2]
        rows = ",\n  ".join(json.dumps(event, indent=4) for event in self.events)
        return f'{head},\n  "traceEvents": [\n  {rows}\n  ],\n  "traceName": "t.json"\n}}'

    def write(self, path: Path) -> str:
        """Write the file, return its name."""
        path.write_text(self.text(), encoding="utf-8")
        return str(path)
