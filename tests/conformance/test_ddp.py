"""The process runner of the distributed tests: results in order, errors carried over, nothing hangs."""

import time

import pytest
import torch

from conformance.ddp import run_ranks
from conformance.workers import add_up, fail_on_one, hang


def test_results_come_back_in_rank_order():
    results = run_ranks(add_up, 2, 10.0)
    assert [result[:2] for result in results] == [(0, 2), (1, 2)]
    assert all(torch.equal(result[2], torch.tensor([30.0])) for result in results)


def test_a_failing_rank_ends_the_run_with_its_traceback():
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"(?s)rank 1 of 2 failed.*the first rank is fine"):
        run_ranks(fail_on_one, 2)
    assert time.monotonic() - start < 60


def test_a_hanging_rank_is_killed():
    with pytest.raises(TimeoutError, match="still ran after 3 s"):
        run_ranks(hang, 2, timeout=3.0)
