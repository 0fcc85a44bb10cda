"""What is to be looked at: a model, by whatever it is named, and how a text becomes its tokens.

    nothing                    the model in the box
    a folder                   a TinyGPT, or a model of the transformers library
    package.module:factory     a function without arguments that returns a torch.nn.Module, or the
                               module and a tokenizer with encode(text) and decode(tokens)

Nothing is fetched, and no code that comes with a checkpoint is run.
"""

import importlib
import inspect
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.gpt import BOX, CONFIG, FORMAT, IN_THE_BOX, TinyGPT, models_in_the_box
from clearhead.run.words import delimiters_of, pieces_of

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
          "float64": torch.float64}  # fmt: skip
LONGEST = 1 << 20  # tokens: a tokenizer that knows no end says 1e30


@dataclass(frozen=True, eq=False)
class Subject:
    """A model to look at, in eval mode, and the tokenizer that goes with it, if there is one.

    context     the most tokens that it reads at once; None where it does not say
    vocab_size  None where it does not say
    tokenizer   encode(text) -> tokens, decode(tokens) -> text
    """

    model: nn.Module
    name: str
    tokenizer: Any = None
    context: int | None = None
    vocab_size: int | None = None

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @torch.no_grad()
    def read(self, tokens: Tensor) -> None:
        """Have the model read tokens (B, T), with as little besides as it allows."""
        self.model(tokens.to(self.device), **self._least(tokens))

    def try_reading(self, tokens: Tensor) -> None:
        """The same, for the first time. Raises ValueError for a model that takes something else."""
        try:
            self.read(tokens)
        except Exception as error:  # a model raises whatever it likes
            raise ValueError(
                f"{self.name} was called with token numbers (B, T) = {tuple(tokens.shape)}, and "
                f"its own forward raised {type(error).__name__}: {_first_line(error)}; a model "
                "that takes something else is looked at with clearhead.observe in Python"
            ) from error

    def _least(self, tokens: Tensor) -> dict[str, Any]:
        """Arguments that save work: no cache, only the last logits."""
        if isinstance(self.model, TinyGPT):
            return {}
        takes = inspect.signature(self.model.forward).parameters
        wanted: dict[str, Any] = {"use_cache": False, "logits_to_keep": 1}
        if getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            wanted["decoder_input_ids"] = tokens.to(self.device)
        return {name: value for name, value in wanted.items() if name in takes}

    def windows(self, text: str, most: int | None = None) -> list[list[int]]:
        """The tokens of a text, in windows of the context; at most `most` tokens of it.

        Special tokens that the model expects around a text stand around each window. Raises
        ValueError where there is no tokenizer, and for a text without a token.
        """
        if not (found := self.windows_if_any(text, most)):
            raise ValueError(
                f"the tokenizer of {self.name} makes no token of this text: give another text, or "
                "token numbers, --ids FILE"
            )
        return found

    def windows_if_any(self, text: str, most: int | None = None) -> list[list[int]]:
        """As windows; none of a text without a token."""
        if self.tokenizer is None:
            raise ValueError(
                f"{self.name} has no tokenizer: give token numbers, --ids FILE, instead of a text"
            )
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate is no text
        room = self.context or LONGEST
        around = self._around()
        tokens = self._plain(text)[: most if most is None else max(0, most - sum(map(len, around)))]
        size = max(1, room - sum(map(len, around)))
        return [
            [*around[0], *tokens[i : i + size], *around[1]] for i in range(0, len(tokens), size)
        ]

    def _plain(self, text: str) -> list[int]:
        if self._is_library:
            return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        return list(self.tokenizer.encode(text))

    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text, as the tokenizer puts them."""
        if not self._is_library:
            return [], []
        plain, whole = self._plain("a"), list(self.tokenizer("a")["input_ids"])
        at = next((n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), len(whole))
        return (whole[:at], whole[at + len(plain) :]) if at < len(whole) else ([], [])

    @property
    def _is_library(self) -> bool:
        return hasattr(self.tokenizer, "convert_ids_to_tokens")

    def pieces(self, tokens: Sequence[int]) -> dict[int, str]:
        """The text of each of these tokens, for labels."""
        return pieces_of(self.tokenizer, tokens)

    def delimiters(self, tokens: Tensor) -> Tensor | None:
        """Which of some tokens are punctuation, line ends or special, a bool of the same shape."""
        if self.tokenizer is None:
            return None
        special = set(getattr(self.tokenizer, "all_special_ids", ()))
        return delimiters_of(tokens, self.pieces(tokens.flatten().tolist()), special)


# Finding it ---------------------------------------------------------------------------------------


def find(name: str | None, device: str = "cpu", dtype: str | None = None) -> Subject:
    """The subject that is named so, in eval mode, on a device, in its own dtype unless given.

    Raises ValueError for what names no model, and OSError for files that cannot be read.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    folder = Path(BOX / IN_THE_BOX if name is None else name)
    if folder.is_dir():
        found = _in_folder(folder, name or IN_THE_BOX)
    elif name in models_in_the_box():
        found = _in_folder(BOX / name, name)
    elif name is not None and ":" in name:
        found = _made_by(name)
    else:
        raise ValueError(
            f"{name} is no folder and no package.module:factory (looked for in {os.getcwd()}); "
            f"without a name it is the model in the box ({', '.join(models_in_the_box())})"
        )
    found.model.eval()
    try:
        found.model.to(torch.device(device), DTYPES[dtype] if dtype else None)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {device!r}: {str(error).splitlines()[0]}") from error
    return found


def _in_folder(folder: Path, name: str) -> Subject:
    try:
        said = json.loads((folder / CONFIG).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG} is not JSON: {error}") from error
    except FileNotFoundError as error:
        raise ValueError(
            f"{folder} holds neither a model (config.json) nor a run (run.json)"
        ) from error
    if isinstance(said, dict) and said.get("format") == FORMAT:
        model = TinyGPT.load(folder)
        config = model.config
        return Subject(model, name, model.tokenizer, config.context, config.vocab_size)
    if isinstance(said, dict) and "model_type" in said:
        return _of_library(folder, name, said)
    raise ValueError(f"{folder / CONFIG} is the config of no model that is known here")


def _of_library(folder: Path, name: str, said: dict[str, Any]) -> Subject:
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ValueError(
            f"{name} is a model of the transformers library: pip install transformers"
        ) from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    classes = [c for c in said.get("architectures") or () if hasattr(transformers, str(c))]
    if not classes and said.get("auto_map"):
        raise ValueError(f"{name} comes with code of its own, and clearhead runs none")
    try:
        kind = getattr(transformers, classes[0]) if classes else transformers.AutoModel
        model = kind.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, dtype="auto"
        )
    except Exception as error:  # the library raises whatever it likes
        raise ValueError(f"{name} could not be loaded: {_first_line(error)}") from error
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise ValueError(
            f"{name} reads {model.main_input_name} and not tokens: look at it with "
            "clearhead.observe in Python"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
            tokenizer = None  # made up by the library, where the folder has no files of one
    except Exception:  # none, or one that needs what is not here: token numbers still do
        tokenizer = None
    config = model.config.get_text_config()
    sizes = (
        getattr(config, key, None)
        for key in ("max_position_embeddings", "n_positions", "max_sequence_length")
    )
    limits = [n for n in (*sizes, getattr(tokenizer, "model_max_length", None))
              if isinstance(n, int) and 0 < n < LONGEST]  # fmt: skip
    context = min(limits, default=None)
    shown = f"{type(model).__name__} {'/'.join(folder.resolve().parts[-2:])}"
    return Subject(model, shown, tokenizer, context, getattr(config, "vocab_size", None))


def _made_by(name: str) -> Subject:
    module, _, factory = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), factory)()
    except Exception as error:
        raise ValueError(f"{name}: {type(error).__name__}: {_first_line(error)}") from error
    model, tokenizer = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    return of_model(model, name, tokenizer)


def of_model(model: nn.Module, name: str, tokenizer: Any = None) -> Subject:
    """A model that is at hand, as it is: its tokenizer, context and vocabulary, where it has them.

    The vocabulary is that of its config or, without one, of its first embedding.
    """
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    embedding = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    vocab = getattr(config, "vocab_size", None if embedding is None else embedding.num_embeddings)
    context = getattr(config, "context", getattr(config, "max_position_embeddings", None))
    return Subject(model, name, tokenizer, context, vocab)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
