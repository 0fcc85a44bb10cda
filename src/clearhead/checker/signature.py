"""What the parameters of somebody's attention are for, by their names, and which kind it is.

Names as people write them: an underscore or a capital more or less changes nothing.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from clearhead.checker.about import About, Parameter

# role: its names, without underscores and in small letters
NAMES: Mapping[str, str] = MappingProxyType({
    "q": "q query queries querystates xq querylayer qs qq",
    "k": "k key keys keystates xk keylayer ks kk cachek kcache keycache",
    "v": "v value values valuestates xv valuelayer vs vv cachev vcache valuecache",
    "x": "x xs hiddenstates hidden inputs input inp emb embs embedding embeddings seq sequence h"
    " src",
    "W_Q": "wq wquery qproj qweight weightq wqs querieweight queryweight qw",
    "W_K": "wk wkey kproj kweight weightk wks keyweight kw",
    "W_V": "wv wvalue vproj vweight weightv wvs valueweight vw",
    "W_O": "wo wout oproj outproj oweight weighto wproj outweight woutput cproj ow",
    "W_QKV": "wqkv qkvweight weightqkv wattn cattn inproj inprojweight",
    "n_heads": "nheads numheads nhead heads numattentionheads headcount numberofheads",
    "n_kv": "nkvheads numkvheads kvheads nkv numkeyvalueheads nkvhead nkeyheads ngroups kvnumheads",
    "mask": "mask attnmask attentionmask causalmask allowed visible masked hide futuremask",
    "hidden": "keypaddingmask paddingmask padmask blocked ismasked maskedpositions"
    " srckeypaddingmask",
    "keep": "keymask validmask",
    "bias": "bias attnbias attentionbias additivemask maskbias",
    "causal": "iscausal causal usecausalmask causalattention applycausal usemask maskfuture",
    "scale": "scale scaling smscale softmaxscale scalefactor",
    "window": "window windowsize slidingwindow w attentionwindow win",
    "softcap": "softcap logitcap logitssoftcap cap attnlogitsoftcapping logitsoftcap softcapping",
    "sinks": "sinks sink saux sinklogits sinklogit attentionsinks",
    "slopes": "slopes alibislopes alibi slope",
    "cos": "cos cosine freqscos coscached",
    "sin": "sin sine freqssin sincached",
    "positions": "positions position pos positionids posids",
    "base": "base theta ropetheta ropebase rotarybase",
    "size": "t n size length seqlen seqlength l len tq ntokens numtokens blocksize contextlength"
    " tgtlen qlen sz maxlen ctx context s1",
    "more": "s tk nkeys keylen kvlen srclen klen",
    "dropout": "dropout dropoutp attndropout pdrop dropoutrate dropoutprob attentiondropout",
    "training": "training train istraining",
    "told": "needweights returnweights returnattn outputattentions returnattention"
    " returnattnweights"
    " returnprobs returnmap",
    "average": "averageattnweights",
    "gqa": "enablegqa gqa",
    "module": "module",
    "d_head": "dk dhead headdim headsize hd",
    "d_model": "dmodel embeddim nembd dim hiddensize hiddendim modeldim embdim dinner din",
    "weights": "weights attn attention p probs probabilities attnweights attentionweights w a"
    " attnprobs attnmap prob dist att",
    "eps": "eps epsilon",
    "axis": "axis",
})  # fmt: skip

ROLE = {name: role for role, names in NAMES.items() for name in names.split()}
# Names of tensors come first where a name has two uses: `w` is a window only beside q, k and v.
QKV, WEIGHTS = ("q", "k", "v"), ("W_Q", "W_K", "W_V")
ROTARIES = {"q", "k", "x", "cos", "sin", "positions", "base", "size"}  # what rotary functions take
KINDS = ("sdp", "teach", "module", "entropy", "rotary", "mask")


def plain(name: str) -> str:
    return name.replace("_", "").replace("*", "").lower()


def role_of(name: str) -> str | None:
    """What a parameter is for, None where its name does not tell."""
    word = plain(name)
    if word not in ROLE and "mask" in word:
        return "hidden" if "pad" in word else "mask"
    return ROLE.get(word)


def roles(parameters: tuple[Parameter, ...]) -> dict[str, str]:
    """Name of each role's parameter; of two with the same role the first counts."""
    found: dict[str, str] = {}
    for parameter in parameters:
        role = parameter.role or role_of(parameter.name)
        if role is not None and parameter.kind != "var":
            found.setdefault(role, parameter.name)
    return found


def kind_of(about: About) -> str | None:
    """Which kind of attention this is, as far as names tell; None where they do not."""
    found, name = roles(about.parameters), plain(about.name)
    if about.kind == "module":
        turns = any(part in name for part in ("rotary", "rope")) and set(found) <= ROTARIES
        return "rotary" if turns and all(own.buffer for own in about.own) else "module"
    tensors = [p for p in about.parameters if p.required and p.kind != "var"]
    if any(role in found for role in (*WEIGHTS, "W_QKV")):
        return "teach"
    if set(QKV) <= set(found):
        return "sdp"
    if "entropy" in name:
        return "entropy"
    if any(part in name for part in ("rotary", "rope", "rotate")) or {"cos", "sin"} <= set(found):
        return "rotary"
    if sum(role in found for role in QKV) >= 2:
        return "sdp"
    if "mask" in name and not ({"q"} if name.endswith("mask") else {"q", "x"}) & set(found):
        return "mask"
    if "weights" in found and len(tensors) == 1:
        return "entropy"
    if len(tensors) >= 3 and all(role_of(p.name) in (None, "weights") for p in tensors[:3]):
        return "sdp"  # f(a, b, c)
    return None


def numpy_first(about: About) -> tuple[bool, ...]:
    """Whether arrays go in: first if nothing but numpy is spoken of; a module takes tensors."""
    arrays = re.search(r"\bnp\.|numpy", about.source)
    if about.kind == "module":
        return (False,)
    return (
        (True, False) if arrays and not re.search(r"torch|\bF\.", about.source) else (False, True)
    )


# How people write the axes of a tensor, in a docstring, a comment or an einsum.
LETTERS = {
    "B": "b batch bs bsz nbatch batchsize n batches",
    "H": "h heads nheads nhead numheads nh head hq",
    "T": "t tq s l tokens seq seqlen sequence length time q len i ntokens seqlength tgtlen"
    " targetlen"
    " positions qlen m",
    "D": "d dim hd dhead headdim dk hs e headsize dv c dmodel headdimension features",
}
LETTER = {name: letter for letter, names in LETTERS.items() for name in names.split()}


def layout_in_words(about: About, layouts: tuple[str, ...]) -> str | None:
    """The layout that its own words speak of, such as "(B, H, T, D)" in a docstring."""
    comments = re.findall(r"#(.*)", about.source)
    shapes = re.findall(r"[(\[]([\w* ]+(?:, *[\w* ]+){1,3})[)\]]", " ".join([about.doc, *comments]))
    unpacked = re.findall(r"^\s*([\w, ]+) ?= ?\w+\.(?:shape|size\(\))\s*$", about.source, re.M)
    for shape in [*shapes, *unpacked]:
        letters = "".join(LETTER.get(plain(part.strip()), "?") for part in shape.split(","))
        if letters in layouts:
            return letters
    return None
