"""What a run under fake tensors leaves behind: its collectives, and what it keeps for backward.

Needs torch; nothing here moves data.
"""

import contextlib
import weakref
from collections import defaultdict

import torch
import torch.distributed as dist
from counting import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, sent_bytes
from torch.distributed._tools.fake_collectives import CollectiveOp, collective_ops, sync_ops
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

NAMES = (
    ("allgather", ALL_GATHER),
    ("all_gather", ALL_GATHER),
    ("reduce_scatter", REDUCE_SCATTER),
    ("allreduce", ALL_REDUCE),
    ("all_reduce", ALL_REDUCE),
    ("alltoall", "all-to-all"),
    ("all_to_all", "all-to-all"),
    ("broadcast", "broadcast"),
    ("send", "point-to-point"),
    ("recv", "receive"),
)
AXES = {
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "ep": "ep",
    "etp": "ep",
    "fsdp": "dp",
    "dp_shard": "dp",
    "dp_shard_cp": "dp",
    "dp_replicate": "dp",
    "efsdp": "dp",
    "dp": "dp",
    "batch": "dp",
    "loss": "loss",
    "loss_mesh": "loss",
}
"""Axis of a plan by dimension of a mesh of torchtitan or Accelerate."""


def start_world(world_size, rank):
    """Form a pretended world: groups of this rank, and nothing is sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


WHOLE = {"axis": "world"}
"""Axis of the group of all ranks, where a dimension of a mesh takes it for its own."""


def axis_of(group):
    """Return the axis of a process group, by the dimension of the mesh that made it."""
    if group.group_desc == "default_pg":
        return WHOLE["axis"]
    words = (group.group_desc or "").removeprefix("mesh_")
    if words in AXES:
        return AXES[words]
    parts = {AXES.get(part) for part in words.replace("dp_shard", "dp").split("_")}
    return parts.pop() if len(parts) == 1 and None not in parts else words or "world"


def local(tensor):
    """Return what this rank holds of a tensor."""
    held = getattr(tensor, "_local_tensor", tensor)
    return getattr(held, "elem", held) if type(held).__name__ == "AsyncCollectiveTensor" else held


def n_bytes(tensor):
    """Return the bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def tensors_of(value):
    """Return the tensors of a nested argument."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_of(item)]
    return []


class Collectives(TorchDispatchMode):
    """Counts what is sent while it is on."""

    def __init__(self):
        """Start with nothing seen."""
        super().__init__()
        self.rows = defaultdict(lambda: [0, 0.0, 0.0])

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run an operator; write it down where it is a collective."""
        found = func(*args, **(kwargs or {}))
        if func in collective_ops and func not in sync_ops:
            self.note(func, args, found)
        return found

    def note(self, func, args, found):
        """Count one collective: its logical tensor is the larger of what goes in and out."""
        name = next(word for key, word in NAMES if key in func.__name__ or key in str(func))
        group = CollectiveOp.get_process_group(func, args)
        sides = [[local(t) for t in tensors_of(side)] for side in (*args, found)]
        if not any(sides) or group.size() == 1:
            return
        largest = max(sides, key=lambda side: sum(map(n_bytes, side)))
        payload = sum(map(n_bytes, largest))
        self.add(axis_of(group), name, payload, largest[0].dtype, group.size())

    def add(self, axis, name, payload, dtype, ranks):
        """Count a call."""
        row = self.rows[axis, name, str(dtype).removeprefix("torch."), ranks, payload]
        row[0] += 1
        row[1] += payload
        row[2] += sent_bytes(name, payload, ranks)

    def counts(self):
        """Return the rows as they are now."""
        return {key: tuple(row) for key, row in self.rows.items()}


class Kept:
    """What autograd keeps for the backward: live bytes by part of the model, and their peak.

    A storage counts once, whoever keeps it; weights and buffers of modules do not count.
    """

    def __init__(self):
        """Start with nothing kept."""
        self.part = "ends"
        self.live = defaultdict(float)
        self.peak = {}
        self.held = {}
        self.weights = set()
        self.seen = defaultdict(int)

    def pack(self, tensor):
        """Take a tensor in."""
        holder = Holder(tensor)
        inner = local(tensor)
        storage = inner.untyped_storage()
        key = storage._cdata
        if key in self.weights or inner.device.type == "meta":
            return holder
        if key not in self.held:
            self.held[key] = [0, self.part, storage.nbytes()]
            self.live[self.part] += storage.nbytes()
            self.seen[self.part, tuple(inner.shape), str(inner.dtype)] += 1
            if sum(self.live.values()) > sum(self.peak.values()):
                self.peak = dict(self.live)
        self.held[key][0] += 1
        weakref.finalize(holder, self.drop, key)
        return holder

    def drop(self, key):
        """Let go of a storage once nobody keeps it."""
        entry = self.held[key]
        entry[0] -= 1
        if not entry[0]:
            self.live[entry[1]] -= entry[2]
            del self.held[key]

    def leave_out(self, module, args):
        """Leave a module's weights and buffers out; runs before its forward."""
        own = [*module._parameters.values(), *module._buffers.values()]
        for tensor in own:
            if tensor is not None:
                self.weights.add(local(tensor).untyped_storage()._cdata)

    @contextlib.contextmanager
    def recording(self):
        """Record while this is on."""
        before = torch.nn.modules.module.register_module_forward_pre_hook(self.leave_out)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda holder: holder.tensor):
                yield
        finally:
            before.remove()

    def inside(self, module, part):
        """Count what is kept inside a module as `part`."""

        def enter(*_):
            self.part = part

        def leave(*_):
            self.part = "ends"

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)


class Holder:
    """A tensor that autograd keeps."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor):
        """Hold a tensor."""
        self.tensor = tensor


class FusedNorm(torch.autograd.Function):
    """RMSNorm as one kernel: keeps its input and one number a row.

    Saved tensors of `_fused_rms_norm` in torch's derivatives.yaml.
    """

    @staticmethod
    def forward(ctx, x, weight):
        """Return something of the shape of the input."""
        rows = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        """Return gradients of the right shapes."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


class FlashAttention(torch.autograd.Function):
    """A flash kernel: keeps queries, keys, values, its output and a logarithm for each row.

    Saved tensors of `_scaled_dot_product_flash_attention` in torch's derivatives.yaml, of
    `FlashAttnFunc` in flash-attn 2 and of `FlexAttentionAutogradOp`. Tensors are (batch, heads,
    tokens, width), or with tokens before heads.
    """

    @staticmethod
    def forward(ctx, q, k, v):
        """Return something of the shape of the output."""
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        rows = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, rows)
        return out, rows

    @staticmethod
    def backward(ctx, gradient, of_rows):
        """Return gradients of the right shapes."""
        q, k, v, _, _ = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def state_bytes(parameters, optimizer):
    """Return the bytes of an optimizer's states, and of its 32-bit parameters, its master copy."""
    states = sum(
        n_bytes(local(t))
        for state in optimizer.state.values()
        for t in state.values()
        if isinstance(t, torch.Tensor) and t.numel() > 1
    )
    return states, sum(n_bytes(local(p)) for p in parameters if p.dtype == torch.float32)
