"""Streams: the pieces joined equal decode of all ids, and no piece shows half a character."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizer_builders import SPACE, byte_level_metadata, pieces, sentencepiece_metadata
from tokenizers import decoders, models

from accel.models.detokenize import byte_level_alphabet, stream_factory
from accel.models.gguf_tokenizer import gguf_tokenizer
from accel.models.tokenizer import Tokenizer, require_tokenizer

BYTES = require_tokenizer(gguf_tokenizer(byte_level_metadata()), "the tests")
PIECES = require_tokenizer(gguf_tokenizer(sentencepiece_metadata()), "the tests")
PLAIN = require_tokenizer(gguf_tokenizer(sentencepiece_metadata(add_space_prefix=False)), "the tests")


def window_tokenizer() -> Tokenizer:
    """The same vocabulary under a decoder without a stream of its own."""
    words = {token: id_ for id_, token in enumerate(pieces())}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.decoder = decoders.Metaspace()
    return Tokenizer(tokenizer, {})


def streamed(tokenizer: Tokenizer, ids: Sequence[int], skip: bool) -> list[str]:
    stream = tokenizer.stream(skip)
    return [*(stream.push(id_) for id_ in ids), stream.finish()]


TOKENIZERS = pytest.mark.parametrize("tokenizer", [BYTES, PIECES, PLAIN], ids=["bytes", "pieces", "no-prefix"])


@TOKENIZERS
@settings(max_examples=400, deadline=None)
@given(ids=st.lists(st.integers(0, 300), max_size=24), skip=st.booleans())
@example(ids=[0xE2 + 3, 0x82 + 3, 0xAC + 3, 0xFF + 3, 259], skip=True)
@example(ids=[0xF0, 0x9F, 0x98, 0x80], skip=True)
def test_pieces_joined_equal_decode(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(streamed(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@TOKENIZERS
@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=20))
@example(text="日本語 😀👩‍👩‍👧 é")
def test_text_streams_back_without_replacement_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = streamed(tokenizer, ids, False)
    assert "".join(parts) == tokenizer.decode(ids, False)
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


def test_a_character_appears_with_its_last_byte() -> None:
    ids = BYTES.encode("é😀", add_special_tokens=False)
    assert streamed(BYTES, ids, True) == ["", "é", "", "", "", "😀", ""]


def test_incomplete_bytes_are_shown_at_the_end() -> None:
    assert streamed(BYTES, [0x61, 0xF0, 0x9F], True) == ["a", "", "", "\ufffd"]
    assert streamed(PIECES, [0xE2 + 3, 0x82 + 3], True) == ["", "", "\ufffd\ufffd"]


def test_special_tokens_are_skipped_or_shown_as_asked() -> None:
    assert "".join(streamed(BYTES, [256, 0x61, 257], True)) == "a"
    assert "".join(streamed(BYTES, [256, 0x61, 257], False)) == "<s>a</s>"


def test_only_the_prefix_space_of_the_first_word_is_stripped() -> None:
    ids = PIECES.encode("hello hello", add_special_tokens=True)
    assert "".join(streamed(PIECES, ids, True)) == "hello hello"


def test_ids_without_a_token_add_nothing() -> None:
    assert streamed(BYTES, [0x61, 10**6, 0x62], True) == ["a", "", "b", ""]


def test_the_window_stream_equals_decode_and_its_window_stays_short() -> None:
    tokenizer, rng = window_tokenizer(), random.Random(0)
    ids = [rng.randrange(len(pieces())) for _ in range(500)]
    assert "".join(streamed(tokenizer, ids, True)) == tokenizer.decode(ids)
    widths = []

    class Spy:
        decoder = tokenizer._tokenizer.decoder

        def get_added_tokens_decoder(self) -> dict[int, object]:
            return {}

        def id_to_token(self, id_: int) -> str | None:
            return tokenizer._tokenizer.id_to_token(id_)

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            widths.append(len(ids))
            return tokenizer._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    stream = stream_factory(Spy())(True)  # type: ignore[arg-type]
    for id_ in ids:
        stream.push(id_)
    assert max(widths) <= 32


def test_the_byte_alphabet_is_the_libraries() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = byte_level_alphabet()
    assert sorted(alphabet) == sorted(ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    assert alphabet["Ġ"] == 0x20
    assert SPACE not in alphabet


def test_the_real_vocabulary_streams_as_it_decodes(demo_tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for round_ in range(300):
        top = demo_tokenizer.vocab_size if round_ % 2 else 400
        ids = [rng.randrange(top) for _ in range(rng.randrange(40))]
        for skip in (True, False):
            assert "".join(streamed(demo_tokenizer, ids, skip)) == demo_tokenizer.decode(ids, skip)
