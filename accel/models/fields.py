"""Typed reading of untrusted key-value data: config.json, tokenizer_config.json, GGUF metadata.

Invariant: a value that leaves a :class:`Fields` has the type asked for and lies within its limits; anything else is a
ModelError that names the file, the field, the value and the limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from accel.errors import ModelError

__all__ = ["MAX_COUNT", "Fields", "read_json"]

T = TypeVar("T")

#: No count in a model description reaches this; a larger one is damage and must not become an allocation.
MAX_COUNT: Final = 2**31 - 1

_MISSING: Final = object()


@dataclass(frozen=True)
class Fields:
    """One mapping and the name of the file it came from.

    A field that is absent or null takes `default`; without one that is an error.
    """

    values: Mapping[str, Any]
    origin: str

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def error(self, name: str, problem: str, **values: Any) -> ModelError:
        """A ModelError that says where `name` stands and what is wrong with it."""
        return ModelError(f"{self.origin}: {name} {problem}", field=name, **values)

    def _get(self, name: str, default: object) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise self.error(name, "is missing", hint="the file is incomplete; fetch the model again")
        return _MISSING

    def integer(self, name: str, *, low: int = 1, high: int = MAX_COUNT, default: Any = _MISSING) -> Any:
        """An int in [low, high]; a bool or a float is not one. An absent field gives `default` as it is."""
        value = self._get(name, default)
        if value is _MISSING:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, f"is {_show(value)}, not an integer", value=value)
        if not low <= value <= high:
            raise self.error(name, f"is {value}, outside {low}..{high}", value=value, low=low, high=high)
        return value

    def number(self, name: str, *, above: float = 0.0, default: Any = _MISSING) -> Any:
        """A finite float greater than `above`."""
        value = self._get(name, default)
        if value is _MISSING:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, f"is {_show(value)}, not a number", value=value)
        if isinstance(value, int) and abs(value) >= 2**63:  # would overflow the conversion
            raise self.error(name, "does not fit in 64 bits", value=value)
        number = float(value)
        if not math.isfinite(number) or number <= above:
            raise self.error(name, f"is {number!r}; it must be finite and above {above:g}", value=number, above=above)
        return number

    def boolean(self, name: str, *, default: Any = _MISSING) -> Any:
        return self._typed(name, bool, "true or false", default)

    def text(self, name: str, *, default: Any = _MISSING) -> Any:
        return self._typed(name, str, "a string", default)

    def mapping(self, name: str, *, default: Any = _MISSING) -> Any:
        return self._typed(name, dict, "an object", default)

    def items(self, name: str, kind: type[T], *, default: Any = _MISSING) -> Any:
        """A list whose elements all have type `kind`."""
        value = self._typed(name, list, "a list", default)
        if value is default:
            return default
        # A set of types is far quicker than a loop of isinstance over 150,000 tokens.
        wrong = sorted(t.__name__ for t in set(map(type, value)) if t is not kind)
        if wrong:
            raise self.error(name, f"has elements of type {wrong[0]}; expected only {kind.__name__}")
        return value

    def _typed(self, name: str, kind: type, what: str, default: object) -> Any:
        value = self._get(name, default)
        if value is _MISSING:
            return default
        if not isinstance(value, kind):
            raise self.error(name, f"is {_show(value)}, not {what}", value=value)
        return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in the file at `path`.

    Raises:
        ModelError: absent, unreadable, empty, not UTF-8, not JSON, or not an object.
    """
    try:
        content = path.read_bytes()
        value = json.loads(content.decode("utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}", path=str(path)) from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        size = "is empty" if not content else f"is not valid JSON: {error}"
        raise ModelError(f"{path} {size}", path=str(path), hint="fetch the file again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {_show(value)}, not a JSON object", path=str(path))
    return value


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
