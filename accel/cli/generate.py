"""``accel generate``: one prompt or many through one model.

::

    options, a file ─> jobs ─> encode_jobs ─> Engine ─┬─ one output ──> text as it comes, or one JSON object
         no model yet │  files only, no weights       └─ several ─────> run_all ─> a text, line or array entry each

Invariant: values out of range are refused before the device is opened, and prompts that cannot be served before weights
are loaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from accel.cli.batch import requests_progress, run_all
from accel.cli.help import examples
from accel.cli.jobs import Defaults, Job, Ready, jobs_of, read_jobs
from accel.cli.loading import open_device
from accel.cli.options import (
    ENGINE_PANEL,
    BatchTokens,
    BlockSize,
    DeviceSpec,
    Dtype,
    Json,
    KvDtype,
    KvOrder,
    Model,
    Threads,
    number,
    whole_number,
)
from accel.cli.output import note, write_json
from accel.cli.prepare import MOST_AT_ONCE, Settings, prepare
from accel.cli.prompt import STDIN, read_prompts
from accel.cli.records import Done, check_target, record, summary, summary_line
from accel.cli.sampling import (
    BadWords,
    Choices,
    FrequencyPenalty,
    IgnoreEos,
    IncludeStop,
    LogitBias,
    Logprobs,
    MaxTokens,
    MinP,
    MinTokens,
    PresencePenalty,
    PromptLogprobs,
    RepetitionPenalty,
    Seed,
    Stop,
    StopIds,
    StopTokenIds,
    Temperature,
    TopK,
    TopP,
    parse_biases,
    parse_ids,
)
from accel.cli.sinks import open_sink
from accel.errors import InvalidRequest
from accel.sampling_params import SamplingParams

if TYPE_CHECKING:
    from accel.engine import Engine, RequestOutput

__all__ = ["EPILOG", "generate"]

EPILOG = examples(
    "accel generate --prompt 'The capital of France is' --max-tokens 16",
    "accel generate --chat --prompt 'Why is the sky blue?' --temperature 0.7 --top-p 0.9 --seed 7",
    "accel generate --model ./my-model --device cpu --prompt-ids 5,6,7 --json",
    "git log -5 | accel generate --chat --prompt - --max-tokens 64",
    "accel generate --prompt 'Once' -n 3 --temperature 1 --stop . --include-stop",
    "accel generate --file requests.jsonl --output answers.jsonl --max-tokens 64",
    """echo '{"prompt": "Hi", "id": "a", "params": {"top_k": 5}}' | accel generate --file -""",
    json='{"id", "index", "choice", "prompt_token_ids", "token_ids", "text", "finish_reason", "stop_reason", "seed", '
    '"logprobs", "prompt_logprobs", "metrics": {"load_time", "time_to_first_token", "time_per_output_token", '
    '"total_time", "queue_time", "hit_tokens", "preemptions", "tokens_per_second"}, "error"}; several outputs: [that, '
    '…, {"summary": {"requests", "failed", "prompt_tokens", "hit_tokens", "hit_share", "generated_tokens", '
    '"tokens_per_second", "time_to_first_token": {"median", "p99"}, "time_per_output_token": {"median", "p99"}, '
    '"preemptions", "load_time", "wall_time"}}]; with --logprobs: {"token_id", "logprob", "rank", "top"} a token; a '
    'request that failed: "error": {"type", "message"}',
    after='--file and --output write the same, a line each. A line of --file has one of "prompt", "prompt_token_ids" '
    'and "messages", and if it likes "id", "priority", "deadline" and "params" (fields of SamplingParams). Times in '
    'seconds; "text" is null for a model without a tokenizer; "finish_reason" is stop, length, deadline or error; '
    '"seed" repeats the output; "tokens_per_second" of a request counts from its second token on and is null with only '
    "one; that of the summary is all tokens over the wall time.",
)

PROMPT_PANEL: Final = "What to generate from"
OUTPUT_PANEL: Final = "Where it goes"


def generate(
    model: Model = "demo",
    device: DeviceSpec = "auto",
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="The text to go on from; - reads it from stdin. May be repeated.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = None,
    prompt_ids: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt-ids",
            metavar="5,6,7",
            help="Token ids instead of text. May be repeated; these come after the texts.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="FILE.jsonl",
            help="A request in each line, as a JSON object (below); - reads stdin. The other options are what a line "
            "leaves open.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Take a text prompt as a user's message, in the model's chat format.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = False,
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            metavar="TEXT",
            help="With --chat: the system message before it.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = None,
    priority: Annotated[
        int,
        typer.Option(
            "--priority",
            metavar="N",
            parser=whole_number,
            help="Higher goes first: a unit counts as 10 seconds of waiting. -1000 to 1000.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = 0,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            metavar="SECONDS",
            parser=number,
            help="End what is not done so long after the start with what it has.",
            rich_help_panel=PROMPT_PANEL,
        ),
    ] = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    choices: Choices = 1,
    repetition_penalty: RepetitionPenalty = 1.0,
    frequency_penalty: FrequencyPenalty = 0.0,
    presence_penalty: PresencePenalty = 0.0,
    logit_bias: LogitBias = None,
    bad_word: BadWords = None,
    logprobs: Logprobs = None,
    prompt_logprobs: PromptLogprobs = None,
    max_tokens: MaxTokens = 128,
    min_tokens: MinTokens = 0,
    stop: Stop = None,
    include_stop: IncludeStop = False,
    stop_token_id: StopTokenIds = None,
    stop_ids: StopIds = None,
    ignore_eos: IgnoreEos = False,
    json: Json = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="FILE.jsonl",
            help="Write one JSON object an output there, as they finish; - is stdout, the default with --file. A new "
            "file, which only you may read.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let --output replace a file.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No progress and no metrics on stderr.", rich_help_panel=OUTPUT_PANEL),
    ] = False,
    dtype: Dtype = "auto",
    block_size: BlockSize = 16,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            "--num-blocks",
            metavar="N",
            parser=whole_number,
            help="KV blocks. Default: what the requests that run at once can fill, at most what fits.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    max_requests: Annotated[
        int | None,
        typer.Option(
            "--max-requests",
            metavar="N",
            parser=whole_number,
            help=f"Requests that run at once. Default: all, up to {MOST_AT_ONCE}.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    max_batch_tokens: BatchTokens = 512,
    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            metavar="N",
            parser=whole_number,
            help="Steps planned ahead, 0 to 3. Default: 1 on an accelerator, 0 where steps run on the host.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    no_prefix_cache: Annotated[
        bool,
        typer.Option(
            "--no-prefix-cache",
            help="Compute every prompt in full, whatever it shares with others.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            parser=whole_number,
            help="Serve Prometheus metrics on 127.0.0.1 while it runs; 0 takes a free port.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    kv_dtype: KvDtype = "float32",
    kv_order: KvOrder = "page_first",
    threads: Threads = None,
) -> None:
    """Generate from prompts. Texts go to stdout, one as it comes; progress and metrics go to stderr."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        ignore_eos=ignore_eos,
        min_p=min_p,
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=parse_biases(logit_bias or []),
        bad_words=tuple(bad_word or ()),
        stop=tuple(stop or ()),
        stop_token_ids=tuple(stop_token_id or ()),
        stop_sequences=tuple(parse_ids(ids, "--stop-ids") for ids in stop_ids or ()),
        include_stop=include_stop,
        n=choices,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    target = _target(file, output, json)
    if target is None and not json and (logprobs is not None or prompt_logprobs is not None):
        raise InvalidRequest("log-probabilities are in JSON only", hint="add --json or --output FILE.jsonl")
    check_target(output, force, file)
    if system is not None and not chat:
        raise InvalidRequest("--system needs --chat, which puts it into the model's chat format", hint="add --chat")
    jobs = _jobs(prompt or [], prompt_ids or [], file, Defaults(params, priority, deadline, chat, system))
    settings = Settings(
        model,
        max_batch_tokens,
        block_size,
        num_blocks,
        dtype,
        kv_dtype,
        kv_order,
        max_requests,
        depth,
        not no_prefix_cache,
        metrics_port,
        quiet,
    )
    started = time.perf_counter()
    with ExitStack() as stack:
        opened = stack.enter_context(open_device(device, threads))
        engine, ready = prepare(settings, jobs, opened, stack)
        loaded = time.perf_counter() - started
        if target is None and file is None and len(jobs) == 1 and params.n == 1:
            _one(engine, ready[0], loaded, json, quiet)
            return
        expected = [(index, choice) for index, job in enumerate(jobs) for choice in range(job.params.n)]
        sink = stack.enter_context(open_sink(expected, loaded, target=target, force=force, json=json))
        with requests_progress(len(expected), quiet) as progress:
            done = run_all(engine, ready, sink.take, progress)
        numbers = summary(done, loaded, time.perf_counter() - started - loaded)
        sink.finish(done, numbers)
    if not quiet:
        note(summary_line(numbers))
    _tell_failures(done)


def _target(file: str | None, output: str | None, json: bool) -> str | None:
    """Where lines go: a path or ``-``; None where texts or one document are printed instead."""
    if output is not None and json:
        raise InvalidRequest("--output writes JSON already; --json prints one document instead", hint="leave one out")
    return STDIN if file is not None and output is None and not json else output


def _jobs(texts: list[str], ids: list[str], file: str | None, defaults: Defaults) -> list[Job]:
    if file is not None:
        if texts or ids:
            raise InvalidRequest("--file holds the prompts; --prompt and --prompt-ids were given as well")
        return read_jobs(file, defaults)
    if not texts and not ids:
        raise InvalidRequest(
            "give --prompt, --prompt-ids or --file; neither of them was given", hint="--prompt - reads stdin"
        )
    return jobs_of(read_prompts(texts, ids, defaults.chat, defaults.system), defaults)


def _one(engine: Engine, ready: Ready, loaded: float, json: bool, quiet: bool) -> None:
    """The only output there is: printed as it comes, text or, where there is no tokenizer, token ids."""
    output: RequestOutput | None = None
    has_text = engine.tokenizer is not None
    job = ready.job
    for token in engine.stream(ready.ids, job.params, priority=job.priority, deadline=job.deadline):
        output = token.output
        if not json:
            piece = token.text if has_text else "" if token.token_id is None else f"{token.token_id} "
            print(piece, end="", flush=True)
    if output is None:
        raise RuntimeError("the engine ended a request without an output")
    if json:
        write_json(record(Done(ready, 0, 0, output), loaded))
        return
    print(flush=True)
    if not quiet:
        note(_one_line(output, loaded))


def _tell_failures(done: Sequence[Done]) -> None:
    """End with exit code 1 where a request failed; the first one's error is told."""
    failed = [item for item in done if item.error is not None]
    if failed:
        note(f"accel: error: {len(failed)} of {len(done)} requests failed; {failed[0].ready.job.id}: {failed[0].error}")
        raise typer.Exit(1)


def _one_line(output: RequestOutput, load_time: float) -> str:
    metrics = output.metrics
    parts = [
        f"{len(output.prompt_token_ids)} + {len(output.token_ids)} tokens ({output.finish_reason})",
        f"{metrics.hit_tokens} prompt tokens from the cache",
        f"loaded in {load_time:.2f} s",
        f"first token after {metrics.time_to_first_token:.3f} s",
    ]
    if metrics.time_per_output_token:
        parts.append(f"then {1 / metrics.time_per_output_token:.1f} tokens/s")
    return f"[{', '.join(parts)}, seed {output.seed}]"
