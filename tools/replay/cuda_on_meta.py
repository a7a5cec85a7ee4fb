"""Lets code that was written for a GPU run on meta tensors: a torch.cuda that is not there.

Every device that Megatron-Core asks for is the meta device, so that tensors have sizes and no
contents; streams and events do nothing; numbers that are read back are constants.
"""

import contextlib
import types

import torch

META = torch.device("meta")


class Nothing:
    """A stream or an event: waits for nothing, records nothing."""

    cuda_stream = 0

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: self

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return None

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def install(arch=9):
    """Replace torch.cuda and what reads the contents of a tensor."""
    nothing = Nothing()
    properties = types.SimpleNamespace(
        major=arch, minor=0, name="meta", total_memory=80 << 30, multi_processor_count=132
    )
    cuda = torch.cuda
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: True
    cuda.is_current_stream_capturing = lambda: False
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: META
    cuda.set_device = lambda *args: None
    cuda.get_device_properties = lambda *args, **kwargs: properties
    cuda.get_device_capability = lambda *args, **kwargs: (arch, 0)
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: nothing
    cuda.Stream = cuda.Event = Nothing
    cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.synchronize = cuda.empty_cache = lambda *args, **kwargs: None
    cuda.manual_seed = cuda.manual_seed_all = lambda *args, **kwargs: None
    cuda.get_rng_state = lambda *args, **kwargs: torch.zeros(16, dtype=torch.uint8)
    cuda.set_rng_state = lambda *args, **kwargs: None
    cuda.random.get_rng_state = cuda.get_rng_state
    cuda._lazy_call = lambda *args, **kwargs: None
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        setattr(cuda, name, lambda *args, **kwargs: 0)
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *args, **kwargs: None
    torch.accelerator.current_stream = cuda.current_stream
    torch.accelerator.current_device_index = lambda: 0
    torch.optim.Optimizer._accelerator_graph_capture_health_check = lambda self: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self.to(META)
    torch.nn.Module.cuda = lambda self, *args, **kwargs: self.to(META)
    torch.compile = lambda function=None, **options: function or (lambda own: own)
    for name in (
        "tensor",
        "empty",
        "zeros",
        "ones",
        "full",
        "arange",
        "rand",
        "randn",
        "as_tensor",
    ):
        setattr(torch, name, _on_meta(getattr(torch, name)))
    for name, dtype in TYPES.items():
        setattr(cuda, name, _TensorType(name, (), {"dtype": dtype}))
    torch.Tensor.to = _on_meta(torch.Tensor.to)
    _read_constants()


TYPES = {
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ByteTensor": torch.uint8,
}
"""Types of tensors on a GPU that frameworks ask for by name."""


class _TensorType(type):
    """Such a type: makes meta tensors, and takes those of its dtype for its own."""

    def __call__(cls, *args):
        return torch.tensor(*args, dtype=cls.dtype, device=META)

    def __instancecheck__(cls, value):
        return isinstance(value, torch.Tensor) and value.is_meta and value.dtype == cls.dtype


def _on_meta(function):
    """Return a function that makes on the meta device what it is asked to make on a GPU."""

    def made(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = META
        return function(*(META if _is_cuda(x) else x for x in args), **kwargs)

    return made


def _is_cuda(value):
    """Tell whether a value names a GPU."""
    if isinstance(value, str):
        return value.startswith("cuda")
    return isinstance(value, torch.device) and value.type == "cuda"


def _read_constants():
    """A meta tensor that is read back gives zeros: no norm is too large, nothing overflows."""
    item, tolist, kind = torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.type

    def type_on_cuda(self, *args, **kwargs):
        found = kind(self, *args, **kwargs)
        return found.replace("torch.meta.", "torch.cuda.") if isinstance(found, str) else found

    def item_or_zero(self):
        return (0.0 if self.is_floating_point() else 0) if self.is_meta else item(self)

    torch.Tensor.item, torch.Tensor.type = item_or_zero, type_on_cuda
    torch.Tensor.__bool__ = lambda self: bool(item_or_zero(self))
    torch.Tensor.__float__ = lambda self: float(item_or_zero(self))
    torch.Tensor.__int__ = lambda self: int(item_or_zero(self))
    torch.Tensor.tolist = lambda self: (
        torch.zeros(self.shape).tolist() if self.is_meta else tolist(self)
    )
