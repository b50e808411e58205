"""Objects that only the library makes."""

from __future__ import annotations

import pytest

from accel import _core


@pytest.mark.parametrize("name", ["View", "Runtime", "NativeDevice", "Stream", "Event", "Gate", "HostRegistration"])
def test_python_cannot_make_one_without_a_value(name: str) -> None:
    cls = getattr(_core, name)
    derived = type("Derived", (cls,), {})
    other = _core.Stream if name == "View" else _core.View
    for make in (cls, derived, lambda: cls.__new__(cls), lambda: derived.__new__(derived), lambda: other.__new__(cls)):
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        object.__new__(cls)
