"""``accel ops``: which implementation each op has on a device, and why."""

from __future__ import annotations

from typing import Any

from accel.cli.help import examples
from accel.cli.options import DeviceSpec, Json
from accel.cli.output import print_table, write_json

__all__ = ["EPILOG", "ops"]

EPILOG = examples(
    "accel ops",
    "accel ops --device cpu --json",
    json='{"device", "ops": [{"name", "family", "kind", "note", "summary"}]}',
    after="\"kind\" is native (our kernel), library (the vendor's or the framework's), composed (from several of the "
    'framework\'s) or absent; "note" is why.',
)


def ops(device: DeviceSpec = "auto", json: Json = False) -> None:
    """List every op with the implementation a device has for it."""
    from accel import registry
    from accel.ops.spec import all_specs

    with registry.open(device) as opened:
        table: list[dict[str, Any]] = []
        for name, spec in all_specs().items():
            entry = opened.ops.implementation(name)
            table.append(
                {
                    "name": name,
                    "family": spec.family,
                    "kind": entry.kind.value,
                    "note": entry.note,
                    "summary": spec.summary,
                }
            )
        where = opened.name
    if json:
        write_json({"device": where, "ops": table})
        return
    columns = ("family", "name", "kind", "note", "summary")
    print_table(columns, [[row[column] for column in columns] for row in table])
