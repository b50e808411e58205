"""The runner: what execute does is what its five parts do, and a plan that names what is not there runs nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from accel import Engine, SamplingParams
from accel.errors import InvalidArgument
from accel.runner.plan import LAST_SAMPLED, FinishReason, Logits, PlanRow, StepPlan


def row(
    tokens: list[int], *, number: int = 0, computed: int = 0, blocks: tuple[int, ...] = (0, 1), **more: object
) -> PlanRow:
    values: dict[str, object] = {
        "request": number,
        "epoch": 3,
        "slot": number,
        "sample": True,
        "params": SamplingParams(ignore_eos=True),
        "seed": 0,
        "generated": 0,
        "max_tokens": 9,
        **more,
    }
    return PlanRow(computed=computed, tokens=tokens, blocks=blocks, **values)  # type: ignore[arg-type]


def test_execute_is_pack_run_sample_stop_update(engine_of: Callable[..., Engine]) -> None:
    whole, parts = engine_of().runner, engine_of().runner
    plan = StepPlan.of([row([5, 6, 7])])
    output = whole.execute(plan).result()
    packed = parts.pack(plan)
    rows = np.array([0], np.int32)
    logits = parts.logits(packed, parts.run(packed), rows)
    token = parts.sample(packed, rows, logits)
    reason = parts.stop(packed, rows, token)
    parts.update(packed, rows, token)
    assert token.numpy().tolist() == output.token.tolist()
    assert reason.numpy().tolist() == output.finish.tolist()
    following = StepPlan.of([row([LAST_SAMPLED], computed=3)])
    assert parts.execute(following).result().token.tolist() == whole.execute(following).result().token.tolist()


def test_the_last_sampled_token_stands_for_its_id(engine_of: Callable[..., Engine]) -> None:
    first, second = engine_of().runner, engine_of().runner
    sampled = [runner.execute(StepPlan.of([row([5, 6])])).result().token[0] for runner in (first, second)]
    named = first.execute(StepPlan.of([row([int(sampled[0])], computed=2)], Logits.SAMPLED)).result()
    meant = second.execute(StepPlan.of([row([LAST_SAMPLED], computed=2)], Logits.SAMPLED)).result()
    assert named.logits is not None
    assert meant.logits is not None
    assert np.array_equal(named.logits, meant.logits)


def test_the_output_carries_requests_and_epochs_back_and_samples_only_where_asked(
    engine_of: Callable[..., Engine],
) -> None:
    plan = StepPlan.of([row([5], number=4, sample=False), row([6], number=2, blocks=(3,), max_tokens=1)])
    output = engine_of().runner.execute(plan).result()
    assert output.request.tolist() == [4, 2]
    assert output.epoch.tolist() == [3, 3]
    assert output.token[0] == -1
    assert output.token[1] >= 0
    assert output.finish.tolist() == [FinishReason.NONE, FinishReason.LENGTH]
    assert output.logits is None


def test_a_step_writes_only_the_slots_of_its_tokens(engine_of: Callable[..., Engine]) -> None:
    runner = engine_of(num_blocks=4).runner
    pages = runner.pool.view.numpy()
    pages[...] = np.nan
    runner.execute(StepPlan.of([row([5, 6, 7], computed=0, blocks=(2,))])).result()
    written = ~np.isnan(pages)
    assert written[2, :, :, :, :3].all()
    written[2, :, :, :, :3] = False
    assert not written.any()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row([320]), "outside the vocabulary"),
        (row([-2]), "outside the vocabulary"),
        (row([5], blocks=(128,)), "names block 128; the pool has 128 blocks"),
        (row([5] * 33), "2 columns"),
        (row([5], slot=64), "slots"),
        (row([5], computed=512, blocks=tuple(range(40))), "reaches 513 tokens; the limit is 512"),
        (row([5] * 513, blocks=tuple(range(40))), "limit is 512"),
        (row([5], computed=-1), "computed"),
    ],
)
def test_a_plan_that_names_what_is_not_there_raises_and_changes_nothing(
    bad: PlanRow, message: str, engine_of: Callable[..., Engine]
) -> None:
    runner = engine_of().runner
    pages = runner.pool.view.numpy()
    pages[...] = 7
    with pytest.raises(InvalidArgument, match=message):
        runner.execute(StepPlan.of([bad])).result()
    assert (pages == 7).all()


def test_logits_of_no_number_give_no_token(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of()
    engine.decoder.weights.norm.numpy()[...] = np.nan
    output = engine.runner.execute(StepPlan.of([row([5])])).result()
    assert output.token.tolist() == [-1]
    with pytest.raises(Exception, match="NaN"):
        engine.generate([[5]])
