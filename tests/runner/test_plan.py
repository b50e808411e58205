"""A plan that exists is consistent, and cannot be changed afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from accel.errors import InvalidArgument
from accel.runner.plan import LAST_SAMPLED, PlanRow, StepPlan
from accel.sampling_params import SamplingParams


def row(number: int, tokens: list[int], computed: int = 0, slot: int | None = None) -> PlanRow:
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.25, ignore_eos=True)
    slot = number if slot is None else slot
    return PlanRow(number, 2, slot, computed, tokens, [7, 8], True, params, 1 << 63, 4, 9)


def test_rows_become_arrays_of_the_documented_types() -> None:
    plan = StepPlan.of([row(0, [5, 6, 7]), row(1, [LAST_SAMPLED], computed=9)])
    assert (plan.num_requests, plan.num_tokens) == (2, 4)
    assert plan.query_start.tolist() == [0, 3, 4]
    assert plan.tokens.tolist() == [5, 6, 7, LAST_SAMPLED]
    assert plan.block_tables.tolist() == [[7, 8], [7, 8]]
    assert plan.seed.tolist() == [1 << 63, 1 << 63]
    assert plan.top_p.tolist() == [0.25, 0.25]
    assert plan.epoch.tolist() == [2, 2]
    assert plan.computed.tolist() == [0, 9]


def test_a_plan_is_immutable_in_every_array() -> None:
    plan = StepPlan.of([row(0, [5])])
    for name in ("request", "epoch", "slot", "query_start", "computed", "tokens", "block_tables", "seed", "top_p"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(plan, name)[0] = 1


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no request"):
        StepPlan.of([])


def test_a_slot_used_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="one slot"):
        StepPlan.of([row(0, [5], slot=1), row(1, [6], slot=1)])


@pytest.mark.parametrize("field", ["epoch", "slot", "computed", "temperature", "top_k", "max_tokens", "ignore_eos"])
def test_arrays_of_another_length_or_type_are_refused_by_name(field: str) -> None:
    plan = StepPlan.of([row(0, [5]), row(1, [6])])
    with pytest.raises(InvalidArgument, match=field):
        replace(plan, **{field: getattr(plan, field)[:1]})
    with pytest.raises(InvalidArgument, match=field):
        replace(plan, **{field: getattr(plan, field).astype(np.complex64)})


def test_sums_that_do_not_cover_the_tokens_are_refused() -> None:
    plan = StepPlan.of([row(0, [5, 6])])
    with pytest.raises(InvalidArgument, match="query_start"):
        replace(plan, query_start=np.array([0, 1], np.int32))
