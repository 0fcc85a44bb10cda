"""The verbs that look: inspect, compare and plot. Arguments alone, as in verbs.py."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.files import check_place
from clearhead.verb import Mistake, Verb, directory, mistakes, reading_arguments, words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clearhead.run import Run
    from clearhead.run.looks import Looks
    from clearhead.subject import Subject
    from clearhead.views.terminal import Terminal


# inspect ------------------------------------------------------------------------------------------


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL_OR_RUN",
        help="a folder with a transformers model, a TinyGPT or a run; package.module:factory; "
        "nothing: the model in the box",
    )  # fmt: skip
    reading_arguments(parser).add_argument(
        "--corpus", metavar="PATH",
        help='any number of texts: a folder of *.txt, or JSONL with a "text" in each line; with '
        "--save. Stopped, the same command goes on; torchrun splits it over processes",
    )  # fmt: skip
    parser.add_argument(
        "--no-probe", dest="probe", action="store_false",
        help="name what heads do from this text alone",
    )  # fmt: skip
    parser.add_argument("--layers", nargs="+", type=int, metavar="N", help="only these")
    parser.add_argument("--heads", nargs="+", metavar="N.N", help="keep maps of these alone")
    parser.add_argument("--sort", metavar="COLUMN", help='by a column; "-" before it turns round')
    parser.add_argument("--top", type=int, default=8, metavar="N", help="heads to show (default 8)")
    parser.add_argument(
        "--from", dest="queries", metavar="WORD",
        help="with --to: which heads look from here (a word or several, in every window; or a "
        "position, 7 or 3:9, in the first) ...",
    )  # fmt: skip
    parser.add_argument("--to", dest="keys", metavar="WORD", help="... to there")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the numbers as JSON")
    shown.add_argument("--csv", action="store_true", help="print the heads as CSV")
    parser.add_argument("--save", type=directory, metavar="RUN", help="keep the run in a folder")
    parser.add_argument(
        "--overwrite", action="store_true", help="with --save: in place of the run that is there"
    )
    parser.add_argument("--keep", choices=["stats", "qk"], help="with --save: maps too (qk)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page, FILE.html")
    parser.add_argument("--plot", type=directory, metavar="DIR", help="write pictures")


def _inspect(arguments: argparse.Namespace) -> int:
    from clearhead import inspection
    from clearhead.views import heads
    from clearhead.views import looks as views
    from clearhead.views.terminal import Terminal

    terminal = Terminal(sys.stderr if arguments.json or arguments.csv else None)
    if (arguments.queries is None) != (arguments.keys is None):
        raise Mistake("--from and --to go together: which heads look from here to there")
    if arguments.keep == "qk" and arguments.save is None:
        raise Mistake("--keep qk keeps maps in a folder: say which, --save RUN")
    if arguments.queries is not None and arguments.sort is not None:
        raise Mistake("--sort is for the table of heads; with --from the largest mass comes first")
    _check_save(arguments)
    if arguments.top < 1 or (arguments.tokens is not None and arguments.tokens < 1):
        raise Mistake("--top and --tokens must be at least 1")
    if arguments.corpus is not None:
        _check_corpus(arguments)
    with mistakes():
        heads.in_order((), arguments.sort)  # is there such a column? Better asked now
        if arguments.report is not None:
            check_place(arguments.report.parent)
        if arguments.plot is not None:
            check_place(arguments.plot)
        run = _run_of(arguments, terminal)
        if run is None:  # rank 0 of the job speaks
            return 0
        looks = None
        if arguments.queries is None:
            shown = heads.table(run, top=arguments.top, sort=arguments.sort, width=terminal.width)
        else:
            looks = run.between(arguments.queries, arguments.keys)
            shown = views.table(run, looks, arguments.top, terminal.width)
    if arguments.model is None or not (Path(arguments.model) / "run.json").exists():
        given = (arguments.text, arguments.file, arguments.ids, arguments.corpus)
        if all(what is None for what in given):
            shown.append("The text is one of ours: --text gives yours.")
    if arguments.json:
        Terminal().line(inspection.as_json(run, looks))
    elif arguments.csv:
        text = heads.csv_text(run) if looks is None else views.csv_text(run, looks)
        Terminal().lines(text.splitlines())
    else:
        terminal.lines(shown)
    _write(run, arguments, terminal, looks)
    return 0


def _check_save(arguments: argparse.Namespace) -> None:
    """A run that is there is kept, whatever it took to make, unless somebody says otherwise."""
    from clearhead.run import load

    if arguments.save is None:
        if arguments.overwrite:
            raise Mistake("--overwrite is for --save RUN: it replaces the run that is there")
    elif not arguments.overwrite and (arguments.save / "run.json").exists():
        with mistakes():
            model = load(arguments.save).model
        raise Mistake(
            f"{arguments.save} holds a run of {model} already: --overwrite replaces it, another "
            "--save keeps both"
        )


def _check_corpus(arguments: argparse.Namespace) -> None:
    """Of a corpus there are statistics, in a folder."""
    if arguments.save is None:
        raise Mistake("--corpus keeps its progress and its run in a folder: say which, --save RUN")
    given = {"--keep qk": arguments.keep == "qk", "--heads": arguments.heads is not None,
             "--from and --to": arguments.queries is not None}  # fmt: skip
    if maps := [name for name, is_given in given.items() if is_given]:
        raise Mistake(f"{maps[0]}: of a corpus no maps are kept, only statistics")


def _survey(arguments: argparse.Namespace, terminal: "Terminal") -> "Run | None":
    """The run of a corpus; None in a process of a job that is not the first."""
    from clearhead import subject
    from clearhead.inspection import Asked
    from clearhead.survey import job, survey
    from clearhead.views.terminal import Terminal

    found = subject.find(arguments.model, job.own_device(arguments.device), arguments.dtype)
    asked = Asked(layers=arguments.layers, probe=arguments.probe)
    return survey(
        found, arguments.corpus, asked, arguments.save, arguments.tokens,
        show=terminal.progress if sys.stderr.isatty() else None, say=Terminal(sys.stderr).line,
    )  # fmt: skip


def _run_of(arguments: argparse.Namespace, terminal: "Terminal") -> "Run | None":
    """The run that is named, or one that is made now."""
    from clearhead import inspection, subject
    from clearhead.cells import readable
    from clearhead.run import load

    if arguments.model is not None and (Path(arguments.model) / "run.json").exists():
        names = ("text", "file", "ids", "corpus", "tokens", "dtype", "layers", "heads", "keep")
        given = [f"--{name}" for name in names if getattr(arguments, name)]
        if given:
            raise Mistake(f"{arguments.model} is a run: {', '.join(given)} cannot change it now")
        run = load(arguments.model)
        if arguments.save is not None:
            run.save(arguments.save)
        return run
    if arguments.corpus is not None:
        return _survey(arguments, terminal)
    found = subject.find(arguments.model, arguments.device, arguments.dtype)
    windows = _windows(arguments, found, words(arguments))
    n_tokens = sum(map(len, windows))
    seen = inspection.glance(found, windows[0])
    seen.check(arguments.layers, arguments.heads)
    wanted = arguments.report or arguments.plot or arguments.queries is not None
    n_bytes = seen.bytes_per_token * n_tokens
    keep = arguments.keep or "stats"
    if arguments.keep is None and wanted and n_bytes <= inspection.MOST_KEPT:
        keep = "qk"
    if arguments.queries is not None and keep != "qk":
        raise Mistake(
            f"--from and --to need q and k, which take {readable(n_bytes)} here: --keep qk "
            "--save RUN keeps them in a folder, --tokens N reads less"
        )
    if keep == "qk" and arguments.save is not None:
        terminal.line(f"keeping q and k of up to {sum(seen.heads)} heads over {n_tokens:,} tokens: "
                      f"{readable(n_bytes)} in {arguments.save}")  # fmt: skip
    asked = inspection.Asked(
        keep=keep, layers=arguments.layers, heads=arguments.heads, probe=arguments.probe,
        out=arguments.save,
    )  # fmt: skip
    return inspection.examine(found, windows, asked, seen, _steps(windows, terminal))


def _steps(windows: list[list[int]], terminal: "Terminal") -> "Iterable[list[int]] | None":
    """The windows one by one, with a bar, if there are several."""
    return terminal.progress(windows, "reading", len(windows)) if len(windows) > 1 else None


def _windows(
    arguments: argparse.Namespace, found: "Subject", text: str | None
) -> list[list[int]]:  # fmt: skip
    """What the model is to read: tokens, in windows of its context."""
    from clearhead import inspection

    if arguments.ids is not None:
        tokens = inspection.numbers(text or "", found.vocab_size)[: arguments.tokens]
        size = found.context or len(tokens)
        return [tokens[i : i + size] for i in range(0, len(tokens), size)]
    return found.windows(inspection.TEXT if text is None else text, arguments.tokens)


def _write(
    run: "Run", arguments: argparse.Namespace, terminal: "Terminal", looks: "Looks | None"
) -> None:
    """The folder, page and pictures that were asked for."""
    written = [] if arguments.save is None else [str(arguments.save)]
    if arguments.report is not None:
        run.report(arguments.report, looks)
        written.append(str(arguments.report))
    if arguments.plot is not None:
        written += _pictures(run, arguments.plot, terminal, looks)
    if written:
        terminal.lines(["", f"written: {', '.join(written)}"])


def _pictures(
    run: "Run", folder: Path, terminal: "Terminal", looks: "Looks | None" = None
) -> list[str]:
    from clearhead.files import make_directory, write_files
    from clearhead.views.grid import pictures

    make_directory(folder)
    with terminal.warnings_as_notes():
        made = pictures(run, looks)
    write_files(folder, made)
    return [f"{len(made)} pictures in {folder}"]


# compare ------------------------------------------------------------------------------------------


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN_OR_MODEL",
        help="two runs or more, in order; models read the same text first",
    )  # fmt: skip
    reading_arguments(parser)
    parser.add_argument("--metric", default="normalized_entropy", metavar="NAME",
                        help="of a row (default normalized_entropy)")  # fmt: skip
    parser.add_argument("--sort", default="effect", metavar="COLUMN", help="default effect")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="heads to show")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the numbers as JSON")
    shown.add_argument("--csv", action="store_true", help="print the heads as CSV")


def _compare(arguments: argparse.Namespace) -> int:
    from clearhead import comparing
    from clearhead.files import json_text
    from clearhead.views import comparison
    from clearhead.views.terminal import Terminal

    if len(arguments.runs) < 2:
        raise Mistake("two runs or more are compared; one was given")
    if arguments.top < 1:
        raise Mistake("--top must be at least 1")
    if arguments.tokens is not None and arguments.tokens < 1:
        raise Mistake("--tokens must be at least 1")
    given = [f"--{name}" for name in ("text", "file", "ids", "tokens", "dtype")
             if getattr(arguments, name)]  # fmt: skip
    if given and all((Path(place) / "run.json").exists() for place in arguments.runs):
        raise Mistake(f"all of them are runs: {', '.join(given)} cannot change them now")
    terminal = Terminal()
    with mistakes():
        names, text = comparing.short_names(arguments.runs), words(arguments)
        runs = [_run_or_model(place, arguments, text) for place in arguments.runs]
        found = comparing.compare(list(zip(names, runs, strict=True)), arguments.metric)
        lines = comparison.table(
            found, top=arguments.top, sort=arguments.sort, width=terminal.width
        )
    if arguments.json:
        lines = [json_text(comparison.record(found))]
    elif arguments.csv:
        lines = comparison.csv_text(found).splitlines()
    terminal.lines(lines)
    return 0


def _run_or_model(place: str, arguments: argparse.Namespace, text: str | None) -> "Run":
    from clearhead import inspection, subject
    from clearhead.run import load
    from clearhead.views.terminal import Terminal

    if (Path(place) / "run.json").exists():
        return load(place)
    found = subject.find(place, arguments.device, arguments.dtype)
    windows = _windows(arguments, found, text)
    steps = _steps(windows, Terminal(sys.stderr))
    return inspection.examine(found, windows, inspection.Asked(), progress=steps)


# plot ---------------------------------------------------------------------------------------------


def _plot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=directory, metavar="RUN", help="a run, or a training")
    parser.add_argument(
        "--output-dir", type=directory, metavar="DIR", help="for the pictures (default: RUN/plots)"
    )


def _plot(arguments: argparse.Namespace) -> int:
    from clearhead import training
    from clearhead.run import load
    from clearhead.views.terminal import Terminal

    terminal, folder = Terminal(), arguments.output_dir or arguments.run / "plots"
    with mistakes():
        if training.is_training(arguments.run):
            written = training.draw(arguments.run, folder)
        else:
            written = _pictures(load(arguments.run), folder, terminal)
    terminal.line(f"written: {', '.join(written)}")
    return 0


VERBS = (
    Verb("inspect", "Look", "say what each head of a model does, on your text",
         'clearhead inspect --text "the cat sat on the mat. the cat sat"',
         _inspect_arguments, _inspect),
    Verb("compare", "Look", "say which heads moved between runs or checkpoints, and which first",
         "clearhead compare tiny-en tiny-en --text 'to be or not to be'",
         _compare_arguments, _compare),
    Verb("plot", "Look", "draw the heads of a run, or the course of a training",
         "clearhead plot runs/a --output-dir pictures", _plot_arguments, _plot),
)  # fmt: skip
