"""The processes of one job, as torchrun starts them: who is who, who still works, and their bytes.

Each works alone, on a lock of its own. At the end they wait for each other for as long as those
that are behind give signs of life; what they found then goes to rank 0, over gloo, or NCCL with
CUDA.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

SILENCE = 600.0  # seconds without a sign after which a process counts as dead
SIGN = 5.0  # seconds between two signs
LOOK = 0.1  # seconds between two looks at the others
DONE, FAILED, STOPPED = "done", "failed", "stopped"


def own_device(name: str) -> str:
    """The device of this process: of several on one machine each has a CUDA device of its own."""
    local = os.environ.get("LOCAL_RANK", "")
    if name != "cuda" or not local.isdecimal() or not torch.cuda.is_available():
        return name
    return f"cuda:{int(local) % torch.cuda.device_count()}"


@dataclass(eq=False)
class Ranks:
    """This process among `world`; alone it waits for nobody."""

    rank: int = 0
    world: int = 1
    store: Any = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _signed: float = -SIGN
    _signs: int = 0

    def sign(self, state: str = "") -> None:
        """Tell the others that this process works, every so often, or how it ended.

        Raises ConnectionError where rank 0, which holds them together, is gone.
        """
        now = time.monotonic()
        if self.store is None or (not state and now - self._signed < SIGN):
            return
        self._signed, self._signs = now, self._signs + 1
        with _gone("rank 0 is gone"):
            self.store.set(f"rank {self.rank}", state or str(self._signs))

    def same(self, what: str) -> bool:
        """Whether this is what rank 0 says. Raises ConnectionError where it says nothing."""
        if self.store is None:
            return True
        with _gone("rank 0 did not begin"):
            if self.rank == 0:
                self.store.set("what", what)
            return bool(self.store.get("what").decode() == what)

    def wait(
        self, state: str, ranks: range, stop: Callable[[], bool], silence: float | None = None
    ) -> bool:
        """Wait until each of `ranks` has got to `state`; False where `stop` says so before.

        Raises ConnectionError naming the rank that failed, was stopped or gives no sign.
        """
        seen = dict.fromkeys(ranks, ("", time.monotonic()))
        silence = SILENCE if silence is None else silence
        while self.store is not None and seen:
            if state == DONE:  # rank 0, for which the others wait
                self.sign()
            for rank, (before, since) in list(seen.items()):
                now = time.monotonic()
                with _gone("rank 0 is gone"):
                    there = self.store.check([f"rank {rank}"])
                    said = self.store.get(f"rank {rank}").decode() if there else ""
                if said == state:
                    del seen[rank]
                elif said in (FAILED, STOPPED):
                    raise ConnectionError(f"rank {rank} {'was ' * (said == STOPPED)}{said}")
                elif said != before:
                    seen[rank] = said, now
                elif now - since > silence:
                    raise ConnectionError(f"rank {rank} gave no sign for {silence:,.0f} seconds")
            if stop():
                return False
            if seen:
                time.sleep(LOOK)
        return True

    def gather(self, data: bytes) -> list[bytes]:
        """On rank 0 what each of the others has, in order; nothing elsewhere.

        Raises ConnectionError where one of them is gone.
        """
        import torch.distributed as dist

        found: list[bytes] = []
        if self.world == 1:
            return found
        with _gone("another process is gone"):
            if self.rank:
                given = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
                dist.send(torch.tensor([len(data)], device=self.device), 0)
                dist.send(given, 0)
            for rank in range(1, self.world) if not self.rank else ():
                size = torch.zeros(1, dtype=torch.int64, device=self.device)
                dist.recv(size, rank)
                got = torch.empty(int(size), dtype=torch.uint8, device=self.device)
                dist.recv(got, rank)
                found.append(got.cpu().numpy().tobytes())
        return found


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """This process among those of the job that the environment names (RANK, WORLD_SIZE, ...).

    However it is left, the others hear of it. Raises ValueError for an environment that makes no
    sense and ConnectionError where the others do not come.
    """
    named = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR")}
    if named["WORLD_SIZE"] in ("", "1"):
        yield Ranks()
        return
    numbers = [named["WORLD_SIZE"], named["RANK"], os.environ.get("MASTER_PORT", "")]
    if not all(map(str.isdecimal, numbers)) or not int(numbers[1]) < int(numbers[0]):
        said = ", ".join(f"{name}={value!r}" for name, value in named.items())
        raise ValueError(f"the environment names no process of a job ({said}): torchrun sets it")
    dist: Any = torch.distributed  # of which not everything that is public is typed so

    if not dist.is_available() or dist.is_initialized():
        raise ValueError("this torch has no torch.distributed, or it is in use in this process")
    own = device.type == "cuda" and dist.is_nccl_available()
    own = own and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
    patience = timedelta(seconds=SILENCE)
    with _gone("the other processes did not come"):
        store, rank, world = next(dist.rendezvous("env://", timeout=patience))
        store.set_timeout(patience)
        dist.init_process_group(
            "nccl" if own else "gloo", store=dist.PrefixStore("group", store), rank=rank,
            world_size=world, timeout=patience,
        )  # fmt: skip
    mine = Ranks(rank, world, dist.PrefixStore("signs", store),
                 device if own else torch.device("cpu"))  # fmt: skip
    try:
        yield mine
    except BaseException as error:
        with suppress(ConnectionError):
            mine.sign(STOPPED if isinstance(error, KeyboardInterrupt) else FAILED)
        raise
    with suppress(RuntimeError):  # after an error it might wait for those that are gone
        dist.destroy_process_group()


@contextmanager
def _gone(what: str) -> Iterator[None]:
    """What torch.distributed raises where somebody is missing, in one line."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(f"{what} ({str(error).splitlines()[0]})") from error
