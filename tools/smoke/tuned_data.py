"""Makes a tiny model of a config.json with a tokenizer of bytes, and texts to train it on.

    python tuned_data.py CONFIG.json FOLDER

Runs in the environment of the tools; the model goes to FOLDER/model, the texts to FOLDER/data.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

N_TEXTS = 200


def main(config: str, folder: str) -> None:
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
    texts = [json.dumps({"text": f"sample {i} " * 40}) + "\n" for i in range(N_TEXTS)]
    (data / "train.jsonl").write_text("".join(texts))


if __name__ == "__main__":
    main(*sys.argv[1:])
