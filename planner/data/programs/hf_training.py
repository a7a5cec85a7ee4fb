"""What deepspeed_train.py and fsdp2_train.py share: options, model, data, log, smoke report.

Beside torch and transformers it needs `datasets` where data are not a flat file of tokens.
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).resolve().parent
SMOKE_STEPS, SMOKE_TOKENS = 2, 128
"""Steps and tokens of a sequence of a run with --smoke."""
NOT_A_LABEL = -100
"""Label of a token that is not to be guessed, as PyTorch's cross-entropy takes it."""


def options(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of both programs; environment variables are defaults."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--seq-length", type=int, required=True, help="tokens of a sequence")
    add("--source-length", type=int, default=0, help="tokens or frames that an encoder reads")
    add("--train-steps", type=int, help="optimizer steps")
    add("--recompute", choices=("none", "selective", "full"), default="none")
    add("--recompute-layers", type=int, help="with full: the first layers alone")
    add(
        "--model",
        default=os.environ.get("MODEL") or None,
        help="config.json, its folder or a repository id; default: model_config.json beside this",
    )
    add("--from-pretrained", action="store_true", help="load the weights of --model")
    add(
        "--attention",
        default=os.environ.get("ATTENTION") or "sdpa",
        help="attn_implementation: sdpa, flash_attention_2, ...",
    )
    add(
        "--data",
        default=os.environ.get("DATA"),
        help="flat file of tokens (.bin), .jsonl, .parquet, or a data set of Hugging Face; for"
        " encoder-decoders with columns labels and input_ids or input_features, or text of which"
        " the first --source-length tokens are read and the rest is predicted",
    )
    add(
        "--token-bytes",
        type=int,
        choices=(2, 4),
        help="width of a token in a .bin; default: 2 where the vocabulary fits",
    )
    add(
        "--tokenizer",
        default=os.environ.get("TOKENIZER"),
        help="folder or repository id, for text",
    )
    add("--text-field", default="text")
    add("--split", default="train", help="of a data set")
    add(
        "--mask-share",
        type=float,
        default=0.15,
        help="of an encoder's tokens: how many it guesses",
    )
    add("--mask-token", type=int, help="id that hides them; default: the tokenizer's")
    add("--save", default=os.environ.get("SAVE"), help="folder of checkpoints")
    add("--save-every", type=int, default=1000, help="steps; the last step is always saved")
    add("--resume", action="store_true", help="go on from the newest checkpoint in --save")
    add("--log-every", type=int, default=1)
    add("--seed", type=int, default=1234)
    add("--cpu", action="store_true", help="train on the CPU over gloo")
    add("--smoke", action="store_true", help="two steps of random tokens on the CPU, one report")
    return parser


def parsed(parser: argparse.ArgumentParser, words: list[str] | None = None) -> argparse.Namespace:
    """Return the options; a run with --smoke is short and reads no data."""
    found = parser.parse_args(words)
    if found.smoke:
        found.cpu = True
        found.train_steps, found.data, found.save, found.resume = SMOKE_STEPS, None, None, False
        plain = found.attention in ("eager", "flex_attention")
        found.attention = "eager" if plain else "sdpa"
        found.seq_length = min(found.seq_length, SMOKE_TOKENS)
        found.source_length = min(found.source_length, SMOKE_TOKENS)
    elif not found.data:
        fail(
            "no data",
            "give --data FILE.bin, FILE.jsonl, FILE.parquet, a data set's name or random",
        )
    return found


def fail(problem: str, fix: str) -> None:
    """End the program with one line: what is wrong, what to change."""
    sys.exit(f"error: {problem}; {fix}")


def rank() -> int:
    """Return the number of this process; 0 without process groups."""
    return dist.get_rank() if dist.is_initialized() else 0


def say(text: str) -> None:
    """Print on rank 0 alone."""
    if rank() == 0:
        print(text, flush=True)


# ---- model ---------------------------------------------------------------------------------


def model_config(args: argparse.Namespace) -> Any:
    """Return the configuration of the model, with the attention that was asked for."""
    from transformers import AutoConfig

    name = args.model or HERE / "model_config.json"
    path = Path(name)
    if args.model is None and not path.is_file():
        fail(f"no {path.name} beside this program", "give --model (or MODEL=): a config.json")
    if args.from_pretrained and args.model is None:
        fail("--from-pretrained without weights", "give --model (or MODEL=): their folder or id")
    if path.is_file() and path.suffix == ".json":
        fields = json.loads(path.read_text())
        if "model_type" not in fields:
            fail(f"{path} has no model_type", "use the config.json of a Hugging Face model")
        config = AutoConfig.for_model(**fields)
    else:
        config = AutoConfig.from_pretrained(str(name))
    config._attn_implementation = args.attention
    config.use_cache = False
    if channels_of(config):  # its class takes sounds of one length
        args.source_length = config.max_source_positions
    if reads_first(config) and not args.source_length:
        fail("an encoder-decoder without --source-length", "say how many tokens its encoder reads")
    return config


def build_model(args: argparse.Namespace, config: Any, dtype: torch.dtype) -> Any:
    """Return the model: weights at random by the configuration, or those of --model."""
    kind = auto_class(config)
    torch.manual_seed(args.seed)
    if args.from_pretrained:
        folder = Path(args.model)
        name = str(folder.parent if folder.suffix == ".json" else args.model)
        return kind.from_pretrained(name, config=config, torch_dtype=dtype)
    return kind.from_config(config, torch_dtype=dtype)


def auto_class(config: Any) -> Any:
    """Return what of transformers builds a model by its configuration."""
    import transformers

    if reads_first(config):
        name = "AutoModelForSpeechSeq2Seq" if channels_of(config) else "AutoModelForSeq2SeqLM"
    else:
        name = "AutoModelForMaskedLM" if is_encoder(config) else "AutoModelForCausalLM"
    return getattr(transformers, name)


def reads_first(config: Any) -> bool:
    """Tell whether an encoder reads one sequence before a decoder predicts another."""
    return bool(getattr(config, "is_encoder_decoder", False))


def channels_of(config: Any) -> int:
    """Return the channels of the sound that an encoder hears; 0 of one that reads tokens."""
    return getattr(config, "num_mel_bins", 0) if reads_first(config) else 0


def is_encoder(config: Any) -> bool:
    """Tell whether a model guesses hidden tokens, each seeing those behind it."""
    return any(name.endswith("ForMaskedLM") for name in config.architectures or ())


def has_attention(config: Any) -> bool:
    """Tell whether a model knows positions, which one of state-space layers alone does not."""
    return config.model_type not in ("mamba", "mamba2", "falcon_mamba")


def layers_of(model: torch.nn.Module) -> Sequence[torch.nn.Module]:
    """Return the transformer layers: the longest list of modules of one class, or both sides'."""
    if reads_first(model.config):
        return [*layer_list(model.get_encoder()), *layer_list(model.get_decoder())]
    return layer_list(model)


def layer_list(model: torch.nn.Module) -> torch.nn.ModuleList:
    """Return the longest list of layers in a module."""
    lists = [x for x in model.modules() if isinstance(x, torch.nn.ModuleList) and len(x)]
    lists = [x for x in lists if "Layer" in type(x[0]).__name__ or "Block" in type(x[0]).__name__]
    if not lists:
        fail("the model has no list of layers", "give a decoder of Hugging Face as --model")
    return max(lists, key=lambda x: sum(p.numel() for p in x.parameters()))


def recompute_layers(model: torch.nn.Module, n_layers: int, *, to_host: bool = False) -> None:
    """Compute the first `n_layers` layers again in the backward; keep their inputs on the host."""
    layers = layers_of(model)
    for layer in layers[:n_layers]:
        if not hasattr(layer, "gradient_checkpointing"):
            fail(f"{type(layer).__name__} cannot be recomputed", "use transformers 4.53 or newer")
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(_checkpoint, to_host)


def _checkpoint(to_host: bool, function: Callable[..., Any], *inputs: Any) -> Any:
    if not to_host:
        return checkpoint(function, *inputs, use_reentrant=False)
    with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
        return checkpoint(function, *inputs, use_reentrant=False)


def attention_core(implementation: str) -> Callable[..., Any]:
    """Return what computes scores, softmax and their product with the values."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if implementation in ALL_ATTENTION_FUNCTIONS:
        return ALL_ATTENTION_FUNCTIONS[implementation]
    # The plain one stands in the file of each model.
    return lambda module, *inputs, **more: sys.modules[
        type(module).__module__
    ].eager_attention_forward(module, *inputs, **more)


def recompute_attention_core(implementation: str) -> None:
    """Compute the attention core again in the backward."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    core = attention_core(implementation)

    def recomputed(module: Any, *inputs: Any, **more: Any) -> Any:
        if not torch.is_grad_enabled():
            return core(module, *inputs, **more)
        return checkpoint(partial(core, module, **more), *inputs, use_reentrant=False)

    ALL_ATTENTION_FUNCTIONS[implementation] = recomputed


# ---- data ----------------------------------------------------------------------------------


class FlatFile:
    """Sequences of a flat file of token ids, as Megatron-LM's and nanoGPT's .bin are."""

    def __init__(self, path: str, length: int, width: int) -> None:
        import numpy as np

        self.tokens = np.memmap(path, dtype={2: np.uint16, 4: np.uint32}[width], mode="r")
        self.length = length

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self.length
        part = self.tokens[start : start + self.length + 1].astype("int64")
        return torch.from_numpy(part)


class PackedText:
    """Sequences cut from documents of a data set, one after the other with an end between."""

    def __init__(self, args: argparse.Namespace) -> None:
        from datasets import load_dataset
        from transformers import AutoTokenizer

        if not args.tokenizer:
            fail("text without a tokenizer", "give --tokenizer (or TOKENIZER=)")
        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
        kind = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}.get(
            Path(args.data).suffix
        )
        if kind:
            texts = load_dataset(kind, data_files=args.data, split="train")
        else:
            name, _, subset = args.data.partition(":")
            texts = load_dataset(name, subset or None, split=args.split)
        if args.text_field not in texts.column_names:
            fail(f"{args.data} has no field {args.text_field!r}", "give --text-field")
        self.length, end = args.seq_length, tokenizer.eos_token_id
        apply = partial(_packed, tokenizer, args.text_field, self.length + 1, end)
        self.rows = texts.map(
            apply, batched=True, batch_size=1000, remove_columns=texts.column_names
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.rows[index]["tokens"])


def _packed(tokenizer: Any, field: str, length: int, end: int | None, batch: Any) -> Any:
    ids: list[int] = []
    for words in tokenizer(batch[field], add_special_tokens=False)["input_ids"]:
        ids += words + ([end] if end is not None else [])
    return {"tokens": [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]}


class RandomTokens:
    """Sequences of random tokens, the same for the same number."""

    def __init__(self, length: int, vocab: int, seed: int) -> None:
        self.length, self.vocab, self.seed = length, vocab, seed

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + index)
        return torch.randint(0, self.vocab, (self.length + 1,), generator=generator)


class PreparedPairs:
    """Rows of a data set that a tokenizer or feature extractor has made: inputs and labels."""

    def __init__(self, args: argparse.Namespace, rows: Any, pad: int) -> None:
        self.rows, self.args, self.pad = rows, args, pad

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row, args = self.rows[index], self.args
        found = {"labels": _filled(row["labels"], args.seq_length, NOT_A_LABEL)}
        if "input_features" in row:
            return found | {"input_features": torch.tensor(row["input_features"])}
        ids = row["input_ids"][: args.source_length]
        seen = _filled([1] * len(ids), args.source_length, 0)
        return found | {
            "input_ids": _filled(ids, args.source_length, self.pad),
            "attention_mask": seen,
        }


def _filled(values: Sequence[int], length: int, filler: int) -> torch.Tensor:
    """Return integers cut or filled to a length."""
    held = list(values[:length])
    return torch.tensor(held + [filler] * (length - len(held)))


class RandomSound:
    """Random sounds and words for them, the same for the same number."""

    def __init__(self, args: argparse.Namespace, channels: int, vocab: int) -> None:
        self.words = RandomTokens(args.seq_length - 1, vocab, args.seed)
        self.shape = channels, 2 * args.source_length

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        sound = torch.randn(self.shape, generator=generator)
        return {"input_features": sound, "labels": self.words[index]}


def open_pairs(args: argparse.Namespace, config: Any) -> Any:
    """Return what an encoder-decoder trains on: rows of two sequences, or of one that is cut."""
    is_random = args.smoke or args.data == "random"
    if is_random and channels_of(config):
        return RandomSound(args, channels_of(config), config.vocab_size)
    if is_random or args.data.endswith(".bin"):
        return open_data(with_source(args), config.vocab_size)
    from datasets import load_dataset

    kind = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}.get(Path(args.data).suffix)
    name, _, subset = args.data.partition(":")
    rows = (
        load_dataset(kind, data_files=args.data, split="train")
        if kind
        else load_dataset(name, subset or None, split=args.split)
    )
    wanted = "input_features" if channels_of(config) else "input_ids"
    if {wanted, "labels"} <= {*rows.column_names}:
        return PreparedPairs(args, rows, config.pad_token_id or 0)
    if channels_of(config):
        fail(f"{args.data} has no columns {wanted} and labels", "run a feature extractor over it")
    return open_data(with_source(args), config.vocab_size)


def with_source(args: argparse.Namespace) -> argparse.Namespace:
    """Return options whose sequences have both sides' tokens, one fewer than are read of a row."""
    both = args.source_length + args.seq_length - 1
    return argparse.Namespace(**{**vars(args), "seq_length": both})


def open_data(args: argparse.Namespace, vocab: int) -> Any:
    """Return the sequences that the options name; rank 0 prepares what others then find."""
    if args.smoke or args.data == "random":
        return RandomTokens(args.seq_length, vocab, args.seed)
    if args.data.endswith(".bin"):
        if not Path(args.data).is_file():
            fail(f"no file {args.data}", "name a flat file of token ids")
        data: Any = FlatFile(
            args.data, args.seq_length, args.token_bytes or (2 if vocab <= 65536 else 4)
        )
    else:
        if rank():
            dist.barrier()
        data = PackedText(args)
        if not rank():
            dist.barrier()
    if not len(data):
        fail(f"{args.data} holds less than one sequence of {args.seq_length}", "use more data")
    return data


class Batches:
    """Micro-batches of one data-parallel rank: which sequences follows from the step alone.

    So a run that goes on from a checkpoint reads what it would have read. All sequences are drawn
    once, in an order of their own in each pass, before any comes again.
    """

    def __init__(
        self,
        data: Any,
        seed: int,
        place: tuple[int, int],
        sizes: tuple[int, int],
        part: tuple[int, int] | None = None,
    ) -> None:
        """`part`: where the rank's sequences begin in a micro-batch of all ranks, and its size.

        Without it all ranks have as many.
        """
        self.data, self.seed = data, seed
        self.mbs, self.n_micro = sizes
        self.start, self.together = part or (place[0] * self.mbs, place[1] * self.mbs)
        self._pass, self._order = -1, torch.empty(0, dtype=torch.int64)

    def step(self, step: int) -> Iterator[tuple[Any, torch.Tensor]]:
        """Yield the micro-batches of a step: tokens, and the tokens that follow them.

        Of data with two sequences the inputs by name, and labels.
        """
        for micro in range(self.n_micro):
            first = (step * self.n_micro + micro) * self.together + self.start
            rows = [self._row(first + i) for i in range(self.mbs)]
            if isinstance(rows[0], dict):
                both = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
                labels = both.pop("labels")
                yield both, labels
                continue
            tokens = torch.stack(rows)
            yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _row(self, index: int) -> Any:
        number, place = divmod(index, len(self.data))
        if isinstance(self.data, RandomTokens | RandomSound):
            return self.data[place]
        if number != self._pass:
            generator = torch.Generator().manual_seed(self.seed + number)
            self._pass, self._order = number, torch.randperm(len(self.data), generator=generator)
        return self.data[int(self._order[place])]


def guessing(args: argparse.Namespace, config: Any) -> Callable[..., Iterator[Any]]:
    """Return what makes the micro-batches of a step such as a model trains on.

    Of an encoder some tokens are hidden, and labels are those alone; an encoder-decoder gets its
    inputs by name; others stay as they are.
    """
    if reads_first(config):
        return lambda step, batches: (pair(args, config, *batch) for batch in batches)
    if not is_encoder(config):
        return lambda step, batches: iter(batches)
    if not 0 < args.mask_share < 1:
        fail(f"--mask-share {args.mask_share}", "give a share between 0 and 1")
    hider = mask_token(args, config.vocab_size)
    return lambda step, batches: (hidden(args, hider, step, tokens) for tokens, _ in batches)


def pair(
    args: argparse.Namespace, config: Any, inputs: Any, labels: torch.Tensor
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the inputs of an encoder-decoder by name, and labels.

    Of one sequence of tokens the first go to the encoder, the others are labels. The decoder reads
    the labels one place later.
    """
    if not isinstance(inputs, Mapping):
        whole = torch.cat([inputs, labels[:, -1:]], dim=1)
        source, labels = whole.split([args.source_length, args.seq_length], dim=1)
        inputs = {"input_ids": source.contiguous()}
    start = torch.full_like(labels[:, :1], config.decoder_start_token_id or 0)
    said = torch.cat([start, labels[:, :-1]], dim=1)
    said = said.masked_fill(said == NOT_A_LABEL, config.pad_token_id or 0)
    return {**inputs, "decoder_input_ids": said}, labels.contiguous()


def moved(inputs: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return inputs on a device, sounds in the format of the weights."""
    if isinstance(inputs, Mapping):
        return {name: moved(x, device, dtype) for name, x in inputs.items()}
    return inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)


def mask_token(args: argparse.Namespace, vocab: int) -> int:
    """Return the id that hides a token."""
    if args.mask_token is not None:
        return int(args.mask_token)
    if args.smoke or args.data == "random":
        return vocab - 1
    if args.tokenizer:
        from transformers import AutoTokenizer

        found = AutoTokenizer.from_pretrained(args.tokenizer).mask_token_id
        if found is not None:
            return int(found)
    fail("an encoder without the id that hides tokens", "give --mask-token")
    raise AssertionError


def hidden(
    args: argparse.Namespace, hider: int, step: int, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens of which a share is hidden, at places that step and tokens tell, and labels.

    At least one of each sequence: a mean over no token is no number.
    """
    generator = torch.Generator().manual_seed(args.seed + step + int(tokens.sum()))
    draws = torch.rand(tokens.shape, generator=generator)
    is_hidden = (draws < args.mask_share) | (draws == draws.amin(dim=1, keepdim=True))
    labels = torch.where(is_hidden, tokens, torch.full_like(tokens, NOT_A_LABEL))
    return torch.where(is_hidden, torch.full_like(tokens, hider), tokens), labels


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of labels that stand where they are predicted."""
    return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


# ---- log -----------------------------------------------------------------------------------


class Log:
    """Prints loss, time and tokens of a step, and the peak memory of rank 0.

    In words that `planner trial` and `planner calibrate` read, which are Megatron-LM's.
    """

    def __init__(self, args: argparse.Namespace, tokens_per_step: int) -> None:
        self.every, self.last = args.log_every, args.train_steps
        self.tokens, self.start = tokens_per_step, time.perf_counter()

    def step(self, step: int, loss: float) -> None:
        """Tell that a step has ended; the loss is read, so the device has ended it too."""
        now = time.perf_counter()
        seconds, self.start = now - self.start, now
        if (step + 1) % self.every and step + 1 != self.last:
            return
        parts = [
            f"iteration {step + 1}/{self.last}",
            f"loss {loss:.4f}",
            f"elapsed time per iteration (ms): {seconds * 1e3:.1f}",
            f"tokens per second: {self.tokens / seconds:.0f}",
        ]
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated() / 2**20
            parts.append(f"max allocated: {peak:.1f} MiB")
        say(" | ".join(parts))


def mean_over_ranks(loss: torch.Tensor) -> float:
    """Return the mean of a number over all ranks."""
    total = loss.detach().float().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def is_saved(args: argparse.Namespace, step: int) -> bool:
    """Tell whether a checkpoint is due after `step`, counted from 0."""
    due = (step + 1) % args.save_every == 0 or step + 1 == args.train_steps
    return bool(args.save) and due


# ---- smoke ---------------------------------------------------------------------------------


class Smoke:
    """Watches a short run from inside and prints what it saw as one line of JSON."""

    def __init__(self) -> None:
        self.batches: Counter[str] = Counter()
        self.n_micro = self.mbs = 0
        self.calls: Counter[int] = Counter()
        self.core_calls: Counter[int] = Counter()
        self.losses: list[float] = []
        self.norms: list[float] = []
        """Of gradients before they are clipped, where the program knows them."""
        self.sharding: dict[str, int] = {}

    def watch_layers(self, layers: Iterable[torch.nn.Module], start: int = 0) -> None:
        """Count how often each layer computes: more than once a micro-batch is recomputation."""
        for number, layer in enumerate(layers, start):
            # Of the layer itself a checkpoint may run the inside alone.
            first_part = next(layer.children())
            if isinstance(first_part, torch.nn.ModuleList):
                first_part = first_part[0]
            first_part.register_forward_pre_hook(lambda *_, n=number: self.calls.update([n]))

    def watch_attention(self, implementation: str) -> None:
        """Count how often the attention core computes, under whatever wraps it later."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        core = attention_core(implementation)

        def counted(module: Any, *inputs: Any, **more: Any) -> Any:
            is_decoder = getattr(module, "is_decoder", False)
            if not is_decoder or getattr(module, "is_causal", True):  # cross attention is no layer
                self.core_calls.update([(is_decoder, module.layer_idx)])
            return core(module, *inputs, **more)

        ALL_ATTENTION_FUNCTIONS[implementation] = counted

    def feeds(self, batches: Iterable[tuple[Any, torch.Tensor]]) -> Iterator[tuple[Any, Any]]:
        """Pass the micro-batches of the first step on, and count what went through."""
        for tokens, labels in batches:
            if not self.losses:
                rows = tokens["decoder_input_ids"] if isinstance(tokens, Mapping) else tokens
                self.n_micro, self.mbs = self.n_micro + 1, len(rows)
                for row in rows:
                    self.batches[hashlib.sha256(row.numpy().tobytes()).hexdigest()] += 1
            yield tokens, labels

    def recomputed(self, n_steps: int) -> dict[str, Any] | None:
        """Return the layers that computed twice for each micro-batch, or the modules."""
        passes = n_steps * self.n_micro
        for calls, modules in ((self.calls, []), (self.core_calls, ["core_attn"])):
            twice = sum(count >= 2 * passes for count in calls.values())
            if twice:
                return {"layers": twice, "modules": modules}
        return None

    def report(self, framework: str, release: str, seen: dict[str, Any]) -> None:
        """Print the line; `seen` has groups (ranks of this process by axis), stages, experts."""
        rows = gathered(
            {
                "groups": seen["groups"],
                "experts": seen["experts"],
                "batches": sorted(self.batches),
                "n_micro": self.n_micro,
            }
        )
        axes = [
            axis for axis in rows[0]["groups"] if any(len(r["groups"][axis]) > 1 for r in rows)
        ]
        groups = {axis: sorted({tuple(r["groups"][axis]) for r in rows}) for axis in axes}
        line = {
            "framework": framework,
            "release": release,
            "torch": torch.__version__,
            "world_size": dist.get_world_size(),
            "groups": groups,
            "stage_layers": seen["stage_layers"],
            "n_micro": max(row["n_micro"] for row in rows),
            "mbs": self.mbs,
            "gbs": len({batch for row in rows for batch in row["batches"]}),
            "sharding": self.sharding,
            "recompute": self.recomputed(len(self.losses)),
            "experts": [row["experts"] for row in rows] if rows[0]["experts"] else [],
            "parameters": seen["parameters"],
            "losses": [round(loss, 6) for loss in self.losses],
            **({"gradient_norms": self.norms} if self.norms else {}),
        }
        say("planner-smoke " + json.dumps(line))


def leave() -> None:
    """End a smoke run at once: gloo's threads may abort the end of the interpreter."""
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks."""
    rows: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(rows, value)
    return rows


def shares(whole: int, part: int) -> int:
    """Return over how many ranks something is split, from its size and that of a part."""
    return max(1, round(whole / max(1, part)))


def ranks_of(group: Any) -> list[int]:
    """Return the ranks of a process group, sorted."""
    return sorted(dist.get_process_group_ranks(group))
