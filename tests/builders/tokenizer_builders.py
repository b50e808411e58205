"""Small tokenizers for the tests, as GGUF metadata."""

from __future__ import annotations

from typing import Any

from accel.models.detokenize import byte_level_alphabet

SPACE = "\u2581"


def byte_level_metadata(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary: the 256 bytes, a few words, two control tokens (256 <s>, 257 </s>), one added (258)."""
    alphabet = sorted(byte_level_alphabet(), key=byte_level_alphabet().__getitem__)
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o"]
    tokens = [*alphabet, "<s>", "</s>", "<tool>", *(merge.replace(" ", "") for merge in merges)]
    types = [1] * 256 + [3, 3, 4] + [1] * len(merges)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
    }
    return _changed(metadata, changes)


def pieces() -> dict[str, float]:
    """The words of the SentencePiece vocabulary and their scores; whole words beat their parts."""
    singles = {char: -100.0 - i for i, char in enumerate(f"{SPACE}helowrdxé日")}
    words = {"he": -1.0, "ll": -2.0, "hell": -3.0, "hello": -4.0, "lo": -2.5, f"{SPACE}h": -5.0, "wor": -6.0}
    words |= {"wo": -7.0, f"{SPACE}wor": -8.0, "ld": -9.0, f"{SPACE}hello": -10.0, f"{SPACE}{SPACE}": -11.0}
    return singles | words


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """<unk>, <s>, </s>, the 256 bytes, then :func:`pieces`."""
    words = pieces()
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.scores": [0.0] * 259 + list(words.values()),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return _changed(metadata, changes)


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not ...}
