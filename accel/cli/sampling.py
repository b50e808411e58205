"""Options that say how tokens are chosen and when a request ends: one for each field of SamplingParams.

Invariant: an option only translates what was typed; the limits are those of SamplingParams, which checks them.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from accel.cli.options import number, whole_number
from accel.errors import InvalidRequest

__all__ = [
    "BadWords",
    "Choices",
    "FrequencyPenalty",
    "IgnoreEos",
    "IncludeStop",
    "LogitBias",
    "Logprobs",
    "MaxTokens",
    "MinP",
    "MinTokens",
    "PresencePenalty",
    "PromptLogprobs",
    "RepetitionPenalty",
    "Seed",
    "Stop",
    "StopIds",
    "StopTokenIds",
    "Temperature",
    "TopK",
    "TopP",
    "parse_biases",
    "parse_ids",
]

SAMPLING_PANEL: Final = "How tokens are chosen"
STOPPING_PANEL: Final = "When a request ends"

_NUMBER = re.compile(r"[+-]?\d{1,18}", re.ASCII)

MaxTokens = Annotated[
    int,
    typer.Option(
        "--max-tokens",
        metavar="N",
        parser=whole_number,
        help="Tokens to generate at most. More than the model's longest sequence holds is no error: it is clipped, and "
        "the request ends there.",
        rich_help_panel=STOPPING_PANEL,
    ),
]
MinTokens = Annotated[
    int,
    typer.Option(
        "--min-tokens",
        metavar="N",
        parser=whole_number,
        help="Nothing but --max-tokens ends a request before it has so many.",
        rich_help_panel=STOPPING_PANEL,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        "--stop",
        metavar="TEXT",
        help="End where this text appears; it is not part of the output. May be repeated.",
        rich_help_panel=STOPPING_PANEL,
    ),
]
IncludeStop = Annotated[
    bool,
    typer.Option("--include-stop", help="Keep the --stop text in the output.", rich_help_panel=STOPPING_PANEL),
]
StopTokenIds = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token-id",
        metavar="ID",
        parser=whole_number,
        help="End after this token. May be repeated.",
        rich_help_panel=STOPPING_PANEL,
    ),
]
StopIds = Annotated[
    list[str] | None,
    typer.Option(
        "--stop-ids",
        metavar="5,6",
        help="End after these tokens in a row. May be repeated.",
        rich_help_panel=STOPPING_PANEL,
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Go on after an end-of-sequence token.", rich_help_panel=STOPPING_PANEL),
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature",
        metavar="T",
        parser=number,
        help="0 picks the most likely token. Above 0 draws one: low values stay close to it, 1 is the model's own "
        "distribution, high values are wild.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
TopK = Annotated[
    int,
    typer.Option(
        "--top-k",
        metavar="K",
        parser=whole_number,
        help="Draw from the K most likely tokens; 0 for all.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p",
        metavar="P",
        parser=number,
        help="Draw from the fewest likely tokens that make up this probability, in (0, 1].",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p",
        metavar="P",
        parser=number,
        help="Draw only what is at least P times as likely as the most likely token, 0 to 1.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        parser=whole_number,
        help="Repeats an output, whatever else runs. Default: a new one, which the output tells.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        metavar="X",
        parser=number,
        help="Above 1 makes what stands in prompt or output less likely; 1 is off.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(
        "--frequency-penalty",
        metavar="X",
        parser=number,
        help="Taken off a token's logit for each time it was generated.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        "--presence-penalty",
        metavar="X",
        parser=number,
        help="Taken off a token's logit once it was generated.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=VALUE",
        help="Add VALUE to the logit of token ID; -inf bans it. May be repeated.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
BadWords = Annotated[
    list[str] | None,
    typer.Option(
        "--bad-word",
        metavar="TEXT",
        help="Never generate this text. May be repeated.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
Choices = Annotated[
    int,
    typer.Option(
        "--choices",
        "-n",
        metavar="N",
        parser=whole_number,
        help="Outputs for each prompt, which is computed once. Choice i uses seed + i.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="K",
        parser=whole_number,
        help="Log-probability of each token and of the K most likely ones there. In JSON only.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]
PromptLogprobs = Annotated[
    int | None,
    typer.Option(
        "--prompt-logprobs",
        metavar="K",
        parser=whole_number,
        help="The same for each token of the prompt but the first. In JSON only.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]


def parse_ids(text: str, option: str = "--prompt-ids") -> tuple[int, ...]:
    """Token ids out of "5,6,7". Raises InvalidRequest for what is no number, and where there is none."""
    example = f"{option} 5,6,7"
    if not text.strip():
        what = "the prompt" if option == "--prompt-ids" else option
        raise InvalidRequest(f"{what} is empty; it must have at least 1 token", hint=f"e.g. {example}")
    parts = [part.strip() for part in text.split(",")]
    for position, part in enumerate(parts):
        if _NUMBER.fullmatch(part) is None:
            raise InvalidRequest(
                f"token id {_short(part)} at position {position} is not a whole number",
                hint=f"give token ids separated by commas, e.g. {example}",
            )
    return tuple(int(part) for part in parts)


def parse_biases(entries: list[str]) -> dict[int, float]:
    """{5: -2.0} out of ["5=-2"]. Raises InvalidRequest for another form, or a token named twice."""
    biases: dict[int, float] = {}
    for entry in entries:
        token, equals, value = entry.partition("=")
        try:
            if not equals or _NUMBER.fullmatch(token.strip()) is None:
                raise ValueError
            amount = float(value)
        except ValueError:
            raise InvalidRequest(
                f"--logit-bias {_short(entry)} is not ID=VALUE", hint="e.g. --logit-bias 5=-2.5, or 5=-inf"
            ) from None
        if int(token) in biases:
            raise InvalidRequest(f"--logit-bias names token {int(token)} twice", hint="give each token once")
        biases[int(token)] = amount
    return biases


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
