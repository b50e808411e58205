"""Metrics say what happened, from the counters of those it happened to, and are served only where somebody asked."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from accel import Engine, SamplingParams
from accel.errors import InvalidArgument
from accel.scheduler.request import EndReason

PROMPT = list(range(5, 45))


def samples(engine: Engine) -> dict[tuple[str, str], float]:
    """(name, label value) -> value, histograms by their count and sum."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(engine.metrics.text())
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_they_say_what_happened(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(num_blocks=32)
    params = SamplingParams(max_tokens=7, ignore_eos=True)
    for _ in range(2):
        engine.generate(PROMPT, params)
    engine.stream([5], SamplingParams(max_tokens=300, ignore_eos=True)).close()
    engine.wait_idle(20)
    seen = samples(engine)
    assert seen["accel_prefix_prompt_tokens_total", ""] in (80, 81)
    assert seen["accel_prefix_hit_tokens_total", ""] == 32
    assert seen["accel_requests_ended_total", "length"] == 2
    assert seen["accel_requests_ended_total", "abort"] == 1
    assert seen["accel_time_to_first_token_seconds_count", ""] >= 2
    assert seen["accel_time_per_output_token_seconds_count", ""] >= 2
    assert seen["accel_request_output_tokens_sum", ""] >= 14
    assert seen["accel_request_seconds_count", ""] == 3
    assert seen["accel_scheduler_steps_total", ""] == seen["accel_step_tokens_count", ""]
    blocks = [seen["accel_pool_blocks", state] for state in ("free", "pending", "committed", "cached")]
    assert sum(blocks) == 32
    assert blocks[1:3] == [0, 0]
    assert seen["accel_scheduler_requests", "running"] == seen["accel_scheduler_requests", "waiting"] == 0


def test_label_values_are_closed_sets_that_are_there_from_the_start(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    before = set(samples(engine))
    engine.generate([[5], [6]], SamplingParams(max_tokens=2, ignore_eos=True), request_id="a name of the caller")
    assert set(samples(engine)) == before
    assert {label for name, label in before if name == "accel_requests_ended_total"} == {r.value for r in EndReason}


def test_preemptions_and_recomputed_tokens_are_told_and_hits_counted_once(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(num_blocks=8, output_reserve=0)
    outputs = engine.generate([PROMPT[: 20 + n] for n in range(6)], SamplingParams(max_tokens=40, ignore_eos=True))
    seen = samples(engine)
    preemptions = sum(output.metrics.preemptions for output in outputs)
    assert seen["accel_scheduler_preemptions_total", ""] == preemptions > 0
    assert seen["accel_scheduler_recomputed_tokens_total", ""] > 0
    hits = sum(output.metrics.hit_tokens for output in outputs)
    assert seen["accel_prefix_hit_tokens_total", ""] == hits <= sum(20 + n for n in range(6))


def test_nothing_listens_by_default(engine_of: Callable[..., Engine]) -> None:
    assert engine_of().metrics.port is None


def test_a_port_serves_them_on_the_loopback_until_the_engine_closes(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(metrics_port=0)
    port = engine.metrics.port
    assert port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        assert b"accel_pool_blocks" in answer.read()
    engine.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_port_that_is_taken_or_none_is_refused_before_the_engine_is_there(engine_of: Callable[..., Engine]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidArgument, match=f"cannot be served on 127.0.0.1:{port}"):
            engine_of(metrics_port=port)
    for wrong in (-1, 65536, "http"):
        with pytest.raises(InvalidArgument, match="0 to 65535"):
            engine_of(metrics_port=wrong)
