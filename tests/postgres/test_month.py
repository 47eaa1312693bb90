"""A short made-up life; `bench/consolidation.py` lives through a month of two thousand episodes (SPEC 7, E2, E3)."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from butler_memory.postgres.provision import Urls
from conftest import Hands, OpenEngine, rows
from month import BEGINS, Month, broken, live


async def test_e2_k1_k3_eight_butlers_for_nine_days_with_an_outage_and_episodes_that_nobody_can_read(
    open_engine: OpenEngine, hands: Hands, urls: Urls
) -> None:
    month = Month(episodes=200, days=9)
    hands.now = BEGINS
    engine = await open_engine(episode_reader=month.reader(hands))
    stored = await live(engine, hands, month, timedelta(hours=2))
    assert len(stored) == month.episodes
    assert await broken(engine, partial(rows, urls), stored) == []
