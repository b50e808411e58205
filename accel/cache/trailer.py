"""The 64 bytes behind a page on the host: what a record says about itself once it leaves this process.

::

    byte   0       4         6      8         16          24           32                             64
           | magic | version | zero | length  | checksum  | namespace  | digest                       |
           | akvp  | u16     | u16  | u64     | u64       | 8 bytes    | 32 bytes                     |

All integers are little-endian. `length` counts the bytes of the page, `checksum` is that of the page (the op
``pages_checksum``), `namespace` the first bytes of the namespace digest and `digest` the block's (``cache.identity``).
The block's digest follows from the whole namespace digest; the part of it here only says early why a record is foreign.
Whoever sends a record away fills it; in the pool itself a trailer means nothing.

Invariant: this is the only definition of the trailer. A change raises VERSION.
"""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["MAGIC", "TRAILER", "TRAILER_BYTES", "VERSION"]

MAGIC: Final = b"akvp"
VERSION: Final = 1

#: One trailer as a NumPy record.
TRAILER: Final = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u2"),
        ("zero", "<u2"),
        ("length", "<u8"),
        ("checksum", "<u8"),
        ("namespace", "V8"),
        ("digest", "V32"),
    ]
)
TRAILER_BYTES: Final = 64
