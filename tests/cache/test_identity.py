"""A digest means the same in Python, in C++ and in every process, and differs whenever the bytes of a page could."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from accel import _core
from accel.cache.identity import CacheIdentity, block_digest, chain
from accel.errors import InvalidArgument

ROOT = bytes(range(32))
IDENTITY = CacheIdentity(model="m", weights="w", kv_layout="k", tp_size=2, tp_rank=0)


@pytest.fixture(scope="module")
def golden(reference_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((reference_data / "block_digests.json").read_text(encoding="utf-8"))
    return found


def native(root: bytes, tokens: list[int], block_size: int, portable: bool) -> list[bytes]:
    joined = _core.block_digests(root, np.array(tokens, np.int32), block_size, portable=portable)
    return [joined[at : at + 32] for at in range(0, len(joined), 32)]


def test_python_gives_the_golden_digests(golden: dict[str, Any]) -> None:
    for case in golden["namespaces"]:
        root = CacheIdentity(**case["identity"]).root(adapter=case["adapter"], salt=case["salt"])
        assert root.hex() == case["root"]
    for case in golden["chains"]:
        digests = chain(bytes.fromhex(case["root"]), case["tokens"], case["block_size"])
        assert [digest.hex() for digest in digests] == case["digests"]
    for case in golden["extras"]:
        extras = [(tag, bytes.fromhex(value)) for tag, value in case["extras"]]
        assert block_digest(bytes.fromhex(case["parent"]), case["tokens"], extras).hex() == case["digest"]


@pytest.mark.parametrize("portable", [False, True])
def test_native_code_gives_the_golden_digests(golden: dict[str, Any], portable: bool) -> None:
    for case in golden["chains"]:
        digests = native(bytes.fromhex(case["root"]), case["tokens"], case["block_size"], portable)
        assert [digest.hex() for digest in digests] == case["digests"]


@settings(deadline=None, derandomize=True)
@given(
    root=st.binary(min_size=32, max_size=32),
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=70),
    block_size=st.integers(1, 40),
)
def test_all_three_implementations_agree(root: bytes, tokens: list[int], block_size: int) -> None:
    expected = chain(root, tokens, block_size)
    assert native(root, tokens, block_size, portable=False) == expected
    assert native(root, tokens, block_size, portable=True) == expected


def test_the_record_is_what_the_definition_says() -> None:
    record = b"akvb" + bytes([1, 0]) + (1).to_bytes(2, "little") + (2).to_bytes(4, "little") + ROOT
    record += (7).to_bytes(4, "little") + (8).to_bytes(4, "little")
    record += (5).to_bytes(2, "little") + (3).to_bytes(4, "little") + b"abc"
    assert block_digest(ROOT, [7, 8], [(5, b"abc")]) == hashlib.sha256(record).digest()


def test_digests_do_not_depend_on_the_process() -> None:
    code = (
        "import numpy as np; from accel import _core; from accel.cache.identity import CacheIdentity, chain\n"
        "root = CacheIdentity('m', 'w', 'k').root(adapter='a', salt='s')\n"
        "print(chain(root, range(32), 16)[1].hex(), _core.block_digests(root, np.arange(32, dtype=np.int32), 16).hex())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_a_digest_depends_on_everything_before_it() -> None:
    tokens = list(range(12))
    before = chain(ROOT, tokens, 4)
    for position in range(12):
        changed = [*tokens[:position], 99, *tokens[position + 1 :]]
        after = chain(ROOT, changed, 4)
        assert [a == b for a, b in zip(before, after, strict=True)] == [i < position // 4 for i in range(3)]
    assert not set(before) & set(chain(bytes(32), tokens, 4))


def test_extras_are_told_apart_from_each_other_and_from_tokens() -> None:
    word = (1).to_bytes(4, "little")
    variants: list[tuple[list[int], list[tuple[int, bytes]]]] = [
        ([1, 2], []),
        ([1, 2], [(1, b"")]),
        ([1, 2], [(1, b"ab")]),
        ([1, 2], [(2, b"ab")]),
        ([1, 2], [(1, b"a"), (1, b"b")]),
        ([1, 2], [(1, b"b"), (1, b"a")]),
        ([1], [(2, word)]),
        ([1, 2, 1], []),
    ]
    assert len({block_digest(ROOT, tokens, extras) for tokens, extras in variants}) == len(variants)


def other(value: object) -> Any:
    return f"{value}x" if isinstance(value, str) else int(str(value)) + 1


def test_every_field_of_the_identity_matters() -> None:
    roots = {IDENTITY.root(), IDENTITY.root(adapter="a"), IDENTITY.root(salt="a")}
    for field in fields(IDENTITY):
        roots.add(replace(IDENTITY, **{field.name: other(getattr(IDENTITY, field.name))}).root())
    assert len(roots) == 3 + len(fields(CacheIdentity))


def test_bytes_that_move_from_one_field_to_the_next_change_the_identity() -> None:
    texts = [field.name for field in fields(IDENTITY) if isinstance(getattr(IDENTITY, field.name), str)]
    assert len(texts) > 2
    for first, second in pairwise(texts):
        moved = [replace(IDENTITY, **{first: a, second: b}).root() for a, b in (("ab", "c"), ("a", "bc"))]  # type: ignore[arg-type]
        assert moved[0] != moved[1], (first, second)
    assert IDENTITY.root(adapter="ab", salt="c") != IDENTITY.root(adapter="a", salt="bc")
    assert replace(IDENTITY, tp_size=12, tp_rank=1).root() != replace(IDENTITY, tp_size=11, tp_rank=2).root()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ""}, "model of a cache identity is empty"),
        ({"weights": ""}, "weights of a cache identity is empty"),
        ({"kv_layout": ""}, "kv_layout of a cache identity is empty"),
        ({"tp_rank": 2}, "tp_rank is 2 of tp_size 2"),
        ({"tp_size": 0}, "of tp_size 0"),
        ({"tp_rank": -1}, "tp_rank is -1"),
    ],
)
def test_an_identity_that_names_nothing_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        replace(IDENTITY, **change)


def test_what_has_no_digest_is_refused_by_name() -> None:
    tokens = np.zeros(4, np.int32)
    with pytest.raises(InvalidArgument, match="parent digest has 31 bytes"):
        block_digest(bytes(31), [1])
    with pytest.raises(InvalidArgument, match="a token is -1"):
        block_digest(ROOT, [1, -1])
    with pytest.raises(InvalidArgument, match=f"a token is {2**31}"):
        block_digest(ROOT, [2**31])
    with pytest.raises(InvalidArgument, match="tag of an extra is 65536"):
        block_digest(ROOT, [1], [(65536, b"")])
    with pytest.raises(InvalidArgument, match="block_size is 0"):
        chain(ROOT, [1], 0)
    with pytest.raises(InvalidArgument, match="root has 31 bytes"):
        _core.block_digests(bytes(31), tokens, 4)
    with pytest.raises(InvalidArgument, match="block_size is 0"):
        _core.block_digests(ROOT, tokens, 0)
    with pytest.raises(InvalidArgument, match=r"tokens\[3\] is -1"):
        _core.block_digests(ROOT, np.array([0, 0, 0, -1], np.int32), 4)
    with pytest.raises(InvalidArgument, match="tokens is an array of int64"):
        _core.block_digests(ROOT, tokens.astype(np.int64), 4)  # type: ignore[arg-type]
