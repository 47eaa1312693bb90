"""Which texts share a run: the laws of the pure part, without a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from butler_memory.embedding.batching import RUN_TOKENS, Request, Tokens, next_run


def one_token_per_character(texts: Sequence[str]) -> list[Tokens]:
    return [[1] * max(1, min(len(text), RUN_TOKENS)) for text in texts]


def all_runs(requests: deque[Request]) -> list[list[tuple[Request, int]]]:
    runs = []
    while requests:
        if run := next_run(requests, one_token_per_character):
            runs.append([(item.request, item.position) for item in run])
    return runs


@given(st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=90), max_size=6))
def test_every_text_is_run_exactly_once(sizes: list[list[int]]) -> None:
    requests = [Request(["x" * size for size in request]) for request in sizes]
    served = [item for run in all_runs(deque(requests)) for item in run]
    assert sorted((id(request), position) for request, position in served) == sorted(
        (id(request), position) for request in requests for position in range(len(request.texts))
    )


@given(st.lists(st.integers(0, 300), min_size=1, max_size=200))
def test_a_run_has_one_width_and_stays_within_its_tokens(sizes: list[int]) -> None:
    requests = deque([Request(["x" * size for size in sizes])])
    while requests:
        run = next_run(requests, one_token_per_character)
        assert len({item.width for item in run}) <= 1
        assert sum(item.width for item in run) <= RUN_TOKENS


def test_a_single_text_waits_for_one_run_of_a_bulk_at_most() -> None:
    bulk, single = Request(["x" * 100] * 10_000), Request(["y" * 20])
    requests = deque([bulk])
    next_run(requests, one_token_per_character)
    requests.append(single)
    leaders = [next_run(requests, one_token_per_character)[0].request for _ in range(2)]
    assert single in leaders


def test_texts_of_one_width_from_many_callers_share_a_run() -> None:
    requests = deque(Request(["x" * 15]) for _ in range(10))
    assert [len(run) for run in all_runs(requests)] == [10]


def test_a_cancelled_request_takes_no_place() -> None:
    gone, here = Request(["x" * 9] * 50), Request(["y" * 9])
    gone.future.cancel()
    requests = deque([gone, here])
    assert [item.request for item in next_run(requests, one_token_per_character)] == [here]
    assert gone not in requests


def test_vectors_come_back_in_the_order_of_the_texts() -> None:
    request = Request(["long text", "short", "mid text"])
    for position in (1, 2, 0):
        request.put(position, np.full(1, position, np.float32))
    assert [float(vector[0]) for vector in request.future.result(0)] == [0.0, 1.0, 2.0]


def test_a_vector_for_a_caller_who_left_is_dropped_quietly() -> None:
    request = Request(["text"])
    request.future.cancel()
    request.put(0, np.zeros(1, np.float32))
    request.fail(ValueError())
    assert request.future.cancelled()
