"""Words of the viewer: what the metrics mean, who may see whom, how tokenizers spell spaces."""

from clearhead.rule import Rule
from clearhead.run.words import SPACES
from clearhead.views.heads import READS, SOURCES, UNNAMED

ROLES = {**{name: f"reads {what}" for name, what in READS.items()}, **UNNAMED}
# Where a role was measured, if that was not in the text itself.
WHERE = {name: f"on {what}" for name, what in SOURCES.items()}
MARKS = str.maketrans({**dict.fromkeys(SPACES, " "), "Ċ": "\n"})  # how tokenizers spell white space

# What the grid can be colored by. low and high are the ends of the scale, None those of the heads.
METRICS = [
    {"key": key, "label": label, "meaning": meaning, "low": low, "high": high}
    for key, label, meaning, low, high in (
        ("normalized_entropy", "entropy", "how widely a row spreads its weight, on average: 0 is "
         "one token, 1 is all that it sees alike", 0.0, 1.0),
        ("first_key", "first token", "mean weight on the first token, over rows that see another "
         "one too", 0.0, 1.0),
        ("distance", "distance", "how many tokens away the weight lies, on average", 0.0, None),
        ("role", "role", "what the head reads, where the evidence is clear", None, None),
        ("max_score", "largest score", "before the softmax; a huge one warns of collapse", None,
         None),
        ("max_prob", "top weight", "mean of the largest weight of each row", 0.0, 1.0),
        ("previous", "token before", "mean weight on the token just before", 0.0, 1.0),
        ("self_mass", "own token", "mean weight on the row's own token", 0.0, 1.0),
        ("sink_mass", "sink", "mean weight of a learned sink, which no token gets", 0.0, 1.0),
        ("entropy", "nats", "entropy of a row in nats, on average", 0.0, None),
    )
]  # fmt: skip


def rule_words(rule: Rule) -> str:
    """Who may see whom, and what else a score is made of, in a few words."""
    said = ["causal" if rule.causal else "sees both ways"]
    if isinstance(rule.window, tuple):
        said.append(f"window {rule.window[0]} before, {rule.window[1]} after")
    elif rule.window is not None:
        said.append(f"window {rule.window}")
    also = {"segments": "documents", "key_mask": "padding", "mask": "a mask", "bias": "a bias",
            "alibi": "ALiBi", "sinks": "a learned sink"}  # fmt: skip
    said += [word for name, word in also.items() if getattr(rule, name) is not None]
    if rule.softcap is not None:
        said.append(f"softcap {rule.softcap:g}")
    return ", ".join(said)
