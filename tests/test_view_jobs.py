"""Work in the background: shared, quick before slow, newest first, given up for nobody."""

import threading
import time

import pytest

from clearhead.viewer.jobs import Abandoned, Workers


@pytest.fixture
def workers():
    found = Workers(quick=1, slow=1, grace=0.2)
    yield found
    found.close()
    for thread in found.threads:
        thread.join(5)
        assert not thread.is_alive()


def steps(job):
    """Work that ends only when it is given up."""
    for n in range(100_000):
        job.step(n / 100_000)
        time.sleep(0.001)


def test_the_same_is_done_once_for_all_who_ask(workers):
    go, calls = threading.Event(), []

    def work(job):
        go.wait()
        calls.append(1)
        return len(calls)

    jobs = [workers.join("a", work) for _ in range(5)]
    assert workers.find("a") is jobs[0]
    go.set()
    assert [job.future.result(5) for job in jobs] == [1] * 5
    for job in jobs:
        workers.leave(job)
    again = workers.join("a", work)
    assert again.future.result(5) == 2
    assert workers.find("a") is None


def test_quick_work_does_not_wait_for_slow_and_slow_steps_aside(workers):
    slow = workers.join("slow", steps, slow=True)
    while not slow.done:
        time.sleep(0.001)
    stands = []

    def quick(job):
        time.sleep(0.05)
        stands.append(slow.done)
        time.sleep(0.1)
        stands.append(slow.done)

    workers.join("quick", quick).future.result(5)
    assert stands[0] == stands[1]
    time.sleep(0.1)
    assert slow.done > stands[1]
    workers.leave(slow)


def test_what_nobody_waits_for_stands_still_and_is_given_up(workers):
    job = workers.join("a", steps, slow=True)
    while not job.done:
        time.sleep(0.001)
    workers.leave(job)
    began = time.monotonic()
    with pytest.raises(Abandoned):
        job.future.result(5)
    assert time.monotonic() - began > 0.1  # it was kept for a while
    assert workers.find("a") is None


def test_it_makes_room_at_once_for_what_somebody_waits_for(workers):
    workers.grace = 60
    first = workers.join("first", steps, slow=True)
    while not first.done:
        time.sleep(0.001)
    second = workers.join("second", lambda job: 2, slow=True)
    time.sleep(0.05)
    assert not second.future.done()  # somebody waits for the first
    workers.leave(first)
    assert second.future.result(5) == 2
    assert isinstance(first.future.exception(5), Abandoned)


def test_the_newest_slow_work_comes_first_and_what_was_left_is_not_begun(workers):
    go, order = threading.Event(), []
    first = workers.join("first", lambda job: go.wait(), slow=True)
    while workers._slow.qsize():
        time.sleep(0.001)
    rest = [workers.join(n, lambda job: order.append(job.key), slow=True) for n in ("a", "b", "c")]
    workers.leave(rest[1])
    go.set()
    for job in (first, rest[0], rest[2]):
        job.future.result(5)
    assert order == ["c", "a"]
    assert isinstance(rest[1].future.exception(5), Abandoned)


def test_an_error_goes_to_all_who_wait_and_to_nobody_else(workers):
    def bug(job):
        raise RuntimeError("inside")

    job = workers.join("a", bug)
    assert isinstance(job.future.exception(5), RuntimeError)
    assert workers.join("b", lambda job: 1).future.result(5) == 1


def test_closed_all_work_ends(workers):
    jobs = [workers.join(n, steps, slow=True) for n in range(3)]
    while not any(job.done for job in jobs):
        time.sleep(0.001)
    workers.close()
    assert all(isinstance(job.future.exception(5), Abandoned) for job in jobs)
