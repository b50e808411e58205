"""Tokenizers from folders and from GGUF metadata, and the chat template environment."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_builders import SPACE, byte_level_metadata, pieces, sentencepiece_metadata
from tokenizers import AddedToken, models

from accel.errors import InvalidArgument, InvalidRequest, ModelError, Unsupported
from accel.models.chat_template import ChatTemplate
from accel.models.gguf_tokenizer import gguf_tokenizer
from accel.models.tokenizer import Tokenizer, load_tokenizer, require_tokenizer

USER = [{"role": "user", "content": "hi"}]


def build(metadata: dict[str, Any]) -> Tokenizer:
    return require_tokenizer(gguf_tokenizer(metadata), "the test")


def words(pre: str, text: str) -> list[str]:
    splitter = build(byte_level_metadata(pre))._tokenizer.pre_tokenizer
    return [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)]


def test_prompts_encode_to_the_reference_ids(reference_data: Path, demo_tokenizer: Tokenizer) -> None:
    for case in json.loads((reference_data / "smollm2_greedy.json").read_text()):
        assert demo_tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        assert demo_tokenizer.decode(case["greedy"], skip_special_tokens=False) == case["text"]


def test_the_demo_models_chat_prompt_holds_its_special_tokens_as_single_ids(demo_tokenizer: Tokenizer) -> None:
    text = demo_tokenizer.apply_chat_template(USER)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    ids = demo_tokenizer.encode(text, add_special_tokens=False)
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    assert (demo_tokenizer.bos_id, demo_tokenizer.eos_id, demo_tokenizer.vocab_size) == (1, 2, 49152)


SPLITS = {
    "gpt-2": ["I", "'m", " 1234", " ok", "!!", "\n\n", " x"],
    "smollm": ["I", "'m", " ", "1", "2", "3", "4", " ok", "!!", "\n\n", " x"],
    "llama-bpe": ["I", "'m", " ", "123", "4", " ok", "!!\n\n", " x"],
    "qwen2": ["I", "'m", " ", "1", "2", "3", "4", " ok", "!!\n\n", " x"],
    "tekken": ["I", "'m", " ", "1", "2", "3", "4", " ok", "!!\n\n", " x"],
    "default": ["I", "'", "m", " ", "123", "4", " ok", "!!", "\n\n", " x"],
}


@pytest.mark.parametrize("pre", SPLITS)
def test_pre_tokenizers_split_as_their_models_do(pre: str) -> None:
    assert words(pre, "I'm 1234 ok!!\n\n x") == SPLITS[pre]


def test_only_the_newer_pre_tokenizers_know_upper_case_contractions() -> None:
    assert words("gpt-2", "I'M")[:2] == ["I", "'"]
    assert words("llama-bpe", "I'M") == ["I", "'M"]


def test_merges_apply_in_their_order() -> None:
    tokenizer = build(byte_level_metadata())
    assert [tokenizer._tokenizer.id_to_token(i) for i in tokenizer.encode("hello wo")] == ["hello", "Ġwo"]


def test_control_and_user_tokens_are_found_in_text_and_only_control_is_skipped() -> None:
    tokenizer = build(byte_level_metadata())
    ids = tokenizer.encode("<s>a<tool>b</s>")
    assert ids == [256, 0x61, 258, 0x62, 257]
    assert tokenizer.decode(ids) == "a<tool>b"


@pytest.mark.parametrize(
    ("pre", "changes", "expected"),
    [
        ("gpt-2", {}, [0x61]),
        ("gpt-2", {"add_bos_token": True}, [256, 0x61]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [256, 0x61, 257]),
        ("llama-bpe", {}, [256, 0x61]),
        ("llama-bpe", {"add_bos_token": False}, [0x61]),
        ("llama-bpe", {"bos_token_id": ...}, [0x61]),
    ],
)
def test_special_tokens_are_added_as_the_file_says(pre: str, changes: dict[str, Any], expected: list[int]) -> None:
    tokenizer = build(byte_level_metadata(pre, **changes))
    assert tokenizer.encode("a") == expected
    assert tokenizer.encode("a", add_special_tokens=False) == [0x61]


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=30))
def test_byte_level_text_comes_back(text: str) -> None:
    tokenizer = build_once("bytes")
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


_BUILT: dict[str, Tokenizer] = {}


def build_once(kind: str) -> Tokenizer:
    if kind not in _BUILT:
        _BUILT[kind] = build(byte_level_metadata() if kind == "bytes" else sentencepiece_metadata())
    return _BUILT[kind]


def merged_by_score(text: str) -> list[str]:
    """SentencePiece's own procedure: of all adjacent pairs that form a token, merge the best scored, leftmost first."""
    scores = pieces()
    symbols = list((SPACE + text if text else "").replace(" ", SPACE))
    while True:
        pairs = [(scores[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in scores]
        if not pairs:
            return symbols
        at = -max(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="helowrd xé日", max_size=16))
def test_scores_merge_as_sentencepiece_does(text: str) -> None:
    tokenizer = build_once("pieces")
    found = [tokenizer._tokenizer.id_to_token(i) for i in tokenizer.encode(text, add_special_tokens=False)]
    assert found == merged_by_score(text)


def test_sentencepiece_adds_bos_falls_back_to_bytes_and_keeps_the_text() -> None:
    tokenizer = build_once("pieces")
    ids = tokenizer.encode("hello €")
    assert ids[0] == 1
    assert ids[-3:] == [0xE2 + 3, 0x82 + 3, 0xAC + 3]
    assert tokenizer.decode(ids) == "hello €"


def test_sentencepiece_without_prefix_space() -> None:
    tokenizer = build(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False))
    assert [tokenizer._tokenizer.id_to_token(i) for i in tokenizer.encode("hello")] == ["hello"]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"pre": "my-own"}, Unsupported, r"tokenizer\.ggml\.pre 'my-own'.*smollm"),
        ({"model": "bert"}, Unsupported, "tokenizer model 'bert'.*gpt2, llama"),
        ({"tokens": ...}, ModelError, "tokens is missing"),
        ({"tokens": ["a", "a"]}, ModelError, "1 duplicates among 2"),
        ({"tokens": [1, 2]}, ModelError, "elements of type int"),
        ({"token_type": [1]}, ModelError, "token_type has 1 entries"),
        ({"merges": ...}, ModelError, "merges is missing"),
        ({"merges": ["q zzz"]}, ModelError, "merges do not fit the vocabulary"),
        ({"bos_token_id": 10**6}, ModelError, "bos_token_id is 1000000"),
        ({"add_bos_token": 1}, ModelError, "add_bos_token is 1, not true or false"),
    ],
)
def test_damaged_tokenizer_keys_are_named(changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gguf_tokenizer(byte_level_metadata(**changes))


def test_scores_are_needed_for_each_token() -> None:
    with pytest.raises(ModelError, match="scores has 1 entries"):
        gguf_tokenizer(sentencepiece_metadata(scores=[0.0]))


def test_no_tokenizer_is_none_and_text_then_a_typed_error(tmp_path: Path) -> None:
    assert gguf_tokenizer({}) is None
    assert gguf_tokenizer({"tokenizer.ggml.model": "none"}) is None
    assert load_tokenizer(tmp_path) is None
    with pytest.raises(InvalidRequest, match=r"a text prompt needs a tokenizer.*pass token ids"):
        require_tokenizer(None, "a text prompt")


def test_lone_surrogates_and_wrong_ids_are_refused() -> None:
    tokenizer = build_once("bytes")
    with pytest.raises(InvalidRequest, match=r"\\ud800.* at character 1"):
        tokenizer.encode("a\ud800")
    for id_ in (-1, 2**32):
        with pytest.raises(InvalidArgument, match=str(id_)):
            tokenizer.decode([id_])


def write_tokenizer(folder: Path, **config: Any) -> Path:
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_folders_files_give_special_tokens_and_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, bos_token={"content": "<s>"}, chat_template="{{ bos_token }}{{ messages[0].content }}")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "no", "eos_token": "</s>"}))
    tokenizer = require_tokenizer(load_tokenizer(tmp_path), "the test")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (2, 3, 4)
    assert tokenizer.apply_chat_template(USER) == "<s>hi"
    assert tokenizer.encode("abab") == [0, 1, 0, 1]


def test_a_template_file_wins_over_the_config_and_lists_use_their_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert require_tokenizer(load_tokenizer(write_tokenizer(tmp_path, chat_template=named)), "").chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert require_tokenizer(load_tokenizer(tmp_path), "").chat_template == "F"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", "is not a tokenizer"),
        ("tokenizer_config.json", "[]", "not a JSON object"),
        ("tokenizer_config.json", "", "is empty"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template is 3, not a string"),
        ("tokenizer_config.json", '{"chat_template": []}', 'without one named "default"'),
        ("special_tokens_map.json", "\x00", "not valid JSON"),
    ],
)
def test_damaged_files_are_model_errors(tmp_path: Path, file: str, content: str, message: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(tmp_path)


def render(source: str, messages: list[dict[str, Any]] = USER, **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, **options)


def test_templates_see_what_transformers_gives_them() -> None:
    assert render("{% for m in messages %}\n  {% if m.role %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}") == "user\n"
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": [\n  2\n ],\n "b": 1\n}'
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ bos_token }}{% endgeneration %}") == "<s>"
    assert render("{{ strftime_now('%Y') | length }}") == "4"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"
    assert render("{% if tools %}T{% endif %}{{ documents is none }}") == "True"


@pytest.mark.parametrize(
    ("source", "messages", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", USER, "roles must alternate"),
        ("{{ messages[0].content + 1 }}", USER, "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", USER, "unsafe"),
        ("{% set _ = messages.append(1) %}", USER, "refuses these messages"),
        ("x", [], "at least one message"),
        ("x", [{"content": "hi"}], "message 0 has no role"),
    ],
)
def test_refused_conversations_are_invalid_requests(source: str, messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        render(source, messages)


def test_a_broken_template_is_the_models_fault_and_none_the_requests() -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        render("{% if %}")
    with pytest.raises(InvalidRequest, match="no chat template"):
        build_once("bytes").apply_chat_template(USER)
