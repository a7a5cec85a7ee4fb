"""Counts the collectives of one rank by replacing the functions of torch.distributed.

Nothing is sent. A group is named by the axis that `name_groups` gives it.
"""

import contextlib
from collections import defaultdict

import torch.distributed as dist
from torch.distributed import distributed_c10d

CONTROL_BYTES = 1024
"""Collectives of at most so many bytes, or of integers, carry counts, norms and flags."""


class Handle:
    """A request that has ended."""

    def wait(self, *args, **kwargs):
        """Wait for nothing."""
        return True

    def is_completed(self):
        """Tell that it has ended."""
        return True


class Recorder:
    """Calls and bytes by (axis, collective, dtype, bytes of a call)."""

    def __init__(self):
        self.calls = defaultdict(int)
        self.axes = {}
        self.on = False

    def name_group(self, group, axis):
        """Say which axis a group is; the first name stays."""
        self.axes.setdefault(group.group_name, axis)

    def add(self, group, collective, tensor, whole=1):
        """Count one call on `tensor`, of which `whole` make the logical tensor."""
        if not self.on:
            return
        size = group.size() if group is not None else dist.get_world_size()
        if size == 1:
            return
        name = (group or dist.group.WORLD).group_name
        n_bytes = tensor.numel() * tensor.element_size() * whole
        counts = not tensor.is_floating_point() or n_bytes <= CONTROL_BYTES
        known = "pp" if collective == "point-to-point" else self.axes.get(name, "other")
        axis = "control" if counts else known  # context parallelism sends inside its kernels
        self.calls[axis, collective, str(tensor.dtype).removeprefix("torch."), n_bytes] += 1

    def taken(self):
        """Return what was counted so far and start anew."""
        calls, self.calls = dict(self.calls), defaultdict(int)
        return calls


def _done(async_op):
    return Handle() if async_op else None


def install(recorder):
    """Replace the functions of torch.distributed by those that count."""
    add = recorder.add

    def size_of(group):
        return group.size() if group is not None else dist.get_world_size()

    def all_reduce(tensor, op=None, group=None, async_op=False):
        add(group, "all-reduce", tensor)
        return _done(async_op)

    def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
        add(group, "all-gather", output_tensor)
        return _done(async_op)

    def all_gather(tensor_list, tensor, group=None, async_op=False):
        add(group, "all-gather", tensor, size_of(group))
        return _done(async_op)

    def reduce_scatter_tensor(output, input, op=None, group=None, async_op=False):
        add(group, "reduce-scatter", input)
        return _done(async_op)

    def reduce_scatter(output, input_list, op=None, group=None, async_op=False):
        add(group, "reduce-scatter", output, size_of(group))
        return _done(async_op)

    def all_to_all_single(output, input, *sizes, group=None, async_op=False, **more):
        add(group, "all-to-all", input)
        return _done(async_op)

    def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
        add(group, "broadcast", tensor)
        return _done(async_op)

    def send(tensor, dst=None, group=None, tag=0, group_dst=None):
        add(group, "point-to-point", tensor)

    def isend(tensor, dst=None, group=None, tag=0, group_dst=None):
        add(group, "point-to-point", tensor)
        return Handle()

    def recv(tensor, src=None, group=None, tag=0, group_src=None):
        return 0

    def irecv(tensor, src=None, group=None, tag=0, group_src=None):
        return Handle()

    def batch_isend_irecv(operations):
        for one in operations:
            if one.op is isend:
                add(one.group, "point-to-point", one.tensor)
        return [Handle() for _ in operations]

    @contextlib.contextmanager
    def _coalescing_manager(*args, **kwargs):
        yield Handle()

    def barrier(*args, **kwargs):
        return _done(kwargs.get("async_op"))

    for function in (
        all_reduce,
        all_gather_into_tensor,
        all_gather,
        reduce_scatter_tensor,
        reduce_scatter,
        all_to_all_single,
        broadcast,
        send,
        isend,
        recv,
        irecv,
        batch_isend_irecv,
        _coalescing_manager,
        barrier,
    ):
        for module in (dist, distributed_c10d):
            setattr(module, function.__name__, function)
    dist._all_gather_base = distributed_c10d._all_gather_base = all_gather_into_tensor
    dist._reduce_scatter_base = distributed_c10d._reduce_scatter_base = reduce_scatter_tensor
    dist.P2POp.__new__ = lambda cls, *args, **kwargs: object.__new__(cls)


def per_step(small, large, n_small, n_large, n_micro):
    """Return calls of `n_micro` micro-batches from those of two smaller numbers of them.

    Every kind of call is made a + b n times.
    """
    found = {}
    for key in {*small, *large}:
        a, b = small.get(key, 0), large.get(key, 0)
        more, rest = divmod((b - a) * (n_micro - n_large), n_large - n_small)
        if rest:
            raise ValueError(f"{key}: {a} calls with {n_small} micro-batches, {b} with {n_large}")
        if b + more:
            found[key] = b + more
    return found


def as_records(calls):
    """Return calls as the records of an answer, those of one kind joined."""
    joined = defaultdict(lambda: [0, 0])
    for (axis, collective, dtype, n_bytes), n_calls in calls.items():
        one = joined[axis, collective, dtype]
        one[0] += n_calls
        one[1] += n_calls * n_bytes
    return [
        {"axis": axis, "collective": name, "n_calls": n, "bytes": n_bytes, "dtype": dtype}
        for (axis, name, dtype), (n, n_bytes) in sorted(joined.items())
    ]
