"""Two training steps of the files beside this one on CPUs, over gloo: `torchtitan.sh --smoke`.

torchtitan builds and trains the recipe as it does on GPUs (0.2.2: the job file): same
model, groups, stages, sharding and batches. Only what needs a GPU is replaced:

- the device: the CPU, with the device functions that torchtitan calls and PyTorch lacks for it;
- flex attention, whose backward pass PyTorch has for GPUs alone: scores, mask, softmax in turn;
- torch.compile: off, it would compile for minutes what runs twice;
- sums over ranks: without the factor that NCCL applies on the way and gloo does not know;
- exchanges of uneven pieces: the call that gloo has for them;
- data and tokenizer: random tokens of the model's vocabulary, nothing is downloaded.

`--rank-batches 8x1,4x2` gives data-parallel ranks micro-batches of their own size, as nodes of
several kinds have in files of their own.

All ranks start here, forked after the imports. Rank 0 prints a line `planner-smoke {...}` with
what was seen in the running job: groups, layers, micro-batches, tensor sizes, losses.
"""

import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import types
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import AuxOutput, create_block_mask

STEPS = 2
TOML = Path(__file__).with_name("torchtitan.toml")


def use_cpu():
    """Name the CPU as torchtitan's device, which its modules ask for as they are imported."""
    cpu = types.SimpleNamespace(
        set_device=lambda device: None,
        device_count=lambda: 1,
        current_device=lambda: 0,
        synchronize=lambda: None,
        get_device_name=lambda device: "CPU",
        get_device_properties=lambda device: types.SimpleNamespace(total_memory=1 << 34),
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        memory_stats=lambda device: {},
    )
    asked = {"_get_available_device_type": lambda: "cpu", "_get_device_module": lambda _: cpu}
    kept = {name: getattr(torch._utils, name) for name in asked}
    for functions in (asked, kept):
        for name, function in functions.items():
            setattr(torch._utils, name, function)
        import torchtitan.tools.utils as titan
    titan.device_type, titan.device_module = "cpu", cpu
    barrier = dist.barrier
    dist.barrier = lambda group=None, **_: barrier(group)  # gloo refuses device_ids
    dist.all_to_all = all_to_all


def all_to_all(outputs, inputs, group=None):
    """Exchange lists of uneven tensors, which gloo does for one tensor with split sizes only."""
    got = torch.cat(outputs)
    sizes = [[len(tensor) for tensor in tensors] for tensors in (outputs, inputs)]
    dist.all_to_all_single(got, torch.cat(inputs), *sizes, group=group)
    for output, part in zip(outputs, got.split(sizes[0]), strict=True):
        output.copy_(part)


def attention(q, k, v, *, score_mod, block_mask, scale, enable_gqa, return_aux, **_):
    """Return what flex_attention returns, computed as its definition says."""
    batch, heads, n_queries, width = q.shape
    if score_mod is not None:
        raise NotImplementedError("a score_mod: none of the recipe's models has one")
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1).float() for x in (k, v))
    scores = q.float() @ k.mT * (width**-0.5 if scale is None else scale)
    sizes = (batch, heads, n_queries, k.shape[2])
    places = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
    scores = scores.masked_fill(~block_mask.mask_mod(*places), float("-inf"))
    sums = torch.logsumexp(scores, -1)
    return (torch.softmax(scores, -1) @ v).to(q.dtype), AuxOutput(lse=sums)


class RandomTokens:
    """Endless batches of random tokens: which sequences are read together hangs on no rank.

    `part` is where a rank's sequences begin in a batch of all ranks, and its size.
    """

    def __init__(
        self, vocab, *, dp_rank, dp_world_size, seq_len, local_batch_size, part=None, **_
    ):
        self.dp_rank, self.served, self.together = dp_rank, 0, 0
        self.vocab, self.size, self.length = vocab, local_batch_size, seq_len + 1
        self.part = part or (dp_rank * self.size, dp_world_size * self.size)

    def __iter__(self):
        start, total = self.part
        while True:
            first = self.together + start
            tokens = torch.stack([self._sequence(first + i) for i in range(self.size)])
            self.served, self.together = self.served + self.size, self.together + total
            yield {"input": tokens[:, :-1].clone()}, tokens[:, 1:].clone()

    def _sequence(self, number):
        generator = torch.Generator().manual_seed(number)
        return torch.randint(self.vocab, (self.length,), generator=generator)


class RandomDocuments(RandomTokens):
    """The same with positions, as torchtitan 0.3 wants them: each sequence is one document."""

    def __iter__(self):
        for words, labels in super().__iter__():
            yield (
                words | {"positions": torch.arange(labels.shape[1]).repeat(len(labels), 1)},
                labels,
            )


def with_own_batch(training, batches):
    """Give a rank the micro-batch that `batches` name, and torchtitan as many steps of it.

    Return where its sequences begin in a batch of all ranks, and its size.
    """
    sizes = [int(size) for n, _, size in batches for _ in range(int(n))]
    steps = training.global_batch_size // (training.local_batch_size * len(sizes))
    place = int(os.environ["RANK"]) * len(sizes) // int(os.environ["WORLD_SIZE"])
    training.local_batch_size = sizes[place]
    training.global_batch_size = steps * len(sizes) * training.local_batch_size
    return sum(sizes[:place]), sum(sizes)


def rank_batches(arguments):
    """Return the words of `--rank-batches`, and the others."""
    if "--rank-batches" not in arguments:
        return [], arguments
    i = arguments.index("--rank-batches")
    return [x.partition("x") for x in arguments[i + 1].split(",")], [
        *arguments[:i],
        *arguments[i + 2 :],
    ]


def recipe_trainer(arguments):
    """Return torchtitan's trainer of the recipe."""
    import torchtitan.models.common.attention as common

    common.FlexAttention._compiled_flex_attn = staticmethod(attention)
    common._compiled_create_block_mask = create_block_mask
    batches, arguments = rank_batches(arguments)
    config = _config(["--module", "torchtitan_recipe", "--config", "train", *arguments])
    part = with_own_batch(config.training, batches) if batches else None
    vocab = config.model_spec.model.vocab_size
    config.tokenizer = types.SimpleNamespace(build=lambda **_: None)
    config.dataloader = types.SimpleNamespace(build=partial(RandomDocuments, vocab, part=part))
    config.compile.enable_async_tensor_parallel = False
    config.dump_folder = tempfile.mkdtemp()
    return config.build()


def job_file_trainer(arguments):
    """Return torchtitan's trainer of the job file, for releases before 0.3."""
    from torchtitan.protocols.train_spec import get_train_spec, register_train_spec
    from torchtitan.train import Trainer

    config = _config(["--job.config_file", str(TOML), *arguments])
    spec = get_train_spec(config.model.name)
    sizes = {
        "seq_len": config.training.seq_len,
        "local_batch_size": config.training.local_batch_size,
    }
    vocab = spec.model_args[config.model.flavor].vocab_size
    spec = dataclasses.replace(
        spec,
        build_tokenizer_fn=None,
        build_dataloader_fn=lambda dp_rank, dp_world_size, **_: RandomTokens(
            vocab, dp_rank=dp_rank, dp_world_size=dp_world_size, **sizes
        ),
    )
    register_train_spec(config.model.name, spec)
    config.parallelism.enable_async_tensor_parallel = False
    config.job.dump_folder = tempfile.mkdtemp()
    return Trainer(config)


def _config(arguments):
    from torchtitan.config import ConfigManager

    config = ConfigManager().parse_args(arguments)
    config.training.steps = STEPS
    config.compile.enable = False
    return config


class Watch:
    """What one rank sees while the job runs."""

    def __init__(self, trainer):
        self.trainer, self.losses, self.norms, self.batches = trainer, [], [], set()
        self.calls = {}  # of the last step: the first of a pipeline runs a batch more, for shapes
        self.whole, self.kept, self.gradients = 0, 0, []  # elements of one matrix
        self.experts, self.over_tp = [], 1
        self.blocks = [x for part in trainer.model_parts for x in part.layers.children()]
        self._count_calls(trainer.model_parts[0])
        if self.blocks:
            self.blocks[0].register_forward_pre_hook(self._weights_in_use)
            self.blocks[0].register_forward_hook(self._weights_kept)
        self._watch_experts()
        trainer.optimizers.register_step_pre_hook(self._gradients_reduced)
        self._log, trainer.metrics_processor.log = trainer.metrics_processor.log, self._loss

    def _loss(self, step, average, *rest, **words):
        self.losses.append(average)
        self.norms.append(float(rest[1]))
        if len(self.losses) < STEPS:
            self.calls.clear()
        return self._log(step, average, *rest, **words)

    def _count_calls(self, part):
        def count(key, module, inputs):
            self.calls[key] = self.calls.get(key, 0) + 1

        part.register_forward_pre_hook(lambda _, inputs: self.batches.add(inputs[0].shape[0]))
        part.register_forward_pre_hook(partial(count, ("", "part")))
        for name, block in part.layers.named_children():
            block = _inner(block)
            block.register_forward_pre_hook(partial(count, (name, "layer")))
            core = _inner(block.attention.inner_attention)
            core.register_forward_pre_hook(partial(count, (name, "core_attn")))

    def _weights_in_use(self, block, inputs):
        self.whole = max(self.whole, _size(_matrix(block)))

    def _weights_kept(self, block, inputs, output):
        self.kept = _size(_matrix(block))
        if output.requires_grad:
            output.register_hook(lambda gradient: self._gradients_waiting(block))

    def _gradients_waiting(self, block):
        """Note gradients of earlier micro-batches that no rank has reduced yet."""
        for group in _sharded(block):
            for held in group.fsdp_params:
                late = held.unsharded_accumulated_grad
                if late is None and hasattr(held, "_unsharded_param"):
                    late = held.unsharded_param.grad
                if late is not None:
                    self.gradients.append(self.whole)

    def _gradients_reduced(self, *_):
        if self.blocks:
            self.gradients.append(_size(_matrix(self.blocks[0]).grad))

    def _watch_experts(self):
        """See the weights of the first expert layer while it computes with them."""
        layers = (getattr(_inner(block), "moe", None) for block in self.blocks)
        moe = next((moe for moe in layers if moe is not None), None)
        if moe is None:
            return
        experts = next(x for x in moe.modules() if any(map(_is_stack, x.parameters(False))))
        n_elements = next(filter(_is_stack, experts.parameters())).numel()
        mesh = self.trainer.parallel_dims.get_optional_mesh("ep")
        n_ranks, place = (mesh.size(), mesh.get_local_rank()) if mesh else (1, 0)

        def see(module, inputs):
            held = _local(next(filter(_is_stack, module.parameters())))
            self.experts = list(range(place * len(held), (place + 1) * len(held)))
            self.over_tp = n_elements // (held.numel() * n_ranks)

        experts.register_forward_pre_hook(see)

    def seen(self):
        """Return what this rank saw, as plain values."""
        trainer, n_micro = self.trainer, self.calls[("", "part")]
        matrix = _matrix(self.blocks[0]) if self.blocks else None
        states = [o.state[matrix]["exp_avg"] for o in trainer.optimizers if matrix in o.state]
        again = [key for key, n in self.calls.items() if n > n_micro]
        modules = sorted({what for _, what in again})
        recompute = {
            "layers": len({name for name, _ in again}),
            "modules": ["layer"] if "layer" in modules else modules,
        }
        return {
            "groups": self._groups(),
            "stages": {
                stage: (len(part.layers), sum(p.numel() for p in part.parameters()))
                for stage, part in zip(_stages(trainer), trainer.model_parts, strict=True)
            },
            "n_micro": n_micro,
            "mbs": max(self.batches),
            "sequences": (trainer.dataloader.dp_rank, trainer.dataloader.served // STEPS),
            "sharding": {
                "parameters": self.whole // self.kept,
                "gradients": self.whole // max(self.gradients),
                "optimizer": self.whole // _size(states[0]),
            }
            if states
            else None,
            "recompute": recompute if again else None,
            "experts": self.experts,
            "losses": self.losses if getattr(trainer, "pp_has_last_stage", True) else [],
            "norms": self.norms,
        }

    def _groups(self):
        """Return the ranks of each group that this rank is in."""
        dims = self.trainer.parallel_dims
        names = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "dp": "batch"}
        meshes = {name: dims.get_optional_mesh(mesh) for name, mesh in names.items()}
        found = {
            name: mesh.get_group() for name, mesh in meshes.items() if mesh and mesh.size() > 1
        }
        if self.over_tp > 1:
            found["etp"] = found["tp"]
        sharded = [x.mesh_info.shard_process_group for b in self.blocks for x in _sharded(b)]
        if sharded:  # experts over fewer ranks than the rest
            found["dp_shard"] = max(sharded, key=lambda group: group.size())
        return {name: sorted(dist.get_process_group_ranks(g)) for name, g in found.items()}


def _sharded(module):
    """Return FSDP's groups of parameters of a module, none where FSDP does not hold it."""
    return module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else ()


def _stages(trainer):
    """Return the places of a rank's model parts in the pipeline."""
    schedule = getattr(trainer, "pp_schedule", None)
    if schedule is None:
        return [0]
    return [stage.stage_index for stage in getattr(schedule, "_stages", None) or [schedule._stage]]


def _inner(module):
    """Return what a checkpoint wrapper wraps, or the module."""
    return getattr(module, "_checkpoint_wrapped_module", module)


def _is_stack(parameter):
    return parameter.ndim == 3


def _matrix(block):
    """Return the first matrix of a layer: one of its attention."""
    return next(p for p in block.parameters() if p.ndim == 2)


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _size(tensor):
    return _local(tensor).numel()


def summary(seen):
    """Return the line's content from what all ranks saw."""
    groups = {}
    for one in seen:
        for name, ranks in one["groups"].items():
            groups.setdefault(name, set()).add(tuple(ranks))
    stages = {stage: facts for one in seen for stage, facts in one["stages"].items()}
    return {
        "framework": "torchtitan",
        "release": titan_release(),
        "torch": torch.__version__,
        "world_size": len(seen),
        "groups": {
            name: sorted(map(list, found)) for name, found in groups.items() if len(max(found)) > 1
        },
        "stage_layers": [stages[stage][0] for stage in sorted(stages)],
        "n_micro": seen[0]["n_micro"],
        "mbs": seen[0]["mbs"],
        "gbs": sum(dict(one["sequences"] for one in seen).values()),
        "sharding": next(one["sharding"] for one in seen if one["sharding"]),
        "recompute": seen[0]["recompute"],
        "experts": [one["experts"] for one in seen],
        "parameters": sum(n for _, n in stages.values()),
        "losses": next(one["losses"] for one in seen if one["losses"]),
        "gradient_norms": seen[0]["norms"],
    }


def titan_release():
    """Return torchtitan's release."""
    import torchtitan

    return torchtitan.__version__


def train(arguments):
    """Train on this rank; rank 0 prints the line."""
    from torchtitan.tools.logging import init_logger

    init_logger()
    old = titan_release().startswith("0.2.")
    trainer = job_file_trainer(arguments) if old else recipe_trainer(arguments)
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    watch = Watch(trainer)
    trainer.train()
    seen = [None] * dist.get_world_size()
    dist.all_gather_object(seen, watch.seen())
    if dist.get_rank() == 0:
        print("planner-smoke", json.dumps(summary(seen)), flush=True)
    trainer.close()
    dist.destroy_process_group()


def main():
    """Fork a process for each rank; the exit status is 0 where all trained."""
    use_cpu()
    old = titan_release().startswith("0.2.")
    if old and not TOML.exists():
        print(f"torchtitan {titan_release()} wants a job file: torchtitan-toml.txt says why there")
        return 2
    __import__("torchtitan.train")
    world_size, arguments = int(sys.argv[1]), [x for x in sys.argv[2:] if x != "--smoke"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    children = set()
    for rank in range(world_size):
        if (child := os.fork()) == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": sys.argv[1]}
            logging.disable(logging.NOTSET if rank == 0 else logging.WARNING)
            train(arguments)
            return 0
        children.add(child)
    while children:
        child, status = os.wait()
        children.discard(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
