"""A tiny model that speaks: the tiny llama with a byte-level tokenizer of its 320 ids.

Its weights are random, so its output is any bytes: half characters, invalid ones, all that a detokeniser has to bear.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from accel.models.detokenize import byte_level_alphabet

#: Tokens of two and more bytes, so that stop strings lie across and within tokens.
MERGES = [(a, b) for a in "abcdefgh" for b in "aeiou"] + [("e", "r"), ("o", "n"), ("th", "e")]
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}"


def write_text_model(source: Path, folder: Path) -> Path:
    """Copy the model in `source` to `folder` and give it a tokenizer and a chat template."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    vocab = {char: index for index, char in enumerate(byte_level_alphabet())}
    for pair in MERGES:
        if all(part in vocab for part in pair):
            vocab.setdefault("".join(pair), len(vocab))
    merges = [pair for pair in MERGES if "".join(pair) in vocab and all(part in vocab for part in pair)]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder
