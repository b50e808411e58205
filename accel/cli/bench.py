"""``accel bench``: tokens a second beside a peer that runs the same file in the same minutes, and what a step costs
beside the model.

Invariant: ours and the peer's take turns, on the same threads, and each number is the median of its rounds. A missing
peer is a note and a null reference, never an error.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from accel.cli.help import examples
from accel.cli.loading import load_progress, open_device
from accel.cli.measure import Result, interleave, machine, print_report, rounds_progress
from accel.cli.options import ENGINE_PANEL, BatchTokens, DeviceSpec, Dtype, Json, Model, Threads, whole_number
from accel.cli.output import note
from accel.cli.overhead import COUNTED, KINDS, LIMIT_MS, PARTS, PROMPT_TOKENS, Overhead
from accel.cli.peer import INSTALL, PYTHON_VARIABLE, Peer, PeerError, start_peer
from accel.cli.speed import OpTimer, bench_ids, decode_seconds, prefill_seconds, shares
from accel.errors import InvalidArgument

if TYPE_CHECKING:
    from accel.backend import Device
    from accel.engine import Engine

__all__ = ["app"]

_SHAPE = '{"machine": {…}, "results": [{"name", "value", "unit", "reference", "ratio"}]}'
_AFTER = (
    f'"reference" is the peer (llama-cpp-python: {INSTALL}, or {PYTHON_VARIABLE}=<a Python that has it>), '
    '"ratio" is ours over it; both null without the peer. NAME.outside_ops is the share of the time that no op takes.'
)

app = typer.Typer(
    help="Measure speed beside a peer in the same run, or against a limit.",
    epilog=examples(
        "accel bench decode",
        "accel bench prefill --tokens 512 --json",
        "accel bench scheduler",
        json=_SHAPE,
        after=_AFTER,
    ),
    rich_markup_mode="rich",
)

Rounds = Annotated[
    int, typer.Option("--rounds", metavar="K", parser=whole_number, help="Measurements; the median of them counts.")
]
Profile = Annotated[bool, typer.Option("--profile", help="Add the share of each op.")]
NoPeer = Annotated[bool, typer.Option("--no-peer", help="Leave the peer out even if it is there.")]


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure speed beside a peer in the same run, or against a limit."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@dataclass(frozen=True)
class _Run:
    """One benchmark: what the engine needs, and how one measurement is taken.

    `count` is the tokens that one measurement is worth; `steps` decode steps follow a prompt of `prompt` tokens in each
    of `batch` requests.
    """

    kind: str
    prompt: int
    steps: int
    batch: int
    rounds: int
    max_batch_tokens: int

    def __post_init__(self) -> None:
        limits = {"--batch": self.batch, "--rounds": self.rounds, "--max-batch-tokens": self.max_batch_tokens}
        limits["--prompt-tokens" if self.kind == "decode" else "--tokens"] = self.prompt
        if self.kind == "decode":
            limits["--tokens"] = self.steps
        for name, value in limits.items():
            if value < 1:
                raise InvalidArgument(f"{name} is {value}; it must be 1 or more")

    @property
    def count(self) -> int:
        return self.batch * self.steps if self.kind == "decode" else self.prompt

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt + self.steps + 1

    def seconds(self, engine: Engine, ids: list[int], timer: OpTimer | None = None) -> float:
        """One measurement."""
        if self.kind == "decode":
            return decode_seconds(engine, ids, self.batch, self.steps, timer)
        return prefill_seconds(engine, ids, timer)


@app.command(
    "decode",
    epilog=examples("accel bench decode", "accel bench decode --batch 8 --profile --json", json=_SHAPE, after=_AFTER),
)
def decode(
    model: Model = "demo",
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", parser=whole_number, help="Decode steps of a measurement.")
    ] = 64,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", parser=whole_number, help="Tokens of the prompt before them.")
    ] = 16,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", metavar="N", parser=whole_number, help="Requests at once; the peer is measured with 1."
        ),
    ] = 1,
    rounds: Rounds = 5,
    profile: Profile = False,
    no_peer: NoPeer = False,
    device: DeviceSpec = "auto",
    dtype: Dtype = "auto",
    max_batch_tokens: BatchTokens = 512,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Tokens a second of greedy decoding after a short prompt."""
    run = _Run("decode", prompt_tokens, tokens, batch, rounds, max_batch_tokens)
    _bench(run, model, device, dtype, threads, profile, no_peer, json)


@app.command(
    "prefill",
    epilog=examples("accel bench prefill", "accel bench prefill --tokens 2048 --threads 1", json=_SHAPE, after=_AFTER),
)
def prefill(
    model: Model = "demo",
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", parser=whole_number, help="Tokens of the prompt.")
    ] = 512,
    rounds: Rounds = 5,
    profile: Profile = False,
    no_peer: NoPeer = False,
    device: DeviceSpec = "auto",
    dtype: Dtype = "auto",
    max_batch_tokens: BatchTokens = 512,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Tokens a second of a prompt, its first token included."""
    run = _Run("prefill", tokens, 0, 1, rounds, max_batch_tokens)
    _bench(run, model, device, dtype, threads, profile, no_peer, json)


@app.command(
    "scheduler",
    epilog=examples(
        "accel bench scheduler",
        "accel bench scheduler --requests 8 --depth 1 --json",
        json=_SHAPE,
        after=f'"reference" of the greedy whole is a limit, {LIMIT_MS} ms a step; over it the exit code is 1. The '
        'whole is the sum of "schedule", "pack", "post_process" and "commit"; "rest" is what else the engine\'s loop '
        'does, such as delivering tokens, and is not in it; "ops" is what of all these is in ops.',
    ),
)
def scheduler(
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", parser=whole_number, help="Requests that decode at once.")
    ] = 32,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", parser=whole_number, help="Decode steps of a measurement.")
    ] = 200,
    rounds: Rounds = 5,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            metavar="N",
            parser=whole_number,
            help="Steps planned ahead, 0 to 3. Default: as the engine does.",
        ),
    ] = None,
    device: DeviceSpec = "cpu",
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            metavar="N",
            parser=whole_number,
            help="Size of the CPU's thread pool; more than 1 adds what it takes to wake the others.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = 1,
    json: Json = False,
) -> None:
    """Milliseconds of a decode step beside the model, in whose place is a stub: greedy, and sampled by top-p."""
    if rounds < 1:
        raise InvalidArgument(f"--rounds is {rounds}; it must be 1 or more")
    with (
        open_device(device, threads) as opened,
        Overhead(opened, requests=requests, steps=steps, depth=depth) as overhead,
    ):
        seen = {kind: _overheads(overhead, kind, rounds) for kind in KINDS}
        about = machine(
            device=opened.name,
            threads=getattr(opened, "threads", None),
            isa=getattr(opened, "isa", None),
            requests=requests,
            prompt_tokens=PROMPT_TOKENS,
            decode_steps=steps,
            depth=overhead.engine.scheduler.config.depth,
            rounds=rounds,
        )
    results = [result for kind, measured in seen.items() for result in _parts(kind, measured)]
    print_report(results, about, json)
    over = [result.name for result in results if result.ratio is not None and result.ratio > 1]
    if over:
        note(f"{', '.join(over)}: over the limit of {LIMIT_MS} ms; on a busy machine, measure again")
        raise typer.Exit(1)


def _overheads(overhead: Overhead, kind: str, rounds: int) -> list[dict[str, float]]:
    """The parts of a step in each round, after one that warms up."""
    measured = []
    with rounds_progress(kind, rounds + 1) as step:
        for _ in range(rounds + 1):
            measured.append(overhead.measure(kind))
            step()
    return measured[1:]


def _parts(kind: str, measured: list[dict[str, float]]) -> list[Result]:
    wholes = [sum(parts[name] for name in COUNTED) for parts in measured]
    # Drawing from a vocabulary is arithmetic, which the limit is not about; argmax is next to nothing.
    whole = Result(f"scheduler.{kind}", median(wholes), "ms", LIMIT_MS if kind == "greedy" else None)
    return [
        whole,
        *(Result(f"scheduler.{kind}.{name}", median(parts[name] for parts in measured), "ms") for name in PARTS),
    ]


def _bench(
    run: _Run, model: str, spec: str, dtype: str, threads: int | None, profile: bool, no_peer: bool, json: bool
) -> None:
    with ExitStack() as stack:
        device = stack.enter_context(open_device(spec, threads))
        path, longest = _check(model, run)
        engine = stack.enter_context(_engine(run, model, device, dtype))
        used = int(getattr(device, "threads", 0))
        peer = None if no_peer else _peer(run, path, used, stack)
        ids = bench_ids(run.prompt, engine.config.vocab_size)
        results, peer = _measure_or_alone(run, engine, ids, peer)
        results += _where(run, engine, ids, profile)
        about = machine(
            device=device.name,
            threads=used or None,
            isa=getattr(device, "isa", None),
            model=path.name,
            max_model_len=longest,
            peer=peer.name if peer else None,
            prompt_tokens=run.prompt,
            decode_steps=run.steps,
            batch=run.batch,
            rounds=run.rounds,
        )
    print_report(results, about, json)


def _check(model: str, run: _Run) -> tuple[Path, int]:
    """The model's path and length. Raises ModelError, and InvalidArgument where it is too short for the run."""
    from accel.models.files import open_model

    with open_model(model) as files:
        longest = files.config.max_position
        if run.length > longest:
            raise InvalidArgument(
                f"the run needs {run.length} tokens; the model takes {longest}", hint="lower --tokens", limit=longest
            )
        return files.path, longest


def _engine(run: _Run, model: str, device: Device, dtype: str) -> Engine:
    from accel.engine import Engine

    block_size = 16
    with load_progress("loading") as report:
        return Engine(
            model,
            device,
            block_size=block_size,
            num_blocks=run.batch * -(-run.length // block_size),
            max_batch_tokens=run.max_batch_tokens,
            max_requests=run.batch,
            dtype=dtype,
            progress=report,
        )


def _peer(run: _Run, path: Path, threads: int, stack: ExitStack) -> Peer | None:
    """The peer where it can be compared; else a note that says why not."""
    try:
        if run.batch > 1:
            raise PeerError(f"the peer is measured with one request, not {run.batch}")
        if not threads:
            raise PeerError("the peer computes on the CPU, and this device is none")
        return stack.enter_context(start_peer(path, threads, run.length + 8))
    except PeerError as error:
        note(f"no reference: {error}")
        return None


def _measure(run: _Run, engine: Engine, ids: list[int], peer: Peer | None) -> list[Result]:
    sides: dict[str, Callable[[], float]] = {"ours": lambda: run.seconds(engine, ids)}
    if peer is not None:
        chosen = peer
        sides["peer"] = lambda: chosen.seconds(run.kind, ids, run.steps)
    with rounds_progress(run.kind, (run.rounds + 1) * len(sides)) as step:
        interleave(sides, 1, step)  # caches and clocks warm up
        medians = interleave(sides, run.rounds, step)
    speeds = {name: run.count / seconds for name, seconds in medians.items()}
    return [Result(run.kind, speeds["ours"], "tokens/s", speeds.get("peer"))]


def _measure_or_alone(run: _Run, engine: Engine, ids: list[int], peer: Peer | None) -> tuple[list[Result], Peer | None]:
    """`_measure`, and once more without a peer that gave up on the way. Also the peer that is still there."""
    try:
        return _measure(run, engine, ids, peer), peer
    except PeerError as error:
        note(f"no reference: {error}")
        return _measure(run, engine, ids, None), None


def _where(run: _Run, engine: Engine, ids: list[int], profile: bool) -> list[Result]:
    if not engine.device.capabilities.host_executed:
        note("no shares: an op of this device is only queued when its call returns")
        return []
    parts = shares(engine, lambda timer: run.seconds(engine, ids, timer))
    outside = Result(f"{run.kind}.outside_ops", parts.pop(""), "share")
    return [outside, *(Result(f"{run.kind}.op.{name}", part, "share") for name, part in parts.items() if profile)]
