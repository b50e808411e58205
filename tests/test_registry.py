"""Discovery, choice and opening, with real distributions made of files: metadata, entry points and modules."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, cast

import pytest

from accel.backend import Backend, Device, DeviceInfo, LogicalId, PhysicalId, Probe, ProbeState
from accel.doctor import BROKEN, diagnose
from accel.errors import AccelError, BackendUnavailable, InvalidArgument
from accel.registry import Registry

FIRST = LogicalId(0)


class Opened(Device):
    """A device that only knows what it was opened with."""

    def __init__(self, label: str, options: dict[str, Any]) -> None:
        self.label, self.options = label, options

    @property
    def name(self) -> str:
        return self.label


Opened.__abstractmethods__ = frozenset()


def devices(count: int) -> tuple[DeviceInfo, ...]:
    return tuple(DeviceInfo("fake", "test", LogicalId(i), PhysicalId(str(i))) for i in range(count))


AVAILABLE = Probe(ProbeState.AVAILABLE, "ready", devices=devices(2))
ABSENT = Probe(ProbeState.ABSENT, "no card", "buy one")
UNUSABLE = Probe(ProbeState.UNUSABLE, "no driver", "install it", devices(1))


def fake(label: str, answer: object = AVAILABLE, rank: int = 10, opens: object = None) -> type[Backend]:
    """A backend class. `answer` is returned by probe, or raised; `opens` is returned by open, or raised."""

    class Fake(Backend):
        name = label
        priority = rank

        def probe(self) -> Probe:
            if isinstance(answer, BaseException):
                raise answer
            return cast(Probe, answer)

        def open(self, index: LogicalId = FIRST, **options: Any) -> Device:
            if isinstance(opens, Exception):
                raise opens
            return Opened(f"{label}:{index}", options) if opens is None else cast(Device, opens)

    return Fake


def registry_of(*kinds: type[Backend]) -> Registry:
    registry = Registry(list)
    for kind in kinds:
        registry.register(kind)
    return registry


@pytest.fixture(autouse=True)
def no_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCEL_DEVICE", raising=False)


class Site:
    """A folder on the path in which distributions with entry points can be installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, distribution: str, points: dict[str, str], modules: dict[str, str] | None = None) -> None:
        info = self.folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[accel.backends]\n{lines}")
        for module, source in (modules or {}).items():
            (self.folder / f"{module}.py").write_text(textwrap.dedent(source))

    def backend_module(self, name: str, probe: str = "AVAILABLE", priority: str = "50") -> str:
        return f"""
            from accel.backend import Backend, DeviceInfo, Probe, ProbeState
            class Chip(Backend):
                name = {name!r}
                priority = {priority}
                def probe(self):
                    return Probe(ProbeState.{probe}, "because", "do this", (DeviceInfo("c", "v", 0, "0"),))
                def open(self, index=0, **options):
                    raise NotImplementedError("later")
        """


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Only what a test installs is discovered; modules it imported are forgotten again."""
    from importlib import metadata

    real = metadata.distributions
    monkeypatch.setattr(metadata, "distributions", lambda **_: real(path=[str(tmp_path)]))
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


# --- what a spec means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "opened"), [("cpu", "cpu:0"), ("cpu:0", "cpu:0"), ("cpu:1", "cpu:1"), ("cpu:01", "cpu:1")]
)
def test_a_name_opens_its_first_device_and_an_index_that_one(spec: str, opened: str) -> None:
    assert registry_of(fake("cpu")).open(spec).name == opened


def test_options_reach_the_backend() -> None:
    device = registry_of(fake("cpu")).open("cpu", threads=3)
    assert cast(Opened, device).options == {"threads": 3}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", "is not a device spec"),
        (":0", "is not a device spec"),
        ("CPU", "did you mean cpu?"),
        (" cpu", "did you mean cpu?"),
        ("cpu gpu", "is not a device spec"),
        ("cpu:", "is not a number"),
        ("cpu:x", "is not a number"),
        ("cpu:0:1", "is not a number"),
        ("cpu:1.0", "is not a number"),
        ("cpu:٣", "is not a number"),
        ("cpu:1\n", "is not a number"),
        ("cpu:-1", "the index is below 0"),
        ("cpu:" + "9" * 5000, "the index is not below 1000000"),
        ("auto:0", "auto takes no index"),
    ],
)
def test_a_malformed_spec_names_the_value_and_the_rule(spec: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        registry_of(fake("cpu")).open(spec)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 250


def test_a_spec_that_is_no_string_is_named_with_its_type() -> None:
    with pytest.raises(InvalidArgument, match="a device spec is a string, not int: 0"):
        registry_of(fake("cpu")).open(cast(str, 0))


def test_an_index_out_of_range_names_the_count() -> None:
    with pytest.raises(
        InvalidArgument, match=r"gpu:2 is out of range: gpu has 2 devices \(use gpu:0 to gpu:1\)"
    ) as caught:
        registry_of(fake("gpu")).open("gpu:2")
    assert caught.value.values == {"index": 2, "limit": 2}


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    registry = registry_of(fake("cpu"), fake("npu_two"))
    with pytest.raises(
        BackendUnavailable, match=r"unknown backend 'npu_tow'; known: cpu, npu_two \(did you mean npu_two"
    ):
        registry.open("npu_tow")
    with pytest.raises(BackendUnavailable, match="known: cpu, npu_two") as caught:
        registry.backend("zzzzzz")
    assert caught.value.hint is None


@pytest.mark.parametrize("answer", [ABSENT, UNUSABLE])
def test_a_named_device_that_cannot_be_used_gives_the_probes_reason_and_hint(answer: Probe) -> None:
    with pytest.raises(BackendUnavailable, match=answer.reason) as caught:
        registry_of(fake("gpu", answer), fake("cpu", rank=0)).open("gpu:0")
    assert caught.value.hint == answer.hint
    assert caught.value.backend == "gpu"
    assert pickle.loads(pickle.dumps(caught.value)).values == caught.value.values


# --- auto -------------------------------------------------------------------------------------------------------------


def test_auto_takes_the_available_backend_of_the_highest_priority(caplog: pytest.LogCaptureFixture) -> None:
    registry = registry_of(
        fake("cpu", rank=0), fake("low", rank=5), fake("high", rank=9), fake("none", ABSENT, rank=99)
    )
    assert registry.open().name == "high:0"
    assert caplog.records == []


def test_auto_goes_past_an_unusable_card_with_exactly_one_warning_line(caplog: pytest.LogCaptureFixture) -> None:
    broken_lines = Probe(ProbeState.UNUSABLE, "no\ndriver", "install\nit")
    registry = registry_of(fake("cpu", rank=0), fake("gpu", broken_lines, rank=9), fake("npu", ABSENT, rank=8))
    with caplog.at_level(logging.WARNING, logger="accel"):
        assert registry.open("auto").name == "cpu:0"
    assert [record.getMessage() for record in caplog.records] == ["gpu is not used: no driver (install it)"]
    assert caplog.records[0].name == "accel"


def test_auto_says_nothing_of_an_unusable_card_it_would_not_have_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert registry_of(fake("high", rank=9), fake("low", UNUSABLE, rank=5)).open().name == "high:0"
    assert caplog.records == []


def test_auto_never_takes_a_negative_priority() -> None:
    registry = registry_of(fake("sim", rank=-1), fake("cpu", ABSENT, rank=0))
    with pytest.raises(BackendUnavailable, match="no device can be used"):
        registry.open()
    assert registry.open("sim").name == "sim:0"


def test_auto_without_any_usable_device_gives_every_reason() -> None:
    with pytest.raises(BackendUnavailable, match=r"gpu: no driver; cpu: no card"):
        registry_of(fake("cpu", ABSENT, rank=0), fake("gpu", UNUSABLE, rank=1)).open()
    with pytest.raises(BackendUnavailable, match="no backend is installed"):
        registry_of().open()


def test_a_backend_that_fails_to_open_is_no_reason_to_take_another() -> None:
    refused = BackendUnavailable("the device is busy", backend="gpu")
    with pytest.raises(BackendUnavailable, match="gpu: the device is busy"):
        registry_of(fake("gpu", rank=9, opens=refused), fake("cpu", rank=0)).open()


def test_the_variable_decides_what_auto_means_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_of(fake("cpu", rank=0), fake("gpu", rank=9))
    monkeypatch.setenv("ACCEL_DEVICE", " cpu:1 ")
    assert registry.open("auto").name == "cpu:1"
    assert registry.open("gpu:0").name == "gpu:0"
    for value in ("", "  ", "auto"):
        monkeypatch.setenv("ACCEL_DEVICE", value)
        assert registry.open().name == "gpu:0"


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("tpu", BackendUnavailable, "ACCEL_DEVICE asks for tpu:0: unknown backend 'tpu'"),
        ("npu", BackendUnavailable, "ACCEL_DEVICE asks for npu:0: no driver"),
        ("cpu:7", InvalidArgument, "ACCEL_DEVICE asks for cpu:7: cpu:7 is out of range"),
        ("cpu:x", InvalidArgument, "ACCEL_DEVICE: 'cpu:x': the index is not a number"),
        ("auto:1", InvalidArgument, "ACCEL_DEVICE: 'auto:1': auto takes no index"),
    ],
)
def test_a_wrong_value_of_the_variable_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str, kind: type[AccelError], words: str
) -> None:
    monkeypatch.setenv("ACCEL_DEVICE", value)
    with pytest.raises(kind) as caught:
        registry_of(fake("cpu", rank=0), fake("npu", UNUSABLE)).open()
    assert words in str(caught.value)


# --- broken backends --------------------------------------------------------------------------------------------------

GOOD_CPU = {"cpu": "good_cpu:Chip"}
BREAKS: dict[str, tuple[str, str]] = {
    "a module that is not there": ("missing_module:Chip", ""),
    "a module that fails to import": ("bad:Chip", "raise RuntimeError('boom')"),
    "a module that ends the process": ("bad:Chip", "import sys; sys.exit(3)"),
    "an attribute that is not there": ("bad:Chip", "x = 1"),
    "not a class": ("bad:Chip", "Chip = 5"),
    "a function": ("bad:Chip", "def Chip(): return None"),
    "another class": ("bad:Chip", "class Chip: name = 'bad'; priority = 1"),
    "a malformed value": ("not a value!", ""),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_backend_is_an_error_that_names_its_origin_and_the_cure(site: Site, how: str) -> None:
    value, source = BREAKS[how]
    site.install("good", GOOD_CPU, {"good_cpu": site.backend_module("cpu", priority="0")})
    site.install("evil-chip", {"bad": value}, {"bad": source} if source else {})
    registry = Registry()
    assert registry.names() == ("bad", "cpu")
    for call in (lambda: registry.open("bad"), lambda: registry.probe("bad"), registry.probe_all, registry.open):
        with pytest.raises(BackendUnavailable) as caught:
            call()
        assert "backend 'bad' is broken" in str(caught.value)
        assert f"entry point bad = {value} of distribution evil-chip 1.0" in str(caught.value)
        assert "pip uninstall evil-chip" in str(caught.value)
        assert "ACCEL_DEVICE=cpu" in str(caught.value)
        assert caught.value.values["distribution"] == "evil-chip"
        assert "\n" not in str(caught.value)


def test_a_broken_backend_does_not_matter_to_another_that_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("good", GOOD_CPU, {"good_cpu": site.backend_module("cpu", priority="0")})
    site.install("evil", {"bad": "bad:Chip"}, {"bad": "raise RuntimeError('boom')"})
    registry = Registry()
    assert registry.probe("cpu").available
    monkeypatch.setenv("ACCEL_DEVICE", "cpu")
    with pytest.raises(BackendUnavailable, match=r"opening cpu:0 raised NotImplementedError: later"):
        registry.open("auto")
    assert "bad" not in sys.modules


def test_a_class_of_another_name_or_without_a_priority_is_broken(site: Site) -> None:
    wrong, ranked = site.backend_module("right"), site.backend_module("ranked", priority="'high'")
    site.install("evil", {"wrong": "wrong:Chip", "ranked": "ranked:Chip"}, {"wrong": wrong, "ranked": ranked})
    with pytest.raises(BackendUnavailable, match="its class is named 'right'"):
        Registry().backend("wrong")
    with pytest.raises(BackendUnavailable, match="its priority is 'high', not an integer"):
        Registry().backend("ranked")


def test_a_class_that_is_not_finished_is_broken() -> None:
    kind = type("Half", (Backend,), {"name": "half", "priority": 1})
    with pytest.raises(BackendUnavailable, match="constructing it without arguments raised TypeError"):
        registry_of(kind).backend("half")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ValueError("bad\ndriver"), "its probe, which must never raise, raised ValueError: bad driver"),
        (None, "its probe returned NoneType instead of a Probe"),
        (Probe(ProbeState.AVAILABLE, "ready"), "says AVAILABLE and lists no device"),
        (Probe("available", "ready"), "the state 'available'"),  # type: ignore[arg-type]
        (Probe(ProbeState.ABSENT, None), "a reason that is no text"),  # type: ignore[arg-type]
        (Probe(ProbeState.ABSENT, "", devices=(1,)), "devices that are no tuple"),  # type: ignore[arg-type]
        (Probe(ProbeState.ABSENT, "", versions=None), "versions that are no mapping"),  # type: ignore[arg-type]
        (Probe(ProbeState.ABSENT, "", notes=(1,)), "notes that are no tuple"),  # type: ignore[arg-type]
        (SystemExit(0), "raised SystemExit: 0"),
        (GeneratorExit("x"), "raised GeneratorExit: x"),
    ],
)
def test_a_probe_that_raises_or_answers_nonsense_is_a_bug_of_that_backend(answer: object, words: str) -> None:
    registry = registry_of(fake("cpu", rank=0), fake("odd", answer, rank=1))
    for call in (lambda: registry.probe("odd"), lambda: registry.open("odd"), registry.open):
        with pytest.raises(BackendUnavailable) as caught:
            call()
        assert words in str(caught.value)
        assert "'odd'" in str(caught.value)
    assert registry.open("cpu").name == "cpu:0"


@pytest.mark.parametrize(
    ("opens", "words"), [(RuntimeError("x"), "raised RuntimeError: x"), (5, "gave int instead of")]
)
def test_an_open_that_raises_something_else_or_gives_no_device_is_a_typed_error(opens: object, words: str) -> None:
    with pytest.raises(BackendUnavailable, match=words):
        registry_of(fake("odd", opens=opens)).open("odd")


def test_two_distributions_with_one_name_are_an_error_that_names_both(site: Site) -> None:
    module = site.backend_module("chip")
    site.install("first", {"chip": "chip_one:Chip"}, {"chip_one": module})
    site.install("second", {"chip": "chip_two:Chip"}, {"chip_two": module})
    registry = Registry()
    assert registry.names() == ("chip",)
    with pytest.raises(BackendUnavailable, match="claim the same name") as caught:
        registry.open("chip")
    assert "distribution first 1.0" in str(caught.value)
    assert "distribution second 1.0" in str(caught.value)


@pytest.mark.parametrize("name", ["auto", "Chip", "my chip", "gpu.1"])
def test_a_reserved_or_unwritable_name_is_broken(site: Site, name: str) -> None:
    site.install("evil", {name: "chip_named:Chip"}, {"chip_named": site.backend_module(name)})
    with pytest.raises(BackendUnavailable, match="its name is reserved, or has other characters"):
        Registry().backend(name)


def test_entry_points_that_cannot_be_parsed_are_blamed_on_their_distribution(site: Site) -> None:
    site.install("evil-chip", {"x": "y:Z"})
    (site.folder / "evil_chip-1.0.dist-info/entry_points.txt").write_text("[accel.backends]\nno equals sign\n")
    registry = Registry()
    if not registry.names():
        pytest.skip("this Python's importlib.metadata takes such a line for no entry")
    with pytest.raises(BackendUnavailable, match="evil-chip"):
        registry.open()


def test_unreadable_entry_points_of_others_do_not_matter(site: Site) -> None:
    site.install("good", GOOD_CPU, {"good_cpu": site.backend_module("cpu")})
    site.install("other", {})
    (site.folder / "other-1.0.dist-info/entry_points.txt").write_bytes(b"\xff\xfe[accel.backends]")
    assert Registry().names() == ("cpu",)


# --- laziness, registration in the process ----------------------------------------------------------------------------


def test_importing_the_registry_scans_nothing_and_imports_no_backend() -> None:
    code = (
        "import sys, accel.registry, accel.doctor\n"
        "banned = {'paddle', 'numpy', 'importlib.metadata'}\n"
        "bad = [m for m in sys.modules if m.startswith('accel.backends') or m in banned]\n"
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_names_imports_no_backend_and_one_that_is_asked_for_is_imported_alone(site: Site) -> None:
    site.install("two", {"one": "lazy_one:Chip", "two": "lazy_two:Chip"})
    for name in ("one", "two"):
        (site.folder / f"lazy_{name}.py").write_text(textwrap.dedent(site.backend_module(name)))
    registry = Registry()
    assert registry.names() == ("one", "two")
    assert not {"lazy_one", "lazy_two"} & set(sys.modules)
    assert registry.backend("one") is registry.backend("one")
    assert "lazy_two" not in sys.modules


def test_what_is_installed_later_is_found_after_a_refresh(site: Site) -> None:
    registry = Registry()
    assert registry.names() == ()
    site.install("good", GOOD_CPU, {"good_cpu": site.backend_module("cpu")})
    assert registry.names() == ()
    registry.refresh()
    assert registry.names() == ("cpu",)


def test_a_registration_in_the_process_ends_with_its_block() -> None:
    registry = registry_of(fake("cpu"))
    with registry.registered(fake("mine")):
        assert registry.names() == ("cpu", "mine")
        assert registry.open("mine").name == "mine:0"
        with pytest.raises(InvalidArgument, match="a backend named 'mine' is registered already"):
            registry.register(fake("mine"))
    assert registry.names() == ("cpu",)
    with pytest.raises(BackendUnavailable, match="unknown backend 'mine'"):
        registry.backend("mine")
    with pytest.raises(InvalidArgument, match="no backend named 'mine' was registered"):
        registry.unregister("mine")


@pytest.mark.parametrize("kind", [5, int, fake("auto"), fake("No Good"), Backend])
def test_only_a_named_backend_class_can_be_registered(kind: Any) -> None:
    with pytest.raises(InvalidArgument):
        registry_of().register(kind)


def test_probe_all_is_in_the_order_of_priority() -> None:
    registry = registry_of(fake("cpu", rank=0), fake("b", ABSENT, rank=5), fake("a", UNUSABLE, rank=5))
    assert registry.probe_all() == {"a": UNUSABLE, "b": ABSENT, "cpu": AVAILABLE}
    assert list(registry.probe_all()) == ["a", "b", "cpu"]


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_reports_every_backend_and_a_broken_one_as_broken() -> None:
    versions = {"driver": "1", "paddle": "3.3 (cpu)", "accel module": "none"}
    registry = registry_of(
        fake("odd", ValueError("boom"), rank=3),
        fake("none", ABSENT),
        fake("card", Probe(ProbeState.UNUSABLE, "no driver", "install it", devices(1), versions, ("a list is odd",))),
        fake("cpu", rank=0),
    )
    reports = diagnose(registry)
    assert [(report.name, report.state) for report in reports] == [
        ("cpu", "available"),
        ("card", "unusable"),
        ("odd", BROKEN),
        ("none", "absent"),
    ]
    assert "boom" in reports[2].reason
    assert reports[2].hint
    card = reports[1]
    assert card.versions == {"driver": "1"}
    assert card.build == {"paddle": "3.3 (cpu)", "accel module": "none"}
    assert card.notes == ("a list is odd",)
    assert card.line == "card: unusable: no driver -> install it"


def test_a_report_is_plain_json_with_every_key() -> None:
    import json

    (report,) = diagnose(registry_of(fake("cpu")))
    again = json.loads(json.dumps(report.to_json()))
    assert again == report.to_json()
    assert list(again) == ["name", "state", "reason", "hint", "devices", "versions", "build", "notes"]
    assert again["devices"][1] == {
        "name": "fake",
        "vendor": "test",
        "logical": 1,
        "physical": "1",
        "total_bytes": 0,
        "details": {},
    }


def test_our_own_vendors_are_explained_in_one_line_each_and_at_once() -> None:
    """In a fresh process: the time of a user's first `accel doctor`, without the framework and without NumPy."""
    code = """
        import sys, time
        begin = time.perf_counter()
        from accel.backends.dcu.backend import DcuBackend
        from accel.backends.gpu.backend import GpuBackend
        from accel.backends.iluvatar.backend import IluvatarBackend
        from accel.backends.xpu.backend import XpuBackend
        from accel.doctor import diagnose
        from accel.registry import Registry
        registry = Registry(list)
        for kind in (DcuBackend, GpuBackend, IluvatarBackend, XpuBackend):
            registry.register(kind)
        for report in diagnose(registry):
            assert report.state != "broken" and "\\n" not in report.line, report
            print(report.line)
        assert not {"paddle", "numpy"} & set(sys.modules)
        print(time.perf_counter() - begin)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(line.split(":")[0] for line in lines[:4]) == ["dcu", "gpu", "iluvatar", "xpu"]
    # Half a second is the promise; the margin is for a busy machine.
    assert float(lines[4]) < 2.0


def test_metadata_that_cannot_be_read_harms_no_other_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "odd-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(b"Name: \xff\xfe\n")
    (folder / "entry_points.txt").write_text("[accel.backends]\nodd = nowhere:Chip\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry()
    assert registry.probe("cpu").available
    with pytest.raises(BackendUnavailable, match="odd"):
        registry.backend("odd")


def test_what_a_third_party_writes_is_one_printable_line() -> None:
    registry = registry_of(fake("odd", Probe(ProbeState.ABSENT, "two\nlines\x1b[31m", "and\ta tab")))
    found = registry.probe("odd")
    assert (found.reason, found.hint) == ("two lines?[31m", "and a tab")
