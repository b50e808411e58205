"""Who a block of KV is: digests that mean the same in every process, language and version.

::

    CacheIdentity ── root(adapter, salt) ──> namespace digest ──┐
                                                                v
    tokens of block 0 ───────────────────────────────> block_digest ──> digest 0
    tokens of block 1 ───────────────────────────────> block_digest ──> digest 1  …

    record of a block (integers little-endian):
    "akvb" | u8 schema | u8 0 | u16 extras | u32 tokens | parent digest 32 | tokens u32 … | (u16 tag, u32 n, bytes) …

A digest names the tokens of its block, all tokens before it, and everything that changes the bytes of a page.
``csrc/core/block_digest.cc`` has the same definition; ``tests/data/block_digests.json`` holds both to it.

Invariant: two different inputs never make the same record: every field has its own tag and states its length.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from accel.errors import InvalidArgument

__all__ = ["SCHEMA", "CacheIdentity", "block_digest", "chain"]

#: Raised when the record of a block or of a namespace changes; old digests are then never taken for new ones.
SCHEMA = 1
_DIGEST_BYTES = 32
_MOST_TOKEN = 2**31 - 1


def block_digest(parent: bytes, tokens: Sequence[int], extras: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """The digest of one block.

    Args:
        parent: 32 bytes: the digest of the block before, or of the namespace (:meth:`CacheIdentity.root`).
        tokens: the ids of the block, each 0 to 2**31 - 1.
        extras: (tag, bytes) of what else decides the pages, in a fixed order; a tag is 0 to 65535.

    Raises:
        InvalidArgument: a parent of another length, a token or tag out of range.
    """
    _check_digest(parent)
    bad = next((token for token in tokens if not 0 <= token <= _MOST_TOKEN), None)
    if bad is not None:
        raise InvalidArgument(f"a token is {bad}; it must be 0 to {_MOST_TOKEN}", op="block_digest")
    listed = tuple(extras)
    record = [struct.pack("<4sBBHI", b"akvb", SCHEMA, 0, len(listed), len(tokens)), parent]
    record.append(struct.pack(f"<{len(tokens)}I", *tokens))
    for tag, value in listed:
        if not 0 <= tag <= 0xFFFF:
            raise InvalidArgument(f"the tag of an extra is {tag}; it must be 0 to 65535", op="block_digest")
        record += [struct.pack("<HI", tag, len(value)), value]
    return hashlib.sha256(b"".join(record)).digest()


def chain(root: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """The digests of the full blocks of `tokens`, each the parent of the next. Raises as block_digest does."""
    if block_size < 1:
        raise InvalidArgument(f"block_size is {block_size}; it must be 1 or more", op="chain")
    _check_digest(root)
    digests: list[bytes] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        digests.append(block_digest(digests[-1] if digests else root, tokens[start : start + block_size]))
    return digests


def _check_digest(value: bytes) -> None:
    if len(value) != _DIGEST_BYTES:
        raise InvalidArgument(
            f"a parent digest has {len(value)} bytes; it must have {_DIGEST_BYTES}", op="block_digest"
        )


@dataclass(frozen=True)
class CacheIdentity:
    """Everything of an engine that changes the bytes of its pages; two may share pages only if all of it agrees.

    Attributes:
        model: fingerprint of the model's configuration.
        weights: version of the weights; a new one for each change, even under the same name.
        kv_layout: ``KVLayout.fingerprint()``: dtype, scales, block size, order and shape.
        tp_size, tp_rank: how heads are spread over ranks, and which of them lie here.

    Raises:
        InvalidArgument: an empty text, or a rank outside [0, tp_size).
    """

    model: str
    weights: str
    kv_layout: str
    tp_size: int = 1
    tp_rank: int = 0

    def __post_init__(self) -> None:
        for name in ("model", "weights", "kv_layout"):
            if not getattr(self, name):
                raise InvalidArgument(f"{name} of a cache identity is empty; pages of two models would be mixed up")
        if self.tp_size < 1 or not 0 <= self.tp_rank < self.tp_size:
            raise InvalidArgument(
                f"tp_rank is {self.tp_rank} of tp_size {self.tp_size}; the rank must be 0 to tp_size - 1",
                tp_rank=self.tp_rank,
                tp_size=self.tp_size,
            )

    def root(self, *, adapter: str = "", salt: str = "") -> bytes:
        """The namespace digest: the parent of each request's first block.

        Args:
            adapter: identity of the adapter with the revision of its content; empty without one.
            salt: keeps tenants apart; requests share pages only under the same salt.
        """
        record = [b"akvn", struct.pack("<B", SCHEMA)]
        named = [(field.name, str(getattr(self, field.name))) for field in fields(self)]
        for name, value in [*named, ("adapter", adapter), ("salt", salt)]:
            for part in (name.encode(), value.encode("utf-8", "surrogatepass")):
                record += [struct.pack("<I", len(part)), part]
        return hashlib.sha256(b"".join(record)).digest()
