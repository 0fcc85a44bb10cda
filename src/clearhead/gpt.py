"""TinyGPT: a small decoder of our own attention modules, to train, to look at and to read.

    tokens -> embedding -> n_layers blocks -> norm -> scores of every next token
    a block: x = x + attention(norm(x)),  x = x + mlp(norm(x))

In the spirit of Karpathy's nanoGPT, read from top to bottom, with what has become usual since:
rotary positions, RMS norm, no biases. The embedding is also the last projection.

Letters: B batch, T tokens, V vocabulary, H heads.
"""

import errno
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clearhead.cache import KVCache
from clearhead.config import AttentionConfig, Rotary
from clearhead.engine.inputs import DTYPES
from clearhead.files import json_text, make_directory, write_files
from clearhead.nn import AttentionOutput, MultiHeadAttention
from clearhead.rule import shape_of
from clearhead.sampling import How, check_sampling, pick
from clearhead.tokens import Tokenizer

FORMAT = "clearhead TinyGPT"
VERSION = 1
BOX = Path(__file__).parent / "models"  # what comes with clearhead,
IN_THE_BOX = "tiny-en"  # and what of it is taken where nobody says
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a TinyGPT. d_ff is 4 d_model unless given, n_kv_heads is n_heads."""

    vocab_size: int
    context: int = 256
    n_layers: int = 4
    d_model: int = 192
    n_heads: int = 6
    n_kv_heads: int | None = None
    d_ff: int | None = None
    rotary_base: float = 10000.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "context", "n_layers", "d_model", "n_heads")
        for name in (*sizes, "n_kv_heads", "d_ff"):
            value = getattr(self, name)
            if value is None and name not in sizes:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{name} must be a whole number; got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        for name in ("rotary_base", "dropout"):
            if not isinstance(getattr(self, name), int | float):
                raise ValueError(f"{name} must be a number; got {getattr(self, name)!r}")
        if not 0 < self.rotary_base < math.inf:
            raise ValueError(f"rotary_base must be above 0 and finite; got {self.rotary_base}")


@dataclass(frozen=True, eq=False)
class GPTOutput:
    """Logits (B, T, V), and what each layer's attention returned, where it was asked for."""

    logits: Tensor
    layers: tuple[AttentionOutput, ...] = ()


class Block(nn.Module):
    """Attention, then an MLP; each reads a norm of the stream and adds to the stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        d, wide = config.d_model, config.d_ff or 4 * config.d_model
        how = AttentionConfig(
            n_kv_heads=config.n_kv_heads, causal=True, rotary=Rotary(config.rotary_base),
            dropout=config.dropout,
        )  # fmt: skip
        self.attention_norm = nn.RMSNorm(d, eps=1e-6)
        self.attention = MultiHeadAttention(d, config.n_heads, how)
        self.mlp_norm = nn.RMSNorm(d, eps=1e-6)
        self.up = nn.Linear(d, wide, bias=False)
        self.down = nn.Linear(wide, d, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, cache: KVCache | None = None, need: str = "none"
    ) -> tuple[Tensor, AttentionOutput]:
        seen = self.attention(self.attention_norm(x), cache=cache, need=need)
        x = x + self.drop(seen.out)  # (B, T, d_model)
        hidden = F.gelu(self.up(self.mlp_norm(x)))  # (B, T, d_ff)
        return x + self.drop(self.down(hidden)), seen


class TinyGPT(nn.Module):
    """A causal language model in one page. `tokenizer` travels with it, where there is one."""

    def __init__(self, config: GPTConfig, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        if tokenizer is not None and tokenizer.vocab_size != config.vocab_size:
            raise ValueError(
                f"the tokenizer knows {tokenizer.vocab_size} tokens and the config says "
                f"{config.vocab_size}"
            )
        self.config, self.tokenizer = config, tokenizer
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layers)])
        self.norm = nn.RMSNorm(config.d_model, eps=1e-6)
        # GPT-2's 0.02 is for a d_model of 768. In a narrower model such weights would leave the
        # scores of attention near 0, and heads form later.
        std = 0.55 / math.sqrt(config.d_model)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:  # what adds to the stream starts smaller, the deeper it is
                adds = name.endswith(("o_proj.weight", "down.weight"))
                nn.init.normal_(weight, std=std / math.sqrt(2 * config.n_layers) if adds else std)

    @property
    def n_parameters(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def forward(
        self, tokens: Tensor, caches: list[KVCache] | None = None, need: str = "none"
    ) -> GPTOutput:
        """Scores of every next token: (B, T) or (T,) whole numbers -> logits (B, T, V) or (T, V).

        `caches`, one a layer, hold what earlier calls have seen; `need` is that of
        MultiHeadAttention. Raises ValueError for numbers that are no tokens, and for too many.
        """
        _check_tensor(tokens)
        flat = tokens.ndim == 1
        tokens = tokens[None] if flat else tokens
        self._check(tokens, 0 if caches is None else caches[0].length)
        x = self.embedding(tokens.long())  # (B, T, d_model)
        layers = []
        for n, block in enumerate(self.blocks):
            x, seen = block(x, None if caches is None else caches[n], need)
            layers.append(seen)
        logits = F.linear(self.norm(x), self.embedding.weight)  # (B, T, V)
        return GPTOutput(logits[0] if flat else logits, () if need == "none" else tuple(layers))

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy in nats of every token after the first, given those before it."""
        logits = self(tokens[:, :-1]).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def _check(self, tokens: Tensor, before: int) -> None:
        V, context = self.config.vocab_size, self.config.context
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise ValueError(
                f"tokens must be whole numbers, (B, T) or (T,); got {tokens.dtype} "
                f"{shape_of(tokens)}"
            )
        if before + tokens.shape[1] > context:
            raise ValueError(
                f"{before + tokens.shape[1]} tokens are more than the context of {context}"
            )
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < V:
            raise ValueError(
                f"tokens must be from 0 to {V - 1}; got {int(tokens.min())} to {int(tokens.max())}"
            )

    @torch.no_grad()
    def generate(
        self,
        prompt: Tensor,
        n_new: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        slide: bool = False,
    ) -> Tensor:
        """Write on: (B, T) or (T,) tokens -> the same and up to n_new more.

        temperature  divides the scores; 0 takes the likeliest token each time (greedy)
        top_k        only the k likeliest tokens; top_p: only the likeliest that together reach p
        seed         for random numbers of its own; without one, torch's global ones
        slide        at the end of the context, go on from its second half; else stop there
        """
        _check_tensor(prompt)
        flat = prompt.ndim == 1
        tokens = prompt[None] if flat else prompt
        check_sampling(tokens, n_new, temperature, top_k, top_p)
        context = self.config.context
        if tokens.shape[1] > context and not slide:
            raise ValueError(
                f"the prompt has {tokens.shape[1]} tokens, the context is {context}: shorten it, "
                "or slide=True to go on from its end"
            )
        stream = None if seed is None else torch.Generator(tokens.device).manual_seed(seed)
        training = self.training
        try:
            return self.eval()._write(tokens, n_new, slide, (temperature, top_k, top_p, stream))[
                0 if flat else slice(None)
            ]
        finally:
            self.train(training)

    def _write(self, tokens: Tensor, n_new: int, slide: bool, how: How) -> Tensor:
        context = self.config.context
        caches: list[KVCache] = []
        fed = tokens[:, -context:]
        for _ in range(n_new):
            if caches and caches[0].length == context:
                if not slide:
                    break
                caches, fed = [], tokens[:, -max(1, context // 2) :]
            caches = caches or [KVCache() for _ in self.blocks]
            logits = self(fed, caches).logits[:, -1]  # (B, V)
            fed = pick(logits.float(), *how)
            tokens = torch.cat([tokens, fed], dim=1)
        return tokens

    # On the disk ----------------------------------------------------------------------------------

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write config.json, model.safetensors and tokenizer.json, all of them or none.

        `dtype` is what the weights are stored as; as they are, unless given. Raises OSError.
        """
        make_directory(Path(folder))
        write_files(Path(folder), self.as_files(dtype))

    def as_files(self, dtype: torch.dtype | None = None) -> dict[str, bytes]:
        """What `save` writes, by name."""
        from safetensors.torch import save

        said = {"format": FORMAT, "version": VERSION, **asdict(self.config)}
        weights = {
            name: weight.detach().to("cpu", dtype or weight.dtype).contiguous()
            for name, weight in self.state_dict().items()
        }
        made = {CONFIG: (json_text(said) + "\n").encode(), WEIGHTS: save(weights)}
        if self.tokenizer is not None:
            made[TOKENIZER] = self.tokenizer.to_json().encode()
        return made

    @classmethod
    def load(cls, folder: str | Path) -> "TinyGPT":
        """The model that `save` wrote, in float32 and in eval mode; "tiny-en" is one in the box.

        A folder of that name comes first. Raises OSError for a file that is not there, ValueError
        for one that is no such model.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load

        folder = Path(folder)
        if not folder.exists():
            if str(folder) not in (known := models_in_the_box()):
                what = f"there is no such folder, nor such a model in the box ({', '.join(known)})"
                raise FileNotFoundError(errno.ENOENT, what, str(folder))
            folder = BOX / folder
        config = _read_config(folder / CONFIG)
        tokenizer = None
        if (folder / TOKENIZER).exists():
            try:
                tokenizer = Tokenizer.from_json((folder / TOKENIZER).read_text("utf-8"))
            except ValueError as error:
                raise ValueError(f"{folder / TOKENIZER}: {error}") from error
        try:
            weights = load((folder / WEIGHTS).read_bytes())
        except SafetensorError as error:
            raise ValueError(f"{folder / WEIGHTS} is no whole safetensors file: {error}") from error
        held = sum(weight.numel() for weight in weights.values())
        wide = max(config.d_model, config.d_ff or 0)
        if config.n_layers * config.d_model * wide > 100 * (held + 1):  # before it is built
            raise ValueError(f"{folder / WEIGHTS} has {held:,} numbers, far too few for its config")
        model = cls(config, tokenizer)
        _check_weights(folder / WEIGHTS, weights, model.state_dict())
        model.load_state_dict({name: weight.float() for name, weight in weights.items()})
        return model.eval()


def models_in_the_box() -> list[str]:
    """The names of the models that come with clearhead."""
    return sorted(place.name for place in BOX.glob("*/"))


def _check_tensor(tokens: object) -> None:
    if not isinstance(tokens, Tensor):
        raise TypeError(
            f"tokens must be a tensor of whole numbers; got {type(tokens).__name__}. Of a text it "
            "is torch.tensor(model.tokenizer.encode(text))"
        )


def _read_config(path: Path) -> GPTConfig:
    try:
        said = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(said, dict) or said.pop("format", None) != FORMAT:
        raise ValueError(f"{path} is not the config of a {FORMAT}")
    if (version := said.pop("version", None)) != VERSION:
        raise ValueError(f"{path} is of version {version}; this clearhead reads {VERSION}")
    known = {field.name for field in fields(GPTConfig)}
    if unknown := sorted(set(said) - known):
        raise ValueError(f"{path} says what nobody here knows: {', '.join(unknown)}")
    try:
        return GPTConfig(**said)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_weights(path: Path, weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    wrong = [f"{name} is missing" for name in sorted(set(own) - set(weights))]
    wrong += [f"{name} holds no floats" for name, x in weights.items() if x.dtype not in DTYPES]
    wrong += [f"{name} is not finite" for name, x in weights.items() if not x.isfinite().all()]
    wrong += [f"{name} is unknown" for name in sorted(set(weights) - set(own))]
    wrong += [
        f"{name} is {shape_of(weights[name])}, not {shape_of(own[name])}"
        for name in sorted(set(own) & set(weights))
        if weights[name].shape != own[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(f"{path} does not fit its config: {'; '.join(wrong[:3])}{more}")
