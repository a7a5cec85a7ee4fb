"""Trains a model of Hugging Face with DeepSpeed as deepspeed.json and its launcher say.

Degrees, batch sizes, ZeRO, AutoTP, AutoEP and Ulysses stand in deepspeed.json; stages of a
pipeline and recomputation are options. Resumption needs the same folder of checkpoints.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import hf_training as job
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.utils import groups
from torch import nn


def main() -> None:
    """Build what the options name, go on from a checkpoint if there is one, train."""
    args = parsed()
    plan = json.loads(Path(args.deepspeed_config).read_text())
    if args.cpu:
        for_the_cpu(plan)
    deepspeed.init_distributed()
    config = job.model_config(args)
    smoke = job.Smoke() if args.smoke else None
    if smoke:
        smoke.watch_attention(args.attention)
    if args.recompute == "selective":
        job.recompute_attention_core(args.attention)
    trainer = (Pipeline if args.pipeline_stages > 1 else Layers)(args, plan, config, smoke)
    train(args, plan, trainer)
    if smoke:
        smoke.report("deepspeed", deepspeed.__version__, trainer.seen())
        job.leave()
    dist.destroy_process_group()


def parsed() -> Any:
    """Return the options; a plan's launcher gives all that decide the layout."""
    parser = job.options(__doc__)
    parser.add_argument("--deepspeed", action="store_true", help="as DeepSpeed's launcher wants")
    parser.add_argument("--deepspeed_config", required=True)
    parser.add_argument("--local_rank", type=int, default=0, help="set by DeepSpeed's launcher")
    parser.add_argument("--pipeline-stages", type=int, default=1)
    parser.add_argument("--partition-method", default="type:block")
    args = job.parsed(parser)
    if args.train_steps is None:
        job.fail("no --train-steps", "give the optimizer steps of the run")
    return args


def for_the_cpu(plan: dict[str, Any]) -> None:
    """Replace what needs a GPU or a compiler by what does the same on the CPU: Adam, pinning."""
    params = plan["optimizer"]["params"]
    plan["optimizer"] = {"type": "AdamW", "params": {**params, "torch_adam": True}}
    plan["zero_force_ds_cpu_optimizer"] = False
    for key in ("offload_optimizer", "offload_param"):
        plan["zero_optimization"].get(key, {}).pop("pin_memory", None)
    # deepspeed.comm.torch names another module by now. What it builds takes minutes to compile.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None


def let_autoep_find_recorders() -> None:
    """Let AutoEP look up recorders of outputs by a class's name.

    DeepSpeed 0.19.8 does so; transformers 5.23 has a table that takes models alone.
    """
    with suppress(ImportError, AttributeError):
        from transformers.utils import output_capturing

        table = output_capturing._CanRecordRegistry
        by_model, set_model = table.get, table.__setitem__

        def get(self: Any, key: Any, default: Any = None) -> Any:
            return dict.get(self, key, default) if isinstance(key, str) else by_model(self, key)

        def set_item(self: Any, key: Any, value: Any) -> None:
            (dict.__setitem__ if isinstance(key, str) else set_model)(self, key, value)

        table.get, table.__setitem__ = get, set_item


def train(args: Any, plan: dict[str, Any], trainer: Any) -> None:
    """Run the steps that are left."""
    engine, step = trainer.engine, 0
    if args.resume:
        found, state = engine.load_checkpoint(args.save)
        step = state["step"] if found else 0
        job.say(f"goes on after step {step}" if found else f"no checkpoint in {args.save}")
    sizes = plan["train_micro_batch_size_per_gpu"], plan["gradient_accumulation_steps"]
    two = job.reads_first(trainer.config)
    data = job.open_pairs(args, trainer.config) if two else job.open_data(args, trainer.vocab)
    batches = job.Batches(data, args.seed, trainer.place, sizes)
    log = job.Log(args, sizes[0] * sizes[1] * trainer.place[1] * args.seq_length)
    guess = job.guessing(args, trainer.config)
    for number in range(step, args.train_steps):
        loss = trainer.step(trainer.smoke_feeds(guess(number, batches.step(number))))
        log.step(number, loss)
        if trainer.smoke:
            trainer.smoke.losses.append(loss)
        if job.is_saved(args, number):
            engine.save_checkpoint(
                args.save, tag=f"step{number + 1}", client_state={"step": number + 1}
            )


class Trainer:
    """What a model with and one without a pipeline share."""

    def __init__(self, args: Any, plan: dict[str, Any], config: Any, smoke: Any) -> None:
        self.args, self.plan, self.config, self.smoke = args, plan, config, smoke
        self.vocab = config.get_text_config().vocab_size

    @property
    def dtype(self) -> torch.dtype:
        """The format of the weights that compute."""
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        on = (kind for kind in kinds if self.plan.get(kind, {}).get("enabled"))
        return kinds.get(next(on, ""), torch.float32)

    def smoke_feeds(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the micro-batches, watched in a run with --smoke."""
        return self.smoke.feeds(batches) if self.smoke else batches


class Layers(Trainer):
    """A whole model on each rank, its states sharded; tp, cp and ep by DeepSpeed's own means."""

    def __init__(self, args: Any, plan: dict[str, Any], config: Any, smoke: Any) -> None:
        super().__init__(args, plan, config, smoke)
        self.cp = plan.get("sequence_parallel_size", 1)
        self.tp = plan.get("tensor_parallel", {}).get("autotp_size", 1)
        mpu = self._ulysses()
        model = self._model()
        if plan.get("expert_parallel"):
            let_autoep_find_recorders()
        self.n_parameters = sum(map(whole_size, model.parameters()))
        if args.recompute == "full":
            layers = args.recompute_layers or len(job.layers_of(model))
            away = plan.get("activation_checkpointing", {}).get("cpu_checkpointing", False)
            job.recompute_layers(model, layers, to_host=away)
        if smoke:
            smoke.watch_layers(job.layers_of(model))
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=plan, mpu=mpu
        )
        self.engine.train()
        group = groups._get_data_parallel_group()
        self.place = (dist.get_rank(group), dist.get_world_size(group))
        if self.cp > 1:  # the group of ZeRO holds the ranks of one sequence too
            self.place = (dist.get_rank() // self.cp, dist.get_world_size() // self.cp)
        elif self.tp > 1:
            self.place = (dist.get_rank() // self.tp, dist.get_world_size() // self.tp)

    def _ulysses(self) -> Any:
        """Split sequences over neighbouring ranks; heads while attention computes."""
        if self.cp == 1:
            return None
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

        return UlyssesSPAttentionHF.register_with_transformers(
            SimpleNamespace(config=self.config),
            core_attn_implementation=self.args.attention,
            sequence_parallel_size=self.cp,
            micro_batch_size=self.plan["train_micro_batch_size_per_gpu"],
            seq_length=self.args.seq_length,
            seq_length_is_variable=False,
        )

    def _model(self) -> Any:
        """Return the model; with ZeRO-3 each weight is split as soon as it is made."""
        split = self.plan["zero_optimization"]["stage"] == 3
        if split and not self.plan.get("expert_parallel"):
            from transformers.integrations import HfDeepSpeedConfig

            self._announced = HfDeepSpeedConfig(
                self.plan
            )  # transformers looks for it, while alive
        return job.build_model(self.args, self.config, self.dtype)

    def step(self, batches: Iterator[Any]) -> float:
        """Compute and reduce the gradients of a global batch, move the weights."""
        losses = []
        for tokens, labels in batches:
            loss = self._loss(tokens, labels)
            self.engine.backward(loss)
            if self.smoke and not self.smoke.sharding:
                self.smoke.sharding = sharding(self.engine)
            self.engine.step()
            losses.append(loss.detach())
        return job.mean_over_ranks(torch.stack(losses).mean())

    def _loss(self, tokens: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the model's own loss; of one that shifts labels, or hides tokens, ours."""
        if isinstance(tokens, dict):
            inputs = job.moved(tokens, self.engine.device, self.dtype)
            return job.token_loss(self.engine(**inputs).logits, labels.to(self.engine.device))
        positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
        parts = [self._own(x) for x in (tokens, labels, positions)]
        tokens, labels, positions = (x.to(self.engine.device) for x in parts)
        if job.is_encoder(self.config) or not job.has_attention(self.config):
            return job.token_loss(self.engine(input_ids=tokens).logits, labels)
        found = self.engine(
            input_ids=tokens, position_ids=positions, labels=labels, shift_labels=labels
        )
        return found.loss

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of each sequence."""
        return tensor.chunk(self.cp, dim=1)[dist.get_rank() % self.cp].contiguous()

    def seen(self) -> dict[str, Any]:
        """Return what a run with --smoke looks up in groups and modules."""
        shard = groups._get_data_parallel_group()
        found = {"dp": shard, "dp_shard": shard}
        if self.cp > 1:
            found["cp"] = groups._get_sequence_parallel_group()
            found["dp_shard"] = groups._get_sequence_data_parallel_group()
        if self.tp > 1:
            found["tp"] = groups.get_tensor_model_parallel_group()
        for group in groups._get_expert_parallel_group_dict().values():
            found["ep"] = group
        ranks = {axis: job.ranks_of(group) for axis, group in found.items()}
        if self.cp > 1:
            everybody = range(dist.get_world_size())
            ranks["dp"] = [r for r in everybody if r % self.cp == dist.get_rank() % self.cp]
        return {
            "groups": ranks,
            "stage_layers": [len(job.layers_of(self.engine.module))],
            "experts": experts(self.engine.module),
            "parameters": self.n_parameters,
        }


class Embedding(nn.Module):
    """The first layer of a pipeline: tokens to the residual stream."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed.weight, std=config.initializer_range)

    @property
    def weight(self) -> torch.Tensor:
        """The matrix that a tied head shares."""
        return self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the vectors of tokens."""
        return self.embed(tokens)


class Block(nn.Module):
    """One transformer layer of the model, with the rotary positions that it needs."""

    def __init__(self, config: Any, parts: Any, number: int, watch: Any) -> None:
        super().__init__()
        torch.manual_seed(parts.seed + number)  # the same weights in whatever stage
        self.layer = parts.layer(config, number)
        self.rotary = parts.rotary(config)
        self.layer.apply(parts.init)
        if watch:
            watch([self.layer], number)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the residual stream behind the layer."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
        result = self.layer(
            hidden,
            attention_mask=None,
            position_ids=positions,
            position_embeddings=self.rotary(hidden, positions),
        )
        return result[0] if isinstance(result, tuple) else result


class Head(nn.Module):
    """The last layer of a pipeline: norm and logits."""

    def __init__(self, config: Any, parts: Any, tied: bool) -> None:
        super().__init__()
        self.norm = deepcopy(parts.norm).to_empty(device="cpu")
        self.norm.apply(parts.init)
        if not tied:
            self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            nn.init.normal_(self.head.weight, std=config.initializer_range)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits; where the embedding is the head, what goes into it."""
        hidden = self.norm(hidden)
        return self.head(hidden) if hasattr(self, "head") else hidden


class Pipeline(Trainer):
    """Stages of layers, 1F1B by DeepSpeed's PipelineEngine."""

    def __init__(self, args: Any, plan: dict[str, Any], config: Any, smoke: Any) -> None:
        super().__init__(args, plan, config, smoke)
        if args.from_pretrained:
            job.fail("--from-pretrained with a pipeline", "train from scratch, or use pp 1")
        torch.manual_seed(args.seed)
        every = int(args.recompute == "full")
        module = PipelineModule(
            self._layers(),
            num_stages=args.pipeline_stages,
            loss_fn=job.token_loss,
            partition_method=args.partition_method,
            activation_checkpoint_interval=every,
            activation_checkpoint_func=partial(job.checkpoint, use_reentrant=False),
            checkpointable_layers=["Block"],
        )
        self.engine, *_ = deepspeed.initialize(
            model=module, model_parameters=list(module.parameters()), config=plan
        )
        grid = self.engine.grid
        self.place = (grid.get_data_parallel_rank(), grid.get_data_parallel_world_size())

    def _layers(self) -> list[Any]:
        """Return embedding, blocks and head: `type:block` balances the blocks alone."""
        from transformers import AutoModelForCausalLM

        config = self.config
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        body = model.model if hasattr(model, "model") else model
        for name in ("embed_tokens", "rotary_emb", "norm", "layers"):
            if not hasattr(body, name):
                fix = "use a model as Llama's is built (embed_tokens, layers, norm, rotary_emb)"
                job.fail(f"{config.model_type} has no {name}: no pipeline of it", fix)
        if type(body.embed_tokens) is not nn.Embedding or len(set(map(type, body.layers))) > 1:
            job.fail(f"{config.model_type}: layers of several kinds", "use pp 1")
        parts = SimpleNamespace(
            layer=type(body.layers[0]),
            rotary=type(body.rotary_emb),
            norm=body.norm,
            init=model._init_weights,
            seed=self.args.seed + 1,
        )
        watch = self.smoke.watch_layers if self.smoke else None
        blocks = [
            LayerSpec(Block, config, parts, number, watch)
            for number in range(config.num_hidden_layers)
        ]
        if not config.tie_word_embeddings:
            ends = LayerSpec(Embedding, config), LayerSpec(Head, config, parts, False)
            return [ends[0], *blocks, ends[1]]
        tied = partial(TiedLayerSpec, "embedding", Embedding, config)
        head = LayerSpec(Head, config, parts, True)
        return [tied(), *blocks, head, tied(forward_fn=_tied_logits)]

    def step(self, batches: Iterator[Any]) -> float:
        """Send a global batch through the stages, move the weights."""
        if self.smoke and not self.smoke.sharding:
            step = self.engine.optimizer.step

            def observed(*inputs: Any, **more: Any) -> Any:
                self.smoke.sharding = sharding(self.engine)
                self.engine.optimizer.step = step
                return step(*inputs, **more)

            self.engine.optimizer.step = observed
        return float(self.engine.train_batch(data_iter=iter(list(batches))))

    def seen(self) -> dict[str, Any]:
        """Return what a run with --smoke looks up in groups and modules."""
        grid, module = self.engine.grid, self.engine.module
        data = job.ranks_of(grid.get_data_parallel_group())
        own = sum(isinstance(layer, Block) for layer in module.forward_funcs)
        size = sum(p.numel() for p in module.parameters())
        with suppress(AttributeError):  # a tied matrix counts on its first stage
            for tied in module.tied_comms.values():
                here = dist.get_rank() == min(tied["ranks"])
                size -= 0 if here else sum(p.numel() for p in tied["module"].parameters())
        rows = job.gathered((grid.get_stage_id(), grid.get_data_parallel_rank(), own, size))
        stages = sorted(row for row in rows if row[1] == 0)
        return {
            "groups": {
                "pp": job.ranks_of(grid.get_pipe_parallel_group()),
                "dp": data,
                "dp_shard": data,
            },
            "stage_layers": [row[2] for row in stages],
            "experts": [],
            "parameters": sum(row[3] for row in stages),
        }


def _tied_logits(embedding: Embedding, hidden: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(hidden, embedding.weight)


# ---- what a run with --smoke looks up ------------------------------------------------------


STATES = (
    ("fp16_groups", "fp32_partitioned_groups_flat"),
    ("bit16_groups", "single_partition_of_fp32_groups"),
    ("bf16_groups", "fp32_groups_flat_partition"),
)
"""Weights and this rank's part of their states: ZeRO-3, ZeRO-1 and 2, bf16 in a pipeline."""


def whole_size(param: torch.Tensor) -> int:
    """Return the elements of a weight, of which ZeRO-3 may hold a part."""
    return int(getattr(param, "ds_numel", param.numel()))


def sharding(engine: Any) -> dict[str, int]:
    """Return over how many ranks weights, gradients and optimizer states are split.

    By sizes of tensors after a backward, of the weights that are not of experts.
    """
    optimizer, params = engine.optimizer, dense(engine.module)
    size = sum(map(whole_size, params))
    parts = sum(getattr(p, "ds_tensor", p).numel() for p in params)
    states = optimizer_shares(optimizer)
    split = getattr(optimizer, "partition_gradients", engine.zero_optimization_stage() == 3)
    held = [p.grad if p.grad is not None else getattr(p, "grad_accum", None) for p in params]
    kept = sum(x.numel() for x in held if x is not None)
    return {
        "parameters": job.shares(size, parts),
        "gradients": states if split and kept <= size / 2 else 1,
        "optimizer": states,
    }


def optimizer_shares(optimizer: Any) -> int:
    """Return over how many ranks the states of weights that are not of experts are split."""
    for groups_name, parts_name in STATES:
        parts = getattr(optimizer, parts_name, None)
        if parts is None:
            continue
        pairs = zip(getattr(optimizer, groups_name), parts, strict=True)
        own = [(group, part) for group, part in pairs if getattr(group[0], "allreduce", True)]
        whole = sum(whole_size(p) for group, _ in own for p in group)
        return job.shares(whole, sum(part.numel() for _, part in own))
    return 1


def dense(model: nn.Module) -> list[torch.Tensor]:
    """Return the weights that all data-parallel ranks hold: none of experts that are spread."""
    return [p for p in model.parameters() if getattr(p, "allreduce", True)]


def experts(model: nn.Module) -> list[int]:
    """Return the numbers of the experts of this rank in the first layer that has some."""
    for module in model.modules():
        n_local = getattr(module, "num_local_experts", None)
        if n_local and hasattr(module, "ep_rank"):
            first = module.ep_rank * n_local
            return list(range(first, first + n_local))
    for name, module in model.named_modules():  # AutoEP has left them to the model
        if name.endswith(".experts"):
            return list(range(getattr(module, "num_experts", None) or len(module)))
    return []


if __name__ == "__main__":
    main()
