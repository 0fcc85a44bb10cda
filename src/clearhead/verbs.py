"""The verbs of the command line that learn and check, and the list of all.

Only arguments are handled here; each verb imports what it needs when it runs, so that help is
quick and `clearhead doctor` works where torch does not.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from clearhead.checking import CHECK
from clearhead.looking import VERBS as LOOK
from clearhead.reporting import REPORT
from clearhead.verb import (
    LONGEST_CORPUS,
    Mistake,
    Verb,
    directory,
    mistakes,
    read_file,
    read_text,
)
from clearhead.viewing import VIEW

# demo -----------------------------------------------------------------------------------------


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--tiny", action="store_true", help="d_model 32, 4 heads (the default)")
    size.add_argument("--full", action="store_true", help="d_model 64, 8 heads")
    size.add_argument(
        "--trained", action="store_true",
        help="instead, what training changed: the heads of the model in the box, before and after",
    )  # fmt: skip
    parser.add_argument("--d-model", type=int, metavar="N", help="numbers in an embedding")
    parser.add_argument("--n-heads", type=int, metavar="N", help="heads; must divide d_model")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default 0)")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", metavar="TEXT", help="your own words")
    text.add_argument(
        "--file", metavar="PATH", help="the same from a UTF-8 file (- to read a pipe)"
    )
    parser.add_argument(
        "--output-dir", type=directory, default=Path("outputs"), metavar="DIR",
        help="where the pictures and the numbers go (default: outputs)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the numbers, not the text")


def _demo(arguments: argparse.Namespace) -> int:
    text = read_text(arguments)
    from clearhead import demo
    from clearhead.build import Settings, check
    from clearhead.views.terminal import Terminal

    if arguments.trained:
        return _demo_trained(arguments, text)
    d_model, n_heads = (64, 8) if arguments.full else (32, 4)
    settings = Settings(
        tokens=(demo.TOY_SENTENCE if text is None else text).split(),
        d_model=d_model if arguments.d_model is None else arguments.d_model,
        n_heads=n_heads if arguments.n_heads is None else arguments.n_heads,
        seed=arguments.seed,
        toy=text is None,
    )
    with mistakes():
        check(settings)
    demo.run(settings, arguments.output_dir, Terminal(), as_json=arguments.json)
    return 0


def _demo_trained(arguments: argparse.Namespace, text: str | None) -> int:
    from clearhead import learned
    from clearhead.views.terminal import Terminal

    if arguments.d_model is not None or arguments.n_heads is not None:
        raise Mistake("the sizes of --trained are fixed: leave out --d-model and --n-heads")
    with mistakes():
        change = learned.compare(text, arguments.seed)
    learned.run(change, arguments.output_dir, Terminal(), as_json=arguments.json)
    return 0


# scaling --------------------------------------------------------------------------------------


def _scaling_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--d-head", type=int, nargs="+", metavar="N", help="head sizes (default 16 64 256 1024)"
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="queries, and keys (default 1024)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default 0)")
    parser.add_argument(
        "--output-dir",
        type=directory,
        metavar="DIR",
        help="also write scaling.png and .json there",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _scaling(arguments: argparse.Namespace) -> int:
    from clearhead import scaling
    from clearhead.views.terminal import Terminal

    sizes = arguments.d_head or scaling.HEAD_SIZES
    n_tokens = scaling.N_TOKENS if arguments.tokens is None else arguments.tokens
    with mistakes():
        scaling.measure_scaling(sizes, n_tokens, arguments.seed)
    scaling.run(sizes, n_tokens, arguments.seed, arguments.output_dir, Terminal(), arguments.json)
    return 0


# train ----------------------------------------------------------------------------------------


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", metavar="FILE", help="a UTF-8 text to learn from")
    source.add_argument(
        "--recipe", choices=["induction"],
        help="no text: random tokens that repeat, and an induction head forms in minutes",
    )  # fmt: skip
    parser.add_argument(
        "--output-dir", "--out", type=directory, default=Path("trained"), metavar="DIR",
        help="for the model, checkpoint, metrics and picture (default: trained)",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="go on with what lies in --output-dir"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what it would take, and stop")
    parser.add_argument("--steps", type=int, metavar="N", help="default 2000")
    for name, kind, what in (
        ("--batch", int, "rows in a step"), ("--accumulate", int, "batches in a step"),
        ("--context", int, "tokens in a row"), ("--vocab-size", int, "tokens of the vocabulary"),
        ("--n-layers", int, "layers"), ("--d-model", int, "numbers in an embedding"),
        ("--n-heads", int, "heads of a layer"), ("--rotary-base", float, "of its angles"),
        ("--learning-rate", float, "at its highest"),
        ("--warmup", int, "steps up to it"), ("--dropout", float, "probability"),
        ("--repeats", float, "share of rows that are random tokens that repeat"),
        ("--last-repeats", float, "the same at the end, in a straight line from there"),
        ("--longest-block", int, "tokens after which they repeat, at most"),
        ("--held", float, "share of the text that is held back to measure with"),
        ("--seed", int, "random seed"),
    ):  # fmt: skip
        parser.add_argument(name, type=kind, metavar="N", help=what)


def _train(arguments: argparse.Namespace) -> int:
    from clearhead import training
    from clearhead.recipe import INDUCTION, Settings
    from clearhead.views.terminal import Terminal

    if not (arguments.text or arguments.recipe or arguments.resume):
        raise Mistake("say what to learn from: --text FILE, or --recipe induction")
    source = arguments.text
    if arguments.resume and source is None:
        with mistakes():
            source = training.source_of(arguments.output_dir)
        if source == "-":
            raise Mistake("the text came from standard input: give it again, --text -")
    text = None if source is None else read_file(source, LONGEST_CORPUS)
    if source not in (None, "-"):
        source = str(Path(source).resolve())
    base = INDUCTION if arguments.recipe else Settings()
    given = {name: getattr(arguments, name) for name in vars(base)}
    chosen = {name: value for name, value in given.items() if value is not None}
    if arguments.resume and chosen:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise Mistake(
            f"{names} cannot change on the way: --resume takes --output-dir and --text alone"
        )
    with mistakes():
        begun = training.prepare(
            arguments.output_dir, text, source, replace(base, **chosen), resume=arguments.resume
        )  # fmt: skip
    try:
        if arguments.dry_run:
            training.plan(begun, Terminal())
        else:
            training.train(begun, arguments.output_dir, Terminal())
    except ArithmeticError as error:  # a learning rate that was too high
        raise Mistake(str(error)) from error
    return 0


# bench ----------------------------------------------------------------------------------------


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[4096], metavar="N",
        help="lengths, one after the other (default 4096)",
    )  # fmt: skip
    parser.add_argument("--heads", type=int, default=8, metavar="N", help="heads (default 8)")
    parser.add_argument(
        "--d-head", type=int, default=64, metavar="N", help="head size (default 64)"
    )
    parser.add_argument(
        "--dtype", default="float32", metavar="TYPE",
        help="float32 (the default), bfloat16, float16 or float64",
    )  # fmt: skip
    parser.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=True,
        help="queries see no later keys (the default)",
    )  # fmt: skip
    parser.add_argument("--backward", action="store_true", help="forward + backward as well")
    parser.add_argument(
        "--flex", action=argparse.BooleanOptionalAction, default=True,
        help="compile FlexAttention too, where there is a C++ compiler (the default)",
    )  # fmt: skip
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PART",
        help="SDPA, and those alone whose names have one of these parts, such as 'native' "
        "or 'all diagnostics'",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=9, metavar="N", help="rounds (default 9)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: torch's own)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default) or cuda")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default 0)")
    parser.add_argument(
        "--output-dir", type=directory, default=Path("outputs"), metavar="DIR",
        help="for bench.json and, of two lengths or more, bench.png (default: outputs)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _bench(arguments: argparse.Namespace) -> int:
    from clearhead import bench
    from clearhead.contenders import Settings, check
    from clearhead.views.terminal import Terminal

    options = dict(vars(arguments))
    output_dir, as_json = options.pop("output_dir"), options.pop("json")
    settings = Settings(
        **options | {"tokens": tuple(arguments.tokens), "only": tuple(arguments.only)}
    )
    with mistakes():
        check(settings)
    bench.run(settings, output_dir, Terminal(), as_json)
    return 0


# doctor ---------------------------------------------------------------------------------------


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _doctor(arguments: argparse.Namespace) -> int:
    from clearhead import doctor
    from clearhead.views.terminal import Terminal

    return doctor.run(Terminal(), as_json=arguments.json)


VERBS = (
    Verb("demo", "Learn", "build attention from first principles, with numbers and pictures",
         "clearhead demo --text 'to be or not to be' --n-heads 2", _demo_arguments, _demo),
    Verb("scaling", "Learn", "measure why scores are divided by sqrt(d_head)",
         "clearhead scaling --d-head 16 64 --tokens 512", _scaling_arguments, _scaling),
    Verb("train", "Learn", "train a small model and watch its heads form",
         "clearhead train --recipe induction --steps 30 --output-dir trained",
         _train_arguments, _train),
    *LOOK,
    VIEW,
    REPORT,
    CHECK,
    Verb("bench", "Check", "time exact attention with every diagnostic beside its rivals",
         "clearhead bench --tokens 512 1024 --heads 2 --backward", _bench_arguments, _bench),
    Verb("doctor", "Check", "say what is installed, what is missing and how to get it",
         "clearhead doctor", _doctor_arguments, _doctor),
)  # fmt: skip
