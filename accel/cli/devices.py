"""``accel devices``: what can be opened here. Imports no framework, so it answers in a fraction of a second."""

from __future__ import annotations

from accel.cli.help import examples
from accel.cli.options import Json
from accel.cli.output import human_bytes, note, print_table, write_json

__all__ = ["EPILOG", "devices"]

EPILOG = examples(
    "accel devices",
    "accel devices --json",
    json='{"devices": [{"device", "backend", "name", "vendor", "logical", "physical", "total_bytes", "details"}]}',
    after='"device" is what --device and accel.open take. "total_bytes" is 0 where only an open device can tell.',
)


def devices(json: Json = False) -> None:
    """List the devices that can be opened, best first."""
    from accel.doctor import diagnose

    reports = diagnose()
    found = [
        {"device": f"{report.name}:{info['logical']}", "backend": report.name, **info}
        for report in reports
        for info in report.to_json()["devices"]  # type: ignore[attr-defined]
        if report.state == "available"
    ]
    if json:
        write_json({"devices": found})
        return
    print_table(
        ("device", "name", "memory", "details"),
        [
            (
                entry["device"],
                entry["name"],
                human_bytes(entry["total_bytes"]) if entry["total_bytes"] else "?",
                ", ".join(f"{key} {value}" for key, value in entry["details"].items()),
            )
            for entry in found
        ],
        right=("memory",),
    )
    others = [report.name for report in reports if report.state in ("unusable", "broken")]
    if others:
        note(f"present but not usable: {', '.join(others)}; accel doctor tells why")
