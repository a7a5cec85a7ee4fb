"""Trains a model of Hugging Face with FSDP2 through Accelerate as accelerate.yaml says.

Degrees, precision, sharding and recomputation stand in accelerate.yaml, batch sizes and the
optimizer in trainer_args.json. A plain loop; the two files serve the Hugging Face Trainer too.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import accelerate
import hf_training as job
import torch
from torch import nn
from torch.distributed.tensor import DTensor

CLIP_EPSILON = 1e-6


def main() -> None:
    """Build what the options name, go on from a checkpoint if there is one, train."""
    args, plan = parsed()
    if args.cpu:
        for_the_cpu()
    if plan.get("tf32"):
        torch.backends.cuda.matmul.allow_tf32 = True
    accelerator = accelerate.Accelerator()
    config = job.model_config(args)
    smoke = job.Smoke() if args.smoke else None
    trainer = Trainer(args, plan, accelerator, config, smoke)
    train(args, trainer)
    if smoke:
        smoke.report("fsdp2", accelerate.__version__, trainer.seen())
        job.leave()
    accelerator.end_training()


def parsed() -> tuple[Any, dict[str, Any]]:
    """Return the options and the fields of trainer_args.json."""
    parser = job.options(__doc__)
    parser.add_argument("--trainer-args", required=True, help="trainer_args.json of the plan")
    parser.add_argument(
        "--rank-batches",
        help="data-parallel ranks by the sequences of their micro-batch, in rank order: 8x1,4x2;"
        " default: every rank as trainer_args.json says",
    )
    args = job.parsed(parser)
    plan: dict[str, Any] = json.loads(Path(args.trainer_args).read_text())
    if args.recompute != "none":
        job.fail("--recompute", "set fsdp_activation_checkpointing in accelerate.yaml instead")
    if not args.smoke:
        args.train_steps = args.train_steps or plan["max_steps"]
    return args, plan


def for_the_cpu() -> None:
    """Let Accelerate shard over the CPU with gloo, which it else does on accelerators alone."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
    with suppress(ImportError, AttributeError):  # of other releases of PyTorch: cp 1 alone
        attend_over_cp_ranks_of_the_cpu()


def attend_over_cp_ranks_of_the_cpu() -> None:
    """Give PyTorch's context parallelism the kernel of the CPU beside those of GPUs."""
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def run(op: Any, inputs: Any, more: Any) -> Any:
        mesh, placements = inputs[0].device_mesh, inputs[0].placements
        names = [argument.name for argument in op._schema.arguments]
        local = [x.to_local() if isinstance(x, DTensor) else x for x in inputs]
        named = {**dict(zip(names, local, strict=False)), **more}
        named.pop("attn_mask", None)
        if op is forward.default:
            call, own = ring._templated_ring_attention, {"op": forward}
        else:
            call, own = (
                ring._templated_ring_attention_backward,
                {
                    "op": backward.default,
                    "grad_out_name": "grad_out",
                },
            )
        found = call(mesh.get_group(), 2, **own, **named)
        return tuple(DTensor.from_local(x, mesh, placements, run_check=False) for x in found)

    ring.custom_ops |= {forward.default: run, backward.default: run}


def train(args: Any, trainer: "Trainer") -> None:
    """Run the steps that are left."""
    step = trainer.resume() if args.resume else 0
    two = job.reads_first(trainer.config)
    data = job.open_pairs(args, trainer.config) if two else job.open_data(args, trainer.vocab)
    batches = job.Batches(data, args.seed, trainer.place, trainer.sizes, trainer.part)
    log = job.Log(args, trainer.part[1] * trainer.sizes[1] * args.seq_length)
    guess = job.guessing(args, trainer.config)
    for number in range(step, args.train_steps):
        feeds = guess(number, batches.step(number))
        loss = trainer.step(trainer.smoke.feeds(feeds) if trainer.smoke else feeds)
        log.step(number, loss)
        if trainer.smoke:
            trainer.smoke.losses.append(loss)
        if job.is_saved(args, number):
            trainer.save(number + 1)


class Trainer:
    """The model over the mesh of Accelerate, its optimizer, its steps."""

    def __init__(self, args: Any, plan: Any, accelerator: Any, config: Any, smoke: Any) -> None:
        self.args, self.accelerator, self.smoke = args, accelerator, smoke
        self.config = config
        self.takes_positions = job.has_attention(config) and not job.is_encoder(config)
        self.takes_positions &= not job.reads_first(config)
        self.vocab = config.get_text_config().vocab_size
        self.sizes = plan["per_device_train_batch_size"], plan["gradient_accumulation_steps"]
        self.clip = plan["max_grad_norm"]
        self.balance = getattr(config, "router_aux_loss_coef", 0.0)
        degrees, self.mesh = accelerator.parallelism_config, accelerator.torch_device_mesh
        self.cp, self.tp = degrees.cp_size, degrees.tp_size
        place = self.mesh["dp"] if degrees.dp_dim_names else None
        self.place = (place.get_local_rank(), place.size()) if place else (0, 1)
        mbs, self.part = part_of(args.rank_batches, self.place, self.sizes[0])
        self.sizes = mbs, self.sizes[1]
        # FSDP2 takes the mean over the ranks: a rank counts for what it has of the mean batch.
        self.weight = mbs * self.place[1] / self.part[1]
        # Accelerate keeps weights in 32 bits and computes in the format of the plan.
        model = job.build_model(args, config, torch.float32)
        self.n_parameters = sum(p.numel() for p in model.parameters())
        self.layers = job.layers_of(model)
        plugin = accelerator.state.fsdp_plugin
        plugin.transformer_cls_names_to_wrap = sorted({type(x).__name__ for x in self.layers})
        if len(model.state_dict()) > len(list(model.named_parameters(remove_duplicate=False))):
            # Loading on one rank knows weights alone, and some routers save a buffer too.
            plugin.cpu_ram_efficient_loading = False
        own_biases(model)
        if job.reads_first(config):
            one_embedding(model)
        if self.tp > 1:
            split_tensors(model, self.mesh["tp"])
        if smoke:
            smoke.watch_layers(self.layers)
        optimizer = optimizer_of(plan, by_mesh(model), accelerator.device)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.model.train()

    def step(self, batches: Iterator[Any]) -> float:
        """Compute and reduce the gradients of a global batch, move the weights."""
        losses = []
        for tokens, labels in batches:
            if isinstance(tokens, dict):
                losses.append(self._pair(tokens, labels))
                continue
            tokens, labels = (x.to(self.accelerator.device) for x in (tokens, labels))
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
            parts = [tokens, labels, positions.contiguous()]
            with self._split_sequences(parts):
                # Not the model's own loss, which FSDP2 would hand out in 16 bits.
                where = {"position_ids": parts[2]} if self.takes_positions else {}
                found = self.model(input_ids=parts[0], **where)
                loss = job.token_loss(found.logits, parts[1])
                balance = getattr(found, "aux_loss", None)
                if balance is not None:
                    loss = loss + self.balance * balance
                if self.smoke and not self.smoke.sharding:
                    self._look(before_backward=True)
                self.accelerator.backward(loss * self.weight / self.sizes[1])
            losses.append(loss.detach())
        if self.smoke and "gradients" not in self.smoke.sharding:
            self._look(before_backward=False)
        norm = clip(self.accelerator, list(self.model.parameters()), self.clip)
        if self.smoke:
            self.smoke.norms.append(norm.item())
        self.optimizer.step()
        if self.smoke and "optimizer" not in self.smoke.sharding:
            states = self.optimizer.state
            self.smoke.sharding["optimizer"] = split(
                [s["exp_avg"] for s in states.values() if "exp_avg" in s]
            )
        self.optimizer.zero_grad()
        return job.mean_over_ranks(torch.stack(losses).mean() * self.weight)

    def _pair(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        """Compute the gradients of one micro-batch of an encoder-decoder; return its loss."""
        inputs = job.moved(inputs, self.accelerator.device, torch.float32)
        with self.accelerator.autocast():
            found = self.model(**inputs)
            loss = job.token_loss(found.logits, labels.to(self.accelerator.device))
        if self.smoke and not self.smoke.sharding:
            self._look(before_backward=True)
        self.accelerator.backward(loss * self.weight / self.sizes[1])
        return loss.detach()

    def _split_sequences(self, parts: list[torch.Tensor]) -> Any:
        """Leave each rank its part of the sequences while the model computes."""
        if self.cp == 1:
            return self.accelerator.autocast()
        dims = [1] * len(parts)
        return self.accelerator.maybe_context_parallel(
            buffers=parts, buffer_seq_dims=dims, no_restore_buffers=set(parts)
        )

    def _look(self, *, before_backward: bool) -> None:
        """Measure the weights of a layer between forward and backward; gradients after it."""
        if before_backward:
            weights = list(self.layers[len(self.layers) // 2].parameters())
            self.smoke.sharding["parameters"] = split(weights)
        else:
            found = [p.grad for p in self.model.parameters() if p.grad is not None]
            self.smoke.sharding["gradients"] = split(found)

    def save(self, step: int) -> None:
        """Save weights, optimizer and the number of steps, each rank its part."""
        folder = Path(self.args.save) / f"step{step}"
        self.accelerator.save_state(str(folder))
        if self.accelerator.is_main_process:
            (folder / "step.json").write_text(json.dumps({"step": step}))

    def resume(self) -> int:
        """Load the newest whole checkpoint; return its number of steps."""
        found = [
            json.loads(file.read_text())["step"]
            for file in Path(self.args.save or ".").glob("step*/step.json")
        ]
        if not found:
            job.say(f"no checkpoint in {self.args.save}")
            return 0
        self.accelerator.load_state(str(Path(self.args.save) / f"step{max(found)}"))
        job.say(f"goes on after step {max(found)}")
        return max(found)

    def seen(self) -> dict[str, Any]:
        """Return what a run with --smoke looks up in mesh and modules."""
        names = {"dp": "dp", "cp": "cp", "tp": "tp", "dp_shard": "dp_shard_cp"}
        degrees = self.accelerator.parallelism_config
        on = {"dp": degrees.dp_dim_names, "cp": self.cp > 1, "tp": self.tp > 1, "dp_shard": True}
        return {
            "groups": {
                axis: job.ranks_of(self.mesh[name].get_group())
                for axis, name in names.items()
                if on[axis]
            },
            "stage_layers": [len(self.layers)],
            "experts": experts(self.model),
            "parameters": self.n_parameters,
        }


def part_of(text: str | None, place: tuple[int, int], mbs: int) -> tuple[int, tuple[int, int]]:
    """Return a rank's sequences of a micro-batch; where they begin in that of all, and its size.

    >>> part_of("2x1,1x4", (2, 3), 1), part_of(None, (1, 3), 2)
    ((4, (2, 6)), (2, (2, 6)))
    """
    rank, n_ranks = place
    sizes = [mbs] * n_ranks
    if text:
        counts = [part.partition("x") for part in text.split(",")]
        if not all(n.isdecimal() and size.isdecimal() for n, _, size in counts):
            job.fail(f"--rank-batches {text}", "write it as 8x1,4x2: ranks x sequences")
        sizes = [int(size) for n, _, size in counts for _ in range(int(n))]
    if len(sizes) != n_ranks or not all(sizes):
        job.fail(f"--rank-batches {text}", f"name {n_ranks} ranks, each with a sequence or more")
    return sizes[rank], (sum(sizes[:rank]), sum(sizes))


def optimizer_of(
    plan: dict[str, Any], groups: list[dict[str, Any]], device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimizer that `optim` of trainer_args.json names."""
    settings = {
        "lr": plan["learning_rate"],
        "weight_decay": plan["weight_decay"],
        "betas": (0.9, plan["adam_beta2"]),
    }
    if plan["optim"] == "adamw_torch_8bit":
        from torchao.optim import AdamW8bit

        return AdamW8bit(groups, **settings)
    return torch.optim.AdamW(groups, **settings, fused=device.type == "cuda")


def own_biases(model: nn.Module) -> None:
    """Leave a bias that a head shares with the module around it to the head alone.

    Accelerate shards the two apart, and FSDP2 refuses a tensor in two groups.
    """
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    biases = {inner: outer for inner, outer in tied.items() if outer.endswith(".bias")}
    for inner, outer in biases.items():
        parent, _, name = outer.rpartition(".")
        delattr(model.get_submodule(parent), name)
        del tied[inner]
    if biases:
        keys = model._tied_weights_keys
        model._tied_weights_keys = {x: keys[x] for x in keys if x not in biases}


def one_embedding(model: nn.Module) -> None:
    """Give both sides of an encoder-decoder the module of the embedding that they share.

    Accelerate shards it with the head, and FSDP2 refuses a tensor in two groups.
    """
    shared = model.get_input_embeddings()
    for side in (model.get_encoder(), model.get_decoder()):
        own = getattr(side, "embed_tokens", None)
        if type(own) is type(shared) and own.weight is shared.weight:
            side.embed_tokens = shared


def split_tensors(model: nn.Module, mesh: Any) -> None:
    """Split the layers over `mesh` by the plan that the model's class brings (transformers 5)."""
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
        from transformers.integrations import tensor_parallel
    except ImportError:
        job.fail("tensor parallelism with this transformers", "install transformers 5.23")
    plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_size=mesh.size()))
    apply_tensor_parallelism(model, mesh, plan)
    # Accelerate 1.15 asks for a class that transformers 5 no longer has, to spread what the plan
    # leaves whole; apply_tensor_parallelism has seen to that.
    if not hasattr(tensor_parallel, "ReplicateParallel"):
        accelerate.Accelerator._prepare_tp = lambda self, *things: things


def by_mesh(model: nn.Module) -> list[dict[str, Any]]:
    """Return the weights in groups that are split alike: one update takes one mesh."""
    split_ones = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    return [{"params": params} for params in (split_ones, whole) if params]


def clip(accelerator: Any, params: list[Any], most: float) -> torch.Tensor:
    """Scale the gradients down to a norm of at most `most` over all ranks; return what it was."""
    accelerator.unscale_gradients()
    grads = [p.grad for p in params if p.grad is not None]
    squares = [(g.full_tensor() if isinstance(g, DTensor) else g) for g in map(_square, grads)]
    norm = torch.stack(squares).sum().sqrt()
    factor = torch.clamp(most / (norm + CLIP_EPSILON), max=1.0)
    for grad in grads:
        (grad.to_local() if isinstance(grad, DTensor) else grad).mul_(factor)
    return norm


def _square(grad: torch.Tensor) -> torch.Tensor:
    return grad.float().square().sum()


def split(tensors: list[torch.Tensor]) -> int:
    """Return over how many data-parallel ranks tensors are split, by their sizes."""
    local = sum((x.to_local() if isinstance(x, DTensor) else x).numel() for x in tensors)
    return job.shares(sum(map(_size_of_tp_rank, tensors)), local)


def _size_of_tp_rank(tensor: torch.Tensor) -> int:
    """Return the elements of a tensor, or of the slice that tensor parallelism leaves."""
    names = tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()
    if "tp" in names and tensor.placements[names.index("tp")].is_shard():
        return tensor.numel() // tensor.device_mesh["tp"].size()
    return tensor.numel()


def experts(model: nn.Module) -> list[int]:
    """Return the numbers of the experts in the first layer that has some: all, as weights."""
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            n_experts = getattr(module, "num_experts", None) or len(module)
            return list(range(n_experts))
    return []


if __name__ == "__main__":
    main()
