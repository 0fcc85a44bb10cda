"""A Run: what the attention of a model did, to keep, to look at and to compare.

Everything that is computed ends in a Run, and everything that is shown begins with one: it needs
no model. A head is named by its layer and number everywhere, "3.5".

Letters: B batch, H query heads, T queries, S keys, L tokens of a sequence.
"""

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from clearhead.map import AttentionMap
from clearhead.run.calls import COLUMNS, Call, Check, HeadRecord, Heads, head_place
from clearhead.run.files import CALL, STATS, TOKENS, Stored, StoredCall, read_stats, read_tokens
from clearhead.run.format import RUN, check_of, read_json
from clearhead.run.joining import Joined, join
from clearhead.run.looks import Looks, Place, between
from clearhead.run.words import pieces_of
from clearhead.run.writer import RunWriter
from clearhead.stats import HeadStats

__all__ = ["COLUMNS", "Call", "Check", "HeadRecord", "Heads", "Run", "RunWriter", "load"]

_MEANS = (
    "entropy", "normalized_entropy", "max_prob", "first_key", "first_key_uniform", "previous",
    "self_mass", "distance", "sink_mass", "max_score",
)  # fmt: skip


@dataclass(eq=False)
class Run:
    """What was observed of a model.

    model     its name
    sites     (module, index) of each layer: the index-th call of that module in a forward pass
    n_calls   how many calls happened, kept or not
    calls     those that were kept, in the order in which they happened
    stats     HeadStats by layer
    tokens    by sequence, (B, L) int64, where known
    pieces    token number -> its text, where known (`label`)
    roles     head -> {"role": ..., "mass": ..., "uniform": ...}; clearhead.name_heads finds them
    versions  of what computed it, by name
    notes     what a reader should know
    keep      "stats" or "qk"
    checked   how calls that were not kept were verified, by name
    read      of a corpus, whose tokens are not kept: how many "texts", "windows" and "tokens"
    """

    model: str
    sites: list[tuple[str, int]]
    n_calls: int = 0
    calls: Sequence[Call] = ()
    stats: MutableMapping[int, HeadStats] = field(default_factory=dict)
    tokens: MutableMapping[int, Tensor] = field(default_factory=dict)
    pieces: dict[int, str] = field(default_factory=dict)
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    keep: str = "stats"
    checked: list[tuple[str, Check]] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        kept = f"{len(self.calls)} of {self.n_calls} calls kept"
        return f"Run({self.model!r}, {len(self.sites)} layers, {kept}, keep={self.keep!r})"

    # The table of heads ---------------------------------------------------------------------------

    def heads(
        self, sort: str | None = None, layers: Iterable[int] | None = None, reverse: bool = False
    ) -> Heads:
        """A record a head, layer by layer or sorted by a column, smallest first unless `reverse`.

        Raises ValueError for a column or a layer that is none.
        """
        wanted = sorted(self.stats) if layers is None else list(layers)
        if strange := [layer for layer in wanted if layer not in self.stats]:
            known = ", ".join(map(str, sorted(self.stats))) or "none"
            raise ValueError(f"there are no statistics of layer {strange[0]}; there are of {known}")
        found = Heads()
        for layer in wanted:
            module, index = self.sites[layer]
            for h, means in enumerate(self.stats[layer].summary()):
                head = f"{layer}.{h}"
                role = self.roles.get(head, {})
                record: dict[str, Any] = {key: means[key] for key in ("rows", *_MEANS)}
                record |= {"role": role.get("role"), "role_mass": role.get("mass")}
                record |= {"role_uniform": role.get("uniform")}
                record |= {"role_source": role.get("source"), "role_text": role.get("text_mass")}
                found.append(HeadRecord(head, module, layer, index, **record))
        return found if sort is None else found.sorted(sort, reverse)

    # Maps -----------------------------------------------------------------------------------------

    def map(
        self, name: str, head: int | None = None, call: int | None = None, sequence: int = 0
    ) -> AttentionMap:
        """The map of a head, "3.5", over a whole sequence: (B, 1, T, S).

        The rows of all its calls are put together, those of the steps of a generation, say. Or, by
        the name of a module: of all its heads or of `head`, over the sequence or of its `call`
        (counted over the run) alone. Where rows were sampled, the map has those; `positions` says
        which they are. q and k are read when a weight is looked at.

        Raises ValueError for what there is no map of, and where calls do not fit together.
        """
        return self._joined(name, head, call, sequence).map

    def positions(
        self, name: str, head: int | None = None, call: int | None = None, sequence: int = 0
    ) -> Tensor:
        """Where the rows of `map` stand among the queries of the sequence, (T,)."""
        return self._joined(name, head, call, sequence).positions

    def _joined(self, name: str, head: int | None, call: int | None, sequence: int) -> Joined:
        if not isinstance(name, str):
            raise ValueError(f'heads are named "layer.head", such as run.map("1.3"); got {name!r}')
        modules = {module for module, _ in self.sites}
        if name not in modules and head is None and call is None:
            layer, head = head_place(name)
            if layer >= len(self.sites):
                raise ValueError(f"there is no layer {layer}; there are {len(self.sites)}")
            return self._of_layer(layer, head, sequence)
        if name not in modules:
            known = ", ".join(sorted(modules)[:4]) + (", ..." if len(modules) > 4 else "")
            raise ValueError(f"no module {name!r} made a call; there are {known or 'none'}")
        if call is not None:
            mine = [c for c in self.calls if c.module == name]
            if not 0 <= call < len(mine):
                raise ValueError(f"{name} has {len(mine)} calls kept; there is no call {call}")
            return mine[call].joined(head)
        layers = [n for n, (module, _) in enumerate(self.sites) if module == name]
        if len(layers) > 1:
            raise ValueError(
                f"{name} is called {len(layers)} times a pass, as the layers {layers[0]} to "
                f"{layers[-1]}: name a head, such as {layers[0]}.0, or a call"
            )
        return self._of_layer(layers[0], head, sequence)

    def _of_layer(self, layer: int, head: int | None, sequence: int) -> Joined:
        mine = [c for c in self.calls if c.layer == layer and c.sequence == sequence]
        if not mine:
            module, _ = self.sites[layer]
            why = "keeps q and k" if self.keep != "qk" else "there are other sequences or layers"
            raise ValueError(
                f"no call of layer {layer} ({module}) in sequence {sequence} was kept; "
                f'observe(keep="qk"): {why}'
            )
        return join([c.part(head) for c in mine])

    def between(
        self, queries: Place, keys: Place, sequence: int | None = None, batch: int | None = None
    ) -> Looks:
        """Which heads look from here to there: (head, mass, uniform share), the largest first.

        A place is a position, 7, a span of them, (3, 9), a slice or "3:9", or a word or several,
        "cat", which is every place where they stand. Positions are those of the sequence, 0 unless
        given; two words are looked for in all sequences (the windows of a long text are one each),
        and counted where both are. `batch` is one text of the batch, all of them by default.

        mass is what the rows of the queries lay on the keys, exactly, its mean over the rows that
        are real and see anything; the share is what uniform attention over the visible keys would
        lay there, over the same rows. Heads without such a row are left out, and so is
        cross-attention: its keys are elsewhere. `.places` of the result says where it was found.

        Raises ValueError where q and k were not kept, for a span that is outside, and for words
        that stand in no sequence together or of which the run does not know the text (`label`).
        """
        return between(self, queries, keys, sequence, batch)

    def label(self, tokenizer: Any) -> None:
        """Take the text of its tokens from a tokenizer: decode(tokens) -> text, or more.

        For labels in tables and pictures, and for words in `between`. What is known stays. Raises
        TypeError for what is no tokenizer.
        """
        if not callable(getattr(tokenizer, "decode", None)):
            raise TypeError(
                f"a tokenizer has decode(tokens) -> text; got a {type(tokenizer).__name__}"
            )
        numbers = {n for ids in self.tokens.values() for n in ids.flatten().tolist()}
        self.pieces = pieces_of(tokenizer, numbers - self.pieces.keys()) | self.pieces

    # How it was verified --------------------------------------------------------------------------

    @property
    def checks(self) -> list[tuple[Call | str, Check]]:
        """What was verified and how closely: each call, or the name of what was not kept."""
        return [*((call, call.check) for call in self.calls), *self.checked]

    def checked_line(self) -> str:
        """One line: how many calls were replayed, the worst difference, what was not verifiable."""
        checks = [check for _, check in self.checks]
        done = [check for check in checks if check.why is None]
        parts = []
        if done:
            n = sum(check.calls for check in done)
            worst = max(done, key=lambda check: check.worst)
            parts.append(
                f"{n} call{'s' * (n != 1)} replayed, worst output difference {worst.worst:.1g} "
                f"(allowed {worst.allowed:.1g})"
            )
            if off := [check for check in done if not check.ok]:
                parts.append(f"{sum(check.calls for check in off)} DISAGREE")
        reasons: dict[str, int] = {}
        for check in checks:
            if check.why is not None:
                reasons[check.why] = reasons.get(check.why, 0) + check.calls
        parts += [f"{n} not verifiable ({why})" for why, n in reasons.items()]
        return "; ".join(parts) or "nothing was verified"

    # On the disk ----------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Write it into a folder, as docs/run-format.md says, in place of a run that was there.

        Killed at any moment, the folder holds that run, or none, or this one. Saved into the folder
        that it was loaded from, it reads from the new files. Raises ValueError where the folder
        holds a run.json of something else, OSError.
        """
        with RunWriter(folder) as writer:
            calls = [writer.add(call) for call in self.calls]
            writer.finish(self)
        if any(
            isinstance(c, StoredCall) and c.folder == Path(folder).resolve() for c in self.calls
        ):
            self.calls = calls

    def report(self, path: str | Path, looks: Looks | None = None) -> None:
        """Write one self-contained HTML page; with `looks`, of `between`, shown first.

        Raises OSError.
        """
        from clearhead.views.report import write_report

        write_report(self, path, looks)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page to walk through, or the table of heads where it is large.

        Never raises: a notebook would show that in place of the run.
        """
        from clearhead.viewer.offline import notebook_html

        return notebook_html(self)


def load(folder: str | Path) -> Run:
    """The Run that was saved in a folder. Only its run.json is read; the rest when looked at.

    Raises OSError for what is not there or cannot be read, ValueError, naming the file, for what is
    no run, is damaged or comes from a newer clearhead.
    """
    folder = Path(folder)
    if not (folder / RUN).exists():
        why = f"there is no {RUN} in it" if folder.is_dir() else "there is no such folder"
        raise (ValueError if folder.is_dir() else FileNotFoundError)(f"{folder} is no run: {why}")
    said = read_json(folder / RUN)
    data = folder / said["data"]
    sites = [(module, index) for module, index in said["sites"]]
    stats, tokens = said["stats"], said["tokens"]
    return Run(
        said["model"], sites, said["n_calls"],
        [
            StoredCall.of(data / CALL.format(n), call, sites[call["layer"]])
            for n, call in enumerate(said["calls"])
        ],
        Stored([int(layer) for layer in stats["of"]], partial(read_stats, data / STATS, stats)),
        Stored([int(name) for name in tokens["of"]], partial(read_tokens, data / TOKENS, tokens)),
        {int(token): text for token, text in said["pieces"].items()},
        said["roles"], said["versions"], said["notes"], said["keep"],
        [(name, check_of(check)) for name, check in said["checked"]], said.get("read", {}),
    )  # fmt: skip
