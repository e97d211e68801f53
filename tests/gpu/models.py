"""Makes model folders for `--load-format dummy`: the config of a known shape and a small tokenizer of its own.

usage: python3 models.py CONFIG_FOLDER TARGET   (CONFIG_FOLDER holds NAME.config.json; needs the package `tokenizers`)
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

NAMES = ("llama8", "qwen3moe", "dsv3s")
VOCABULARY = 8000
TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}


def main(configs: Path, target: Path) -> None:
    """Write one folder for each model."""
    tokenizer = train()
    for name in NAMES:
        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        config = (configs / f"{name}.config.json").read_bytes()
        # SGLang 0.5.17 answers /tokenize with 500 when a tokenizer does not say its length.
        said = TOKENIZER | {"model_max_length": json.loads(config)["max_position_embeddings"]}
        (folder / "config.json").write_bytes(config)
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
        (folder / "tokenizer.json").write_text(tokenizer)
        (folder / "tokenizer_config.json").write_text(json.dumps(said))


def train() -> str:
    """Return a byte-level BPE tokenizer as JSON, trained on the sources of Python's own library."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train(sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("*.py"))), trainer)
    return str(made.to_str())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
