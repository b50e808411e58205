"""``accel generate``: one prompt through one model, its text as it comes.

Invariant: values out of range are refused before the device is opened, and a text that cannot be encoded before weights
are loaded.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel.cli.help import examples
from accel.cli.loading import load_progress, open_device
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
from accel.cli.prompt import PromptSource, read_source
from accel.sampling_params import SamplingParams

if TYPE_CHECKING:
    from accel.backend import Device
    from accel.engine import Engine, RequestOutput
    from accel.models.files import ModelFiles

__all__ = ["EPILOG", "generate"]

EPILOG = examples(
    "accel generate --prompt 'The capital of France is' --max-tokens 16",
    "accel generate --chat --prompt 'Why is the sky blue?' --temperature 0.7 --top-p 0.9 --seed 7",
    "accel generate --model ./my-model --device cpu --prompt-ids 5,6,7 --json",
    "git log -5 | accel generate --chat --prompt - --max-tokens 64",
    json='{"prompt_token_ids", "token_ids", "text", "finish_reason", "seed", "metrics": {"load_time", '
    '"time_to_first_token", "time_per_output_token", "total_time", "tokens_per_second"}}',
    after='Times in seconds; "text" is null for a model without a tokenizer; "finish_reason" is stop or length; "seed" '
    'repeats the output; "tokens_per_second" counts from the second token on and is null with only one.',
)


@dataclass(frozen=True)
class _Settings:
    """What the engine is made with, as the options gave it."""

    model: str
    max_batch_tokens: int
    block_size: int
    num_blocks: int | None
    dtype: str
    kv_dtype: str
    kv_order: str


def generate(
    model: Model = "demo",
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="The text to go on from; - reads it from stdin.")
    ] = None,
    prompt_ids: Annotated[
        str | None, typer.Option("--prompt-ids", metavar="5,6,7", help="Token ids instead of text.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Take the prompt as a user's message, in the model's chat format.")
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="With --chat: the system message before it.")
    ] = None,
    device: DeviceSpec = "auto",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", parser=whole_number, help="Tokens to generate at most.")
    ] = 128,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", parser=number, help="0 picks the most likely token; else above 0."),
    ] = 0.0,
    top_k: Annotated[
        int, typer.Option("--top-k", metavar="K", parser=whole_number, help="Only the K most likely tokens; 0 for all.")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            "--top-p", metavar="P", parser=number, help="Only the most likely tokens up to this probability, in (0, 1]."
        ),
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="N", parser=whole_number, help="Repeats an output. Default: a new one."),
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after an end-of-sequence token.")] = False,
    dtype: Dtype = "auto",
    block_size: BlockSize = 16,
    num_blocks: Annotated[
        int | None,
        typer.Option(
            "--num-blocks",
            metavar="N",
            parser=whole_number,
            help="KV blocks. Default: what this request needs.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    max_batch_tokens: BatchTokens = 512,
    kv_dtype: KvDtype = "float32",
    kv_order: KvOrder = "page_first",
    threads: Threads = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no metrics on stderr.")] = False,
    json: Json = False,
) -> None:
    """Generate from one prompt. The text streams to stdout; progress and metrics go to stderr."""
    params = SamplingParams(max_tokens, temperature, top_k, top_p, seed, ignore_eos)
    source = read_source(prompt, prompt_ids, chat, system)
    settings = _Settings(model, max_batch_tokens, block_size, num_blocks, dtype, kv_dtype, kv_order)
    started = time.perf_counter()
    with open_device(device, threads) as opened:
        ids, blocks = _plan(settings, source, params)
        with _engine(settings, blocks, opened, quiet) as engine:
            loaded = time.perf_counter() - started
            output = _stream(engine, ids, params, show=not json)
    if json:
        write_json(shape(output, loaded))
    elif not quiet:
        note(_summary(output, loaded))


def shape(output: RequestOutput, load_time: float) -> dict[str, Any]:
    """The object that ``--json`` prints; the epilog documents it."""
    per_token = output.metrics.time_per_output_token
    return {
        "prompt_token_ids": output.prompt_token_ids,
        "token_ids": output.token_ids,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "seed": output.seed,
        "metrics": {
            "load_time": load_time,
            **asdict(output.metrics),
            "tokens_per_second": 1 / per_token if per_token else None,
        },
    }


def _plan(settings: _Settings, source: PromptSource, params: SamplingParams) -> tuple[list[int], int]:
    """Token ids of the prompt, and KV blocks: as many as were asked for, else what the request can fill."""
    from accel.engine import check_prompt
    from accel.models.files import open_model

    with open_model(settings.model) as files:
        ids = source.encode(files)
        check_prompt(ids, files.config.max_position, files.config.vocab_size)
        if settings.num_blocks is not None:
            return ids, settings.num_blocks
        return ids, _blocks(files, len(ids) + params.max_tokens, settings.block_size)


def _blocks(files: ModelFiles, tokens: int, block_size: int) -> int:
    # Measuring how many blocks fit takes a step of the largest size, which one request has no use for.
    longest = min(tokens, files.config.max_position)
    return -(-longest // max(1, block_size))


def _engine(settings: _Settings, blocks: int, device: Device, quiet: bool) -> Engine:
    from accel.engine import Engine

    with load_progress("loading", quiet) as report:
        return Engine(
            settings.model,
            device,
            block_size=settings.block_size,
            num_blocks=blocks,
            max_batch_tokens=settings.max_batch_tokens,
            max_requests=1,
            dtype=settings.dtype,
            kv_dtype=settings.kv_dtype,
            kv_order=settings.kv_order,
            progress=report,
        )


def _stream(engine: Engine, ids: list[int], params: SamplingParams, show: bool) -> RequestOutput:
    """Run the request, and print what it gives as it comes: text, or token ids where there is no tokenizer."""
    output: RequestOutput | None = None
    has_text = engine.tokenizer is not None
    for token in engine.stream(ids, params):
        output = token.output
        if show:
            print(token.text if has_text else f"{token.token_id} ", end="", flush=True)
    if show:
        print(flush=True)
    if output is None:
        raise RuntimeError("the engine ended a request without an output")
    return output


def _summary(output: RequestOutput, load_time: float) -> str:
    metrics = output.metrics
    parts = [
        f"{len(output.prompt_token_ids)} + {len(output.token_ids)} tokens ({output.finish_reason})",
        f"loaded in {load_time:.2f} s",
        f"first token after {metrics.time_to_first_token:.3f} s",
    ]
    if metrics.time_per_output_token:
        parts.append(f"then {1 / metrics.time_per_output_token:.1f} tokens/s")
    return f"[{', '.join(parts)}, seed {output.seed}]"
