"""A pretended torch.distributed world of any size in one process, for checks without GPUs.

torch's own "fake" backend forms the groups of one rank and sends nothing. Groups that the rank is not
in are left out, which is what torch returns for them anyway, only sooner: at 16,384 ranks the
frameworks form tens of thousands of them.
"""


WORLD = {"rank": 0, "size": 0}
"""The pretended world of this process; size 0 before it starts."""


def skip_foreign_groups():
    """Make new_group return at once for groups without this rank. Call before a framework is imported."""
    import torch.distributed as dist
    import torch.distributed.device_mesh as device_mesh
    import torch.distributed.distributed_c10d as c10d

    form = c10d.new_group
    if getattr(form, "skips", False):
        return

    def new_group(ranks=None, *args, **kwargs):
        size = WORLD["size"]
        if size and ranks is not None and WORLD["rank"] not in ranks and not kwargs.get("use_local_synchronization"):
            if len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= size:
                return form(ranks, *args, **kwargs)  # torch says what is wrong with them
            return c10d.GroupMember.NON_GROUP_MEMBER
        return form(ranks, *args, **kwargs)

    new_group.skips = True
    for module in (c10d, dist, device_mesh):
        module.new_group = new_group


def start(world_size, rank=0):
    """Start the pretended world."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    WORLD.update(rank=rank, size=world_size)
