"""Work in the background: shared by all who ask for the same, watched, and given up for nobody.

    workers.join(key, work)  ->  Job: future, done   ->  workers.leave(job)

Quick work has threads of its own, so that no slow one stands before it; slow work steps aside while
there is some, and stands still while nobody waits for it.
"""

import queue
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

QUICK, SLOW = 3, 2  # threads
GRACE = 2.0  # seconds for which work that nobody waits for is kept, in case somebody comes back
ASIDE = 0.2  # seconds for which slow work steps aside, at most, between two of its steps


class Abandoned(Exception):
    """Nobody waits for this work any more, or the server ends."""


class Job:
    """Work that was asked for, and how far it is.

    future   its result
    done     0..1
    what     is being done, in words
    """

    def __init__(self, key: Hashable, work: Callable[["Job"], Any], what: str, slow: bool) -> None:
        self.key, self.what, self.slow = key, what, slow
        self.future: Future[Any] = Future()
        self.done = 0.0
        self.waiting = 0
        self._work = work
        self._aside: Callable[[Job], None] = lambda job: None

    def step(self, done: float) -> None:
        """Called by the work, often: `done` of it is. Raises Abandoned where it is to end."""
        self.done = done
        self._aside(self)


_Queue = queue.Queue[Job | None]


class Workers:
    """Threads that do quick and slow work, until they are closed."""

    def __init__(self, quick: int = QUICK, slow: int = SLOW, grace: float = GRACE) -> None:
        self.grace = grace
        self._lock = threading.Lock()
        self._jobs: dict[Hashable, Job] = {}
        self._quick: _Queue = queue.Queue()
        self._slow: _Queue = queue.LifoQueue()  # what is looked at now first
        self._n_quick = 0  # quick jobs that are asked for and not done
        self._closed = False
        all_of_them = [*[self._quick] * quick, *[self._slow] * slow]
        self.threads = [
            threading.Thread(target=self._run, args=(jobs,), daemon=True) for jobs in all_of_them
        ]
        for thread in self.threads:
            thread.start()

    def join(
        self, key: Hashable, work: Callable[[Job], Any], what: str = "", slow: bool = False
    ) -> Job:
        """The job of this key that is under way, or a new one. Whoever joins must leave."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = Job(key, work, what, slow)
                job._aside = self._step_aside
                self._n_quick += not slow
                (self._slow if slow else self._quick).put(job)
            job.waiting += 1
            return job

    def leave(self, job: Job) -> None:
        with self._lock:
            job.waiting -= 1

    def find(self, key: Hashable) -> Job | None:
        """The job of this key, if it is under way."""
        with self._lock:
            return self._jobs.get(key)

    def close(self) -> None:
        """Give up all work, what is under way at its next step, and let the threads end."""
        self._closed = True
        for jobs in (self._quick, self._slow):
            with suppress(queue.Empty):
                while (job := jobs.get_nowait()) is not None:
                    self._end(job, error=Abandoned())
        for _ in self.threads:
            self._quick.put(None)
            self._slow.put(None)

    def _step_aside(self, job: Job) -> None:
        """Wait while quick work is there or nobody waits for this; what nobody waits for is given
        up in the end, and at once where others wait for a thread."""
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            late = passed >= self.grace or not self._slow.empty()
            if self._closed or (job.waiting <= 0 and late and self._drop(job)):
                raise Abandoned
            if job.waiting > 0 and not (job.slow and self._n_quick and passed < ASIDE):
                return
            time.sleep(0.005)

    def _drop(self, job: Job) -> bool:
        """Take a job that nobody waits for out of the list, where that is still so."""
        with self._lock:
            if job.waiting > 0:
                return False
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            return True

    def _run(self, jobs: _Queue) -> None:
        while (job := jobs.get()) is not None:
            try:
                if self._closed or (job.waiting <= 0 and self._drop(job)):
                    raise Abandoned
                result = job._work(job)
            except BaseException as error:
                self._end(job, error=error)
            else:
                self._end(job, result)
                del result  # it is not held until the next one comes
            del job

    def _end(self, job: Job, result: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            self._n_quick -= not job.slow
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)
