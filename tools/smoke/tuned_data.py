"""Makes a tiny model of a config.json with a tokenizer of bytes, and texts to train it on.

    python tuned_data.py CONFIG.json FOLDER [pairs]

Runs in the environment of the tools; the model goes to FOLDER/model, the texts to FOLDER/data;
with `pairs` each is a prompt with two answers.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

N_TEXTS = 200


def text_line(i: int, kind: str) -> str:
    """Return a line of the data: a text, or a prompt with the answers `chosen` and `rejected`."""
    if kind != "pairs":
        return json.dumps({"text": f"sample {i} " * 40}) + "\n"
    answers = {name: f"{name} {i} " * 40 for name in ("chosen", "rejected")}
    return json.dumps({"prompt": f"sample {i} ", **answers}) + "\n"


def main(config: str, folder: str, samples: str = "texts") -> None:
    """Write the model and the texts."""
    fields = json.loads(Path(config).read_text())
    kind = fields.pop("model_type")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields))
    model.save_pretrained(f"{folder}/model")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: i for i, word in enumerate(("<pad>", "<eos>", *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )
    fast.save_pretrained(f"{folder}/model")
    data = Path(folder, "data")
    data.mkdir()
    texts = [text_line(i, samples) for i in range(N_TEXTS)]
    (data / "train.jsonl").write_text("".join(texts))


if __name__ == "__main__":
    main(*sys.argv[1:])
