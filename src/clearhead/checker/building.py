"""What a class is given, so that somebody's module can be built: by the names of its parameters."""

from collections.abc import Mapping
from typing import Any

from clearhead.checker.about import About
from clearhead.checker.calls import Stub
from clearhead.checker.signature import plain, role_of
from clearhead.checker.told import Told

M, H, G, LONGEST, DROPOUT, WINDOW = 24, 4, 2, 64, 0.3, 3
# Names beside those of arguments of attention, in classes and in configurations.
SIZES: Mapping[str, Any] = {
    "blocksize": LONGEST, "maxseqlen": LONGEST, "maxlen": LONGEST, "contextlength": LONGEST,
    "maxpositionembeddings": LONGEST, "npositions": LONGEST, "nctx": LONGEST, "seqlen": LONGEST,
    "context": LONGEST, "ctxlen": LONGEST, "maxseqlength": LONGEST, "contextsize": LONGEST,
    "contextwindow": LONGEST, "maxlength": LONGEST, "nmax": LONGEST, "tmax": LONGEST,
    "maxt": LONGEST, "maxcontext": LONGEST, "maxtokens": LONGEST,
    "vocabsize": 64, "nlayers": 2, "nlayer": 2, "layeridx": 0, "numhiddenlayers": 2,
    "qkvbias": False, "bias": False, "attentionbias": False,
}  # fmt: skip
CONFIG = [
    "d_model",
    "n_embd",
    "hidden_size",
    "dim",
    "embed_dim",
    "n_heads",
    "n_head",
    "num_heads",
    "num_attention_heads",
    "heads",
    "n_kv_heads",
    "num_key_value_heads",
    "n_kv_head",
    "head_dim",
    "d_head",
    "block_size",
    "max_seq_len",
    "max_len",
    "context_length",
    "max_position_embeddings",
    "dropout",
    "attn_pdrop",
    "resid_pdrop",
    "attention_dropout",
    "bias",
    "attention_bias",
    "qkv_bias",
    "vocab_size",
    "n_layer",
    "n_layers",
    "seq_len",
    "n_ctx",
    "emb_dim",
    "d_k",
    "embd_pdrop",
    "attn_dropout",
    "resid_dropout",
    "drop_rate",
    "num_layers",
    "max_context",
    "dropout_p",
]

WIDTHS = [
    "din",
    "dout",
    "dinner",
    "embdim",
    "c",
    "nembd",
    "width",
    "dimension",
    "dim",
    "emb",
    "dimmodel",
    "embedsize",
    "embsize",
    "modelsize",
    "nfeatures",
    "inputdim",
    "outputdim",
    "features",
    "channels",
    "nembed",
    "indim",
    "outdim",
    "infeatures",
    "d",
]


def keywords(about: About, told: Told) -> dict[str, Any]:
    """What is handed to a class; LookupError where a parameter's name says nothing."""
    made: dict[str, Any] = {}
    for parameter in about.parameters:
        name = parameter.name
        if parameter.kind == "var":
            continue
        if name in told.values:
            made[name] = told.values[name]
            continue
        value = _value(name, told)
        if name in ("config", "cfg", "conf", "args", "hparams", "c", "params"):
            value = Stub({key: _value(key, told) for key in CONFIG})
        if not parameter.required and not _worth(name):
            continue
        if value is None and parameter.required:
            raise LookupError(
                f"{about.name} wants {name!r}, whose name does not say what it is. Give it a "
                f"value: --set {name}=VALUE"
            )
        if value is not None:
            made[name] = value
    return made


def _worth(name: str) -> bool:
    """Whether a default is better replaced: sizes that must fit, and dropout, to see it is off."""
    return role_of(name) in ("d_model", "n_heads", "n_kv", "dropout") or "drop" in plain(name)


def _value(name: str, told: Told) -> Any:
    role = role_of(name)
    heads = told.n_heads or H
    if "drop" in plain(name) or role == "dropout":
        return DROPOUT
    if plain(name) in SIZES:
        return SIZES[plain(name)]
    if plain(name) in WIDTHS:
        return M
    return {
        "d_model": M, "x": M, "n_heads": heads, "n_kv": told.n_kv or G, "d_head": M // heads,
        "size": LONGEST, "window": told.window or WINDOW, "causal": True,
        "softcap": told.softcap, "base": 10000.0,
    }.get(role or "")  # fmt: skip
