"""Tokenizers built from GGUF metadata.

Invariant: what is built gives the ids that the model's own tokenizer.json gives. A pre-tokenizer whose rules are not
known for certain is refused by name: a near miss would split words differently from training, silently.

======================  ===================================================================================
tokenizer.ggml.model    built as
======================  ===================================================================================
gpt2                    byte-level BPE: merges in file order, words split by the rules named by ``.pre``
llama                   SentencePiece BPE: merges derived from the scores, bytes as fallback, U+2581 for space
======================  ===================================================================================

Sources: the regular expressions are those of the models' tokenizer.json files, which llama.cpp's llama-vocab.cpp quotes
by the same names; merges from scores as in ``SentencePieceExtractor`` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from accel.errors import Unsupported
from accel.models.fields import Fields
from accel.models.tokenizer import Tokenizer

__all__ = ["gguf_tokenizer"]

_PREFIX: Final = "tokenizer.ggml."
#: tokenizer.ggml.token_type (gguf.TokenType)
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE: Final = "\u2581"

_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT: Final = r"\p{N}"
_FALLBACK: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Rules:
    """How a byte-level vocabulary splits text: each pattern cuts what the ones before left whole.

    Args:
        ignore_merges: a word that is a token becomes that token, whatever the merges say.
        add_bos: where the file does not say.
        nfc: text is brought to Unicode NFC first.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False


_DIGITS_RULES: Final = _Rules((_DIGIT, _GPT2))
_GPT2_RULES: Final = _Rules((_GPT2,))
_LLAMA3_RULES: Final = _Rules((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULES: Final = _Rules((_QWEN2,), nfc=True)

#: tokenizer.ggml.pre -> rules. Files from before that key existed are read as "default", as llama.cpp does.
_PRE: Final[Mapping[str, _Rules]] = {
    "default": _Rules(_FALLBACK),
    "gpt-2": _GPT2_RULES,
    "phi-2": _GPT2_RULES,
    "mpt": _GPT2_RULES,
    "olmo": _GPT2_RULES,
    "smollm": _DIGITS_RULES,
    "starcoder": _DIGITS_RULES,
    "refact": _DIGITS_RULES,
    "command-r": _DIGITS_RULES,
    "llama3": _LLAMA3_RULES,
    "llama-v3": _LLAMA3_RULES,
    "llama-bpe": _LLAMA3_RULES,
    "qwen2": _QWEN2_RULES,
    "deepseek-r1-qwen": _QWEN2_RULES,
    "tekken": _Rules((_TEKKEN,), ignore_merges=True, add_bos=True),
}


def gguf_tokenizer(metadata: Mapping[str, Any], origin: str = "GGUF metadata") -> Tokenizer | None:
    """The tokenizer in a GGUF file's metadata, or None where it holds none.

    Raises:
        ModelError: damaged or contradictory tokenizer keys.
        Unsupported: a tokenizer model or pre-tokenizer that is not in the tables above.
    """
    own = {key.removeprefix(_PREFIX): value for key, value in metadata.items() if key.startswith(_PREFIX)}
    fields = Fields(own, f"{origin}: {_PREFIX.rstrip('.')}")
    kind = fields.text("model", default="none")
    if kind in ("none", "no_vocab"):
        return None
    if kind not in _BUILDERS:
        raise Unsupported(
            f"{origin}: tokenizer model {kind!r} is not supported", hint=f"supported: {', '.join(_BUILDERS)}"
        )
    tokens: list[str] = fields.items("tokens", str)
    vocab = {token: id_ for id_, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise fields.error("tokens", f"has {len(tokens) - len(vocab)} duplicates among {len(tokens)}")
    types: list[int] = fields.items("token_type", int, default=[1] * len(tokens))
    if len(types) != len(tokens):
        raise fields.error("token_type", f"has {len(types)} entries for {len(tokens)} tokens")
    tokenizer, adds_bos = _BUILDERS[kind](fields, vocab, types)
    _add_special(tokenizer, tokens, types)
    special = _special_texts(fields, tokens)
    _add_template(tokenizer, fields, special, adds_bos)
    template = Fields(metadata, origin).text("tokenizer.chat_template", default=None)
    return Tokenizer(tokenizer, special, template)


def _byte_level(fields: Fields, vocab: dict[str, int], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    pre = fields.text("pre", default="default")
    if pre not in _PRE:
        raise Unsupported(
            f"{fields.origin}.pre {pre!r} is not a known pre-tokenizer", hint=f"known: {', '.join(_PRE)}", pre=pre
        )
    rules = _PRE[pre]
    merges = []
    for line in fields.items("merges", str):
        left, _, right = line.partition(" ")
        merges.append((left, right))
    tokenizer = _bpe(fields, vocab, merges, ignore_merges=rules.ignore_merges)
    if rules.nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rules.add_bos


def _sentencepiece(fields: Fields, vocab: dict[str, int], types: list[int]) -> tuple[tokenizers.Tokenizer, bool]:
    scores: list[float] = fields.items("scores", float)
    if len(scores) != len(vocab):
        raise fields.error("scores", f"has {len(scores)} entries for {len(vocab)} tokens")
    unknown = [token for token, id_ in vocab.items() if types[id_] == _UNKNOWN]
    tokenizer = _bpe(
        fields,
        vocab,
        _merges_from_scores(vocab, types, scores),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    prefix = fields.boolean("add_space_prefix", default=True)
    # Prepending is part of normalisation, so text after a special token gets its space as well: the older behaviour,
    # which llama.cpp shares.
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer, True


_BUILDERS: Final = {"gpt2": _byte_level, "llama": _sentencepiece}


def _bpe(
    fields: Fields, vocab: dict[str, int], merges: Sequence[tuple[str, str]], **options: Any
) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=list(merges), **options))
    except Exception as error:  # the library raises plain Exception: a merge of a token the vocabulary lacks
        raise fields.error("merges", f"do not fit the vocabulary: {error}") from error


def _merges_from_scores(vocab: dict[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best score first, which is the order SentencePiece merges in."""
    found: list[tuple[float, int, int, str, str]] = []
    for token, id_ in vocab.items():
        if types[id_] in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        ways = []
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ways.append((vocab[left], vocab[right], left, right))
        ways.sort()
        found.extend((-scores[id_], -len(left), -len(right), left, right) for _, _, left, right in ways)
    found.sort(key=lambda way: way[:3])
    return [(left, right) for *_, left, right in found]


def _add_special(tokenizer: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    # Empty texts cannot be found in a prompt, and the library ignores them.
    control = [text for text, kind in zip(tokens, types, strict=True) if kind in (_UNKNOWN, _CONTROL) and text]
    user = [text for text, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED and text]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in user])


def _special_texts(fields: Fields, tokens: list[str]) -> dict[str, str]:
    keys = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    ids = {name: fields.integer(key, low=0, high=len(tokens) - 1, default=None) for name, key in keys.items()}
    return {name: tokens[id_] for name, id_ in ids.items() if id_ is not None}


def _add_template(tokenizer: tokenizers.Tokenizer, fields: Fields, special: Mapping[str, str], adds_bos: bool) -> None:
    before = [special["bos_token"]] if "bos_token" in special and _says(fields, "add_bos_token", adds_bos) else []
    after = [special["eos_token"]] if "eos_token" in special and _says(fields, "add_eos_token", False) else []
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            pair=None,
            special_tokens=[(text, tokenizer.token_to_id(text)) for text in dict.fromkeys(before + after)],
        )


def _says(fields: Fields, name: str, default: bool) -> bool:
    return bool(fields.boolean(name, default=default))
