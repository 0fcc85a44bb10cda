"""A corpus: any number of texts read one by one, and what the heads did in all of them, added up.

    Texts -> windows -> observe -> Progress (on the disk every few seconds) -> Run

Stopped at any moment and started again with the same words, a reading goes on; what comes out is,
to the bit, what it would have been. Neither memory nor the progress file grows with the corpus.
Started by torchrun, text i is read by process i % world, and what they find is merged.
"""

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from clearhead.capture import Observer, observe
from clearhead.capture.keeping import count_check, shown, versions
from clearhead.checkpoint import heard_later
from clearhead.files import alone, make_directory
from clearhead.inspection import TEXT, Asked, Collector, Glance, beside, glance, set_roles
from clearhead.run import Run
from clearhead.run.writer import RunWriter
from clearhead.subject import Subject
from clearhead.survey import progress as kept
from clearhead.survey.job import DONE, Ranks, ranks
from clearhead.survey.progress import Place, Progress
from clearhead.survey.texts import Text, Texts

KEEP_EVERY = 10.0  # seconds between two writings of the progress,
KEEP_SHARE = 20  # but this many times longer than the last one took
SAY_EVERY = 30.0  # seconds between two lines about how far it is
SAMPLE = 1024  # numbers of each parameter that tell models apart
LOCK = ".corpus-{}.lock"
BUSY = "another copy reads a corpus into it; wait, or choose another --save"
READY, WRITTEN, GONE = "ready", "written", "gone"

Show = Callable[[Iterable[Text], str, int], Iterable[Text]]
Say = Callable[[str], None]


class _NothingYet(Exception):
    """Leaves `with observe` where it would complain that nothing was seen."""


def survey(
    subject: Subject, corpus: str | Path, asked: Asked, folder: str | Path,
    most: int | None = None, show: Show | None = None, say: Say | None = None,
) -> Run | None:  # fmt: skip
    """Have a model read a corpus; its Run, statistics alone, which lies in `folder` then.

    corpus  a folder, of which every *.txt below is read in the order of their names, or a JSONL
            file with a "text" in each line. Files that are not UTF-8 are left out and noted
    asked   layers, rows and probe; nothing of a corpus is kept but statistics
    folder  where the progress is kept on the way, and the Run at the end
    most    tokens to read of each text
    show    hands the texts on while somebody watches: (texts, label, how many) -> texts
    say     is told where it begins and ends and, where nobody watches, how far it is

    Ctrl-C and SIGTERM end it after the window that is being read: what was found is kept, and
    KeyboardInterrupt raised. In a job of several processes the Run is that of rank 0, and the
    others get None.

    Raises ValueError where there is nothing to read or observe, and where the folder holds a
    reading of something else; OSError for files, for a second copy at work there and for a process
    that is gone.
    """
    if asked.keep != "stats" or asked.heads is not None or asked.out is not None:
        raise ValueError("of a corpus statistics are kept, and nothing else: no maps, no calls")
    folder, texts = Path(folder), Texts.of(Path(corpus))
    make_directory(folder)
    with RunWriter(folder):  # may a run be put there? Better asked now
        pass
    seen = glance(subject, subject.windows(TEXT)[0])
    with (
        ranks(subject.device) as mine,
        alone(folder / LOCK.format(mine.rank), BUSY),
        # In a job one Ctrl-C is many signals: the terminal's, and then torchrun's.
        heard_later(every=mine.world > 1) as pressed,
    ):
        identity = identity_of(subject, texts, asked, most, mine.world)
        if not mine.same(json.dumps(identity)):
            raise ValueError(
                f"rank {mine.rank} has another model, corpus or options than rank 0 (a function "
                "that draws weights must draw the same in each)"
            )
        before = kept.read(folder, mine.rank, identity)
        reading = _Reading(
            subject, texts, asked, folder, most, mine, pressed, identity, before or Progress(),
            (None if mine.rank else say) or (lambda _: None),
        )  # fmt: skip
        if before is not None:
            reading.say(f"going on after {reading.how_far()}")
        if show is not None:
            reading.said_at = math.inf
        reading.read(None if mine.rank else show)
        return _together(reading, seen)


def _together(reading: "_Reading", seen: Glance) -> Run | None:
    """Add up what all processes found, once they are done; rank 0 writes the run."""
    mine, folder, pressed = reading.mine, reading.folder, reading.pressed.is_set
    others, first = range(1, mine.world), range(1)
    run = None
    if mine.rank:
        mine.sign(DONE)
        if not mine.wait(READY, first, pressed):
            raise KeyboardInterrupt
        mine.gather(reading.progress.pack(reading.identity))
        mine.wait(WRITTEN, first, lambda: False)
    else:
        if not mine.wait(DONE, others, pressed):
            raise KeyboardInterrupt
        mine.sign(READY)
        found = reading.progress
        for rank, data in enumerate(mine.gather(b""), 1):
            found = found.merge(Progress.unpack(data, f"what rank {rank} sent"))
        run = _finished(reading, found, seen)
        run.save(folder)
        mine.sign(WRITTEN)
    (folder / kept.FILE.format(mine.rank)).unlink(missing_ok=True)
    with suppress(ConnectionError):  # the run is there, whatever becomes of the others
        if mine.rank:
            mine.sign(GONE)
        else:
            mine.wait(GONE, others, lambda: False, silence=10.0)
    return run


def _finished(reading: "_Reading", found: Progress, seen: Glance) -> Run:
    """The Run of all that was found, with a role for each head."""
    subject, texts = reading.subject, reading.texts
    notes = []
    if found.left_out:
        some = "; ".join(why for _, why in found.named)
        some += "; ..." if found.left_out > len(found.named) else ""
        notes = [f"{found.left_out:,} of its {texts.count:,} texts were left out: {some}"]
    if not found.windows:
        raise ValueError(f"there is nothing to read in {texts.path}: {notes[0]}")
    name = shown(texts.path.resolve().name)
    notes.insert(0, f"a corpus, {name}: {found.texts:,} texts, {found.tokens:,} tokens in "
                    f"{found.windows:,} windows")  # fmt: skip
    notes += [f"{where} was not observed: {why}" for where, why in found.refused.items()]
    for note in notes:
        reading.say(note)
    run = Run(
        subject.name, found.run.sites, found.run.n_calls, stats=found.run.stats,
        versions=versions(), notes=notes, checked=found.run.checked,
        read={"texts": found.texts, "windows": found.windows, "tokens": found.tokens},
    )  # fmt: skip
    better, source = beside(subject, reading.asked, seen, found.tokens)
    set_roles(run, found.found, better, source)
    return run


# Reading ------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Reading:
    """One process at work."""

    subject: Subject
    texts: Texts
    asked: Asked
    folder: Path
    most: int | None
    mine: Ranks
    pressed: threading.Event
    identity: dict[str, str]
    progress: Progress
    say: Say
    began: float = field(default_factory=time.monotonic)
    kept_at: float = field(default_factory=time.monotonic)
    said_at: float = field(default_factory=time.monotonic)
    pause: float = field(default_factory=lambda: KEEP_EVERY)
    tokens: int = 0  # since it was started

    def read(self, show: Show | None) -> None:
        """Read the texts that are left, and keep what was found.

        Raises KeyboardInterrupt where it was asked to stop: everything is kept then.
        """
        done, mine = self.progress, self.mine
        left = self.texts.after(done.place.number, done.place.offset, mine.rank, mine.world)
        asked, collector = self.asked, Collector(self.subject, found=done.found)
        watcher = observe(self.subject.model, layers=asked.layers, rows=asked.rows, each=collector)
        watcher.go_on_from(done.run, done.refused)
        done.run, done.refused = watcher.run, watcher.refused
        stopped = False
        with suppress(_NothingYet), watcher:
            for text in left if show is None else show(left, "reading", self._n_left()):
                stopped = self._stopped_in(text, watcher, collector)
                if stopped or (done.windows and not done.run.n_calls):
                    break
            if not done.windows:
                raise _NothingYet
        self._keep()
        if stopped:
            where = f"kept in {self.folder}; the same command goes on"
            self.say(f"stopped after {self.how_far()}; {where}")
            raise KeyboardInterrupt

    def _stopped_in(self, text: Text, watcher: Observer, collector: Collector) -> bool:
        """Read what is left of a text; whether it was asked to stop in it."""
        done, n, why = self.progress, 0, text.flaw()
        for n, window in enumerate(() if why else self._windows(text), 1):
            if n <= done.place.window:  # was read before
                continue
            # Which rows are sampled depends on the text, and not on who reads it after what.
            watcher.passes = (text.number << 20) + n
            collector.tokens = torch.tensor([window])
            self.subject.read(collector.tokens)
            _let_go(watcher.run)
            done.place.window = n
            done.windows += 1
            done.tokens += len(window)
            self.tokens += len(window)
            if not done.run.n_calls:
                return False
            if self._pressed():
                return True
        done.place = Place(text.number + 1, text.after)
        if why or not n:
            done.leave_out(text.number, f"{text.name} ({why or 'no token'})")
        else:
            done.texts += 1
        return self._pressed()

    def _pressed(self) -> bool:
        """Whether it is to stop. Everything read is counted now: keep it, and tell, in time."""
        now = time.monotonic()
        if now - self.kept_at >= self.pause:
            self._keep()
        if now - self.said_at >= SAY_EVERY:
            self.said_at = now
            rate = self.tokens / (now - self.began)
            self.say(f"{self.how_far()}, {rate:,.0f} tokens/s")
        try:
            self.mine.sign()
        except ConnectionError:
            self._keep()
            raise
        return self.pressed.is_set()

    def _keep(self) -> None:
        now = time.monotonic()
        if self.progress.run.n_calls:
            kept.keep(self.folder, self.mine.rank, self.progress.pack(self.identity))
        self.kept_at = time.monotonic()
        self.pause = max(KEEP_EVERY, KEEP_SHARE * (self.kept_at - now))

    def _windows(self, text: Text) -> Iterator[list[int]]:
        """The tokens of a text, in windows of the context; none where there are none."""
        subject, left = self.subject, self.most
        for piece in text.pieces():
            if left == 0:
                return
            found = subject.windows_if_any(piece, left)
            if left is not None:
                left -= min(left, sum(map(len, found)))
            yield from found

    def _n_left(self) -> int:
        share = -(-self.texts.count // self.mine.world)
        return max(0, share - self.progress.texts - self.progress.left_out)

    def how_far(self) -> str:
        done = self.progress
        whose = f" (of {self.mine.world} processes, this one)" if self.mine.world > 1 else ""
        read = f"{done.texts + done.left_out:,} of {self.texts.count:,} texts"
        return f"{read}, {done.tokens:,} tokens{whose}"


def _let_go(run: Run) -> None:
    """Keep of the calls of a window how they were verified: the statistics are all that is left."""
    assert isinstance(run.calls, list)
    for call in run.calls:
        count_check(run, call.module, call.check)
    run.calls.clear()
    run.tokens.clear()


# Who reads what -----------------------------------------------------------------------------------


def identity_of(
    subject: Subject, texts: Texts, asked: Asked, most: int | None, world: int
) -> dict[str, str]:
    """What a reading is of, so that it goes on with nothing else."""
    layers = None if asked.layers is None else sorted(map(str, asked.layers))
    options = (
        f"layers {layers}, rows {asked.rows}, probe {asked.probe}, tokens {most}, "
        f"device {subject.device.type}"
    )
    made_by = ", ".join(f"{name} {version}" for name, version in versions().items())
    return {
        "model": _digest(subject), "corpus": texts.digest, "options": options,
        "processes": str(world), "versions": made_by,
    }  # fmt: skip


def _digest(subject: Subject) -> str:
    """A digest of a model: names, shapes and some numbers of its tensors, and how it reads."""
    found = hashlib.sha256(f"{subject.context} {subject.windows(TEXT)}".encode())
    for name, x in (*subject.model.named_parameters(), *subject.model.named_buffers()):
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        some = x.detach().flatten()[:: max(1, x.numel() // SAMPLE)].cpu().double()
        found.update(some.numpy().tobytes())
    return found.hexdigest()
