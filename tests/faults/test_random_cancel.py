"""Case Q02: four streams are cancelled in every way and at any moment, then a probe is right."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import httpx

from tests.faults.fragile import LONG, assert_whole, fragile_service
from tests.support.lives import Connection, assert_answers, until
from tests.support.messages import scripted

ROUNDS = 500 if LONG else 12
MIX = [
    {**scripted(say="a" * 1000, step_ms=3), "max_tokens": 1000},
    scripted(say="a", then="wait"),
    scripted(prefill_steps=1000, step_ms=2),
    scripted(say="abc", step_ms=2),
    scripted(say="b", pad="b" * 2500, prefill_steps=1000, step_ms=2),
]


def test_cancelled_at_any_moment_the_engine_stays_whole(tiny: Path, tmp_path: Path) -> None:
    chance = random.Random(20)
    with (
        fragile_service(tiny, tmp_path / "data") as service,
        ThreadPoolExecutor(8) as pool,
        service.client() as client,
    ):

        def cancel(run_id: str, after: float) -> None:
            sleep(after)
            client.post(f"/v1/runs/{run_id}/cancel").raise_for_status()

        for _ in range(ROUNDS):
            asked = [{**each, "stream": True} for each in chance.sample(MIX, 4)]
            streams = [Connection(service.url, each) for each in asked]
            ids = [each.run_id() for each in streams]
            moment = chance.random() / 20
            # Two in one tick, one of them twice, one whose reader just goes, one or the other.
            cancels = [(ids[0], moment), (ids[1], moment), (ids[1], moment + 0.001)]
            if chance.random() < 0.5:
                cancels.append((ids[2], chance.random() / 20))
            else:
                pool.submit(_go, streams[2], chance.random() / 20)
            pool.submit(_go, streams[3], chance.random() / 20)
            list(pool.map(lambda each: cancel(*each), cancels))
            until(lambda: _is_idle(client))
            for each in streams:
                each.close()
            assert_answers(service)
        assert_whole(service)


def _go(stream: Connection, after: float) -> None:
    sleep(after)
    stream.reset()


def _is_idle(client: httpx.Client) -> bool:
    query = [("state", "queued"), ("state", "running")]
    return not client.get("/v1/runs", params=query).json()["data"]
