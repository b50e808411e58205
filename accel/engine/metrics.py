"""Prometheus metrics of an engine: pool, prefix cache, scheduler, requests.

Invariants: gauges and totals are read from their owners when somebody scrapes, so they cannot drift; label values come
from closed sets; nothing listens unless a port was given, and then on the loopback address only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from accel.engine.outputs import RequestOutput
from accel.errors import InvalidArgument
from accel.runner.plan import StepPlan
from accel.scheduler.scheduler import Scheduler

__all__ = ["ADDRESS", "EngineMetrics", "check_port"]

#: Where metrics are served.
ADDRESS: Final = "127.0.0.1"

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_TOKENS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

#: What a block is, as the pool's statistics name it.
_BLOCK_STATES: Final = ("free", "pending", "committed", "cached")


def check_port(port: int | None) -> None:
    """Raise InvalidArgument for what is no port."""
    if port is not None and (not hasattr(port, "__index__") or not 0 <= port < 65536):
        raise InvalidArgument(f"metrics_port is {port!r}; it must be 0 to 65535")


class EngineMetrics(Collector):
    """Metrics of one engine, in a registry of their own; an ``Observer`` of its loop.

    Args:
        port: serve them there; 0 takes a free one, which `port` then tells; None serves nothing.

    Raises:
        InvalidArgument: the port cannot be used.
    """

    def __init__(self, scheduler: Scheduler, port: int | None = None) -> None:
        self.registry = CollectorRegistry()
        self._scheduler = scheduler

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"accel_{name}", text, buckets=tuple(buckets), registry=self.registry)

        self._first = histogram("time_to_first_token_seconds", "From the call to the first token.", _SECONDS)
        self._each = histogram(
            "time_per_output_token_seconds", "Mean of a request, from its second token on.", _SECONDS
        )
        self._whole = histogram("request_seconds", "From the call to the end.", _SECONDS)
        self._queued = histogram("queue_seconds", "From the call to admission.", _SECONDS)
        self._prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._output = histogram("request_output_tokens", "Tokens a request generated.", _TOKENS)
        self._batch = histogram("step_tokens", "Tokens computed in a step.", _TOKENS)
        self.registry.register(self)
        self._server: Any = None
        self.port: int | None = None
        check_port(port)
        if port is not None:
            self._serve(port)

    def step(self, plan: StepPlan) -> None:
        """A step was launched."""
        self._batch.observe(plan.num_tokens)

    def ended(self, output: RequestOutput) -> None:
        """A request ended."""
        metrics, tokens = output.metrics, len(output.token_ids)
        self._whole.observe(metrics.total_time)
        self._prompt.observe(len(output.prompt_token_ids))
        self._output.observe(tokens)
        if tokens:
            self._queued.observe(metrics.queue_time)
            self._first.observe(metrics.time_to_first_token)
        if tokens > 1:
            self._each.observe(metrics.time_per_output_token)

    def text(self) -> str:
        """All of them, in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def close(self) -> None:
        """Stop serving. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def collect(self) -> Iterator[Metric]:
        """Gauges and totals, read now."""
        pool, stats = self._scheduler.pool.stats(), self._scheduler.stats()
        counters = stats.counters
        blocks = GaugeMetricFamily("accel_pool_blocks", "KV blocks by state.", labels=["state"])
        for state in _BLOCK_STATES:
            blocks.add_metric([state], getattr(pool, state))
        yield blocks
        yield GaugeMetricFamily("accel_pool_evictable_blocks", "Cached blocks that can be given away.", pool.evictable)
        yield GaugeMetricFamily("accel_pool_leases", "Leases by swap, load and store.", pool.leases)
        yield CounterMetricFamily("accel_pool_allocations", "Blocks taken from the pool.", pool.allocations)
        yield CounterMetricFamily("accel_pool_evictions", "Cached blocks given away.", pool.evictions)
        yield CounterMetricFamily("accel_prefix_commits", "Blocks entered into the prefix index.", pool.commits)
        yield CounterMetricFamily(
            "accel_prefix_duplicates", "Blocks computed though the index had them.", pool.duplicates
        )
        yield CounterMetricFamily("accel_prefix_prompt_tokens", "Prompt tokens admitted.", counters.prompt_tokens)
        yield CounterMetricFamily("accel_prefix_hit_tokens", "Of those, found in the cache.", counters.hit_tokens)
        requests = GaugeMetricFamily("accel_scheduler_requests", "Requests by state.", labels=["state"])
        requests.add_metric(["waiting"], stats.waiting)
        requests.add_metric(["running"], stats.running)
        yield requests
        yield GaugeMetricFamily("accel_scheduler_steps_in_flight", "Steps not committed yet.", stats.steps_in_flight)
        yield GaugeMetricFamily(
            "accel_scheduler_output_reserve_tokens", "Output tokens an admission leaves room for.", stats.output_reserve
        )
        for name, text, value in (
            ("steps", "Steps planned.", counters.steps),
            ("batch_tokens", "Tokens computed.", counters.batch_tokens),
            ("generated_tokens", "Tokens generated.", counters.generated_tokens),
            ("preemptions", "Requests that gave their blocks up.", counters.preemptions),
            ("recomputed_tokens", "Tokens computed again after that.", counters.recomputed_tokens),
            ("stale_outputs", "Tokens of an earlier life of their request, dropped.", counters.stale_outputs),
            ("duplicate_outputs", "Outputs of steps already committed, dropped.", counters.duplicate_outputs),
            ("failed_steps", "Steps that raised.", counters.failed_steps),
        ):
            yield CounterMetricFamily(f"accel_scheduler_{name}", text, value)
        ended = CounterMetricFamily("accel_requests_ended", "Requests that ended, by reason.", labels=["reason"])
        for reason, count in counters.ended.items():
            ended.add_metric([reason.value], count)
        yield ended

    def _serve(self, port: int) -> None:
        try:
            self._server, _ = start_http_server(port, addr=ADDRESS, registry=self.registry)
        except OSError as error:
            raise InvalidArgument(
                f"metrics cannot be served on {ADDRESS}:{port}: {error}",
                hint="choose another port, or 0 for a free one",
            ) from error
        self.port = self._server.server_port
