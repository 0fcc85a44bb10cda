"""Small transformers models of many architectures with random weights, and what they are fed.

Each entry builds a configuration; the model class and the inputs follow from it. Random weights are
drawn larger than usual, so that heads are not all even.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import Run, observe

VOCABULARY, T = 101, 13
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 64}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Kind:
    """One architecture: its configuration and model class by name, and its own sizes."""

    config: str
    model: str
    sizes: dict[str, Any]
    inputs: str = "text"
    sdpa: bool = True  # whether it runs on sdpa, or on eager alone
    base: bool = True  # whether SIZES and TOKENS apply


GROUPED = {"num_key_value_heads": 2}
KINDS = {
    "llama": Kind("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "mistral": Kind("MistralConfig", "MistralForCausalLM", {**GROUPED, "sliding_window": 5}),
    "qwen2": Kind("Qwen2Config", "Qwen2ForCausalLM", GROUPED),
    "qwen3": Kind("Qwen3Config", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 16}),
    "gemma2": Kind("Gemma2Config", "Gemma2ForCausalLM",
                   {**GROUPED, "head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 2.0},
                   sdpa=False),
    "gemma3": Kind("Gemma3TextConfig", "Gemma3ForCausalLM",
                   {**GROUPED, "head_dim": 8, "sliding_window": 5}),
    "gpt_oss": Kind("GptOssConfig", "GptOssForCausalLM",
                    {**GROUPED, "head_dim": 8, "sliding_window": 5, "num_local_experts": 2,
                     "num_experts_per_tok": 1}, sdpa=False),
    "phi": Kind("PhiConfig", "PhiForCausalLM", {}),
    "olmo2": Kind("Olmo2Config", "Olmo2ForCausalLM", GROUPED),
    "starcoder2": Kind("Starcoder2Config", "Starcoder2ForCausalLM",
                       {**GROUPED, "sliding_window": 4}),
    "gpt_neox": Kind("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "gpt2": Kind("GPT2Config", "GPT2LMHeadModel",
                 {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2,
                  "n_head": 4, **TOKENS}, base=False),
    "opt": Kind("OPTConfig", "OPTForCausalLM", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bert": Kind("BertConfig", "BertModel", {}),
    "roberta": Kind("RobertaConfig", "RobertaModel", {"max_position_embeddings": 80}),
    "albert": Kind("AlbertConfig", "AlbertModel", {"embedding_size": 16, "num_hidden_layers": 3}),
    "modernbert": Kind("ModernBertConfig", "ModernBertModel",
                       {"local_attention": 6, "global_attn_every_n_layers": 2}),
    "distilbert": Kind("DistilBertConfig", "DistilBertModel",
                       {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4,
                        "hidden_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0},
                       base=False),
    "t5": Kind("T5Config", "T5ForConditionalGeneration",
               {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
                "num_heads": 4, "decoder_start_token_id": 0, **TOKENS}, inputs="pair", base=False),
    "bart": Kind("BartConfig", "BartForConditionalGeneration",
                 {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2,
                  "decoder_layers": 2, "encoder_attention_heads": 4,
                  "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
                  "max_position_embeddings": 64, "decoder_start_token_id": 2, **TOKENS},
                 inputs="pair", base=False),
    "vit": Kind("ViTConfig", "ViTModel",
                {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "image_size": 12, "patch_size": 4},
                inputs="image", base=False),
    "whisper": Kind("WhisperConfig", "WhisperModel",
                    {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2,
                     "decoder_layers": 2, "encoder_attention_heads": 4,
                     "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
                     "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 40,
                     "decoder_start_token_id": 1, **TOKENS}, inputs="sound", base=False),
}  # fmt: skip


def build(name: str, implementation: str = "sdpa", seed: int = 0) -> Any:
    """A model of some kind, in eval mode; torch's random state is left as it was."""
    import transformers

    kind = KINDS[name]
    sizes = {**SIZES, **TOKENS, **kind.sizes} if kind.base else kind.sizes
    config = getattr(transformers, kind.config)(**sizes)
    config._attn_implementation = implementation
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, kind.model)(config).eval()
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data.normal_(std=0.15)
    return model


def feed(name: str, padded: bool = False, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of a batch of two; padded, the second text is shorter (to the left in decoders)."""
    stream = torch.Generator().manual_seed(seed)

    def ids(n: int = T) -> Tensor:
        return torch.randint(3, VOCABULARY, (2, n), generator=stream)

    how: dict[str, Callable[[], dict[str, Tensor]]] = {
        "text": lambda: {"input_ids": ids()},
        "pair": lambda: {"input_ids": ids(), "decoder_input_ids": ids(7)},
        "image": lambda: {"pixel_values": torch.randn(2, 3, 12, 12, generator=stream)},
        "sound": lambda: {"input_features": torch.randn(2, 8, 40, generator=stream),
                          "decoder_input_ids": ids(7)},
    }  # fmt: skip
    made = how[KINDS[name].inputs]()
    if padded:
        real = torch.ones(2, T, dtype=torch.int64)
        if KINDS[name].model.endswith("CausalLM") or name == "gpt2":
            real[1, :4] = 0
        else:
            real[1, -4:] = 0
        made["attention_mask"] = real
    return made


# How they are judged ------------------------------------------------------------------------------


def results_of(output: Any) -> list[Tensor]:
    """Every tensor of a model's output, in order."""
    if isinstance(output, Tensor):
        return list(output.unbind()) if output.is_nested else [output]
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, tuple | list):
        return [x for part in output for x in results_of(part)]
    layers = getattr(output, "layers", None)  # a cache
    return [x for layer in layers or () for x in (layer.keys, layer.values)]


def observed(model: nn.Module, call: Callable[[nn.Module], Any], **options: Any) -> Run:
    """The run of call(model), after it was seen that observing changes no bit of anything."""
    torch.manual_seed(5)
    before = results_of(call(model))
    drawn = torch.rand(1)
    torch.manual_seed(5)
    with observe(model, **options) as run:
        after = results_of(call(model))
    assert torch.equal(drawn, torch.rand(1)), "random numbers were used up"
    assert len(before) == len(after) > 0
    for a, b in zip(before, after, strict=True):
        assert torch.equal(a, b)
    return run


def judged(weights: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Means over real rows that see something: (H,) each, of weights (B, H, T, S) in float64."""
    B, H, T, S = weights.shape
    sink = (1 - weights.sum(dim=-1)).clamp(min=0)
    sink = sink.where(sink > 1e-12, torch.zeros(()).double())
    entropy = torch.special.entr(weights).sum(dim=-1) + torch.special.entr(sink)
    rows = real[:, None].expand(B, H, T) & (weights.sum(dim=-1) > 1e-9)

    def mean(x: Tensor) -> Tensor:
        return x.where(rows, torch.zeros(()).double()).sum(dim=(0, 2)) / rows.sum(dim=(0, 2))

    lag = (torch.arange(T)[:, None] + S - T - torch.arange(S)).abs()
    return {
        "entropy": mean(entropy), "max_prob": mean(weights.amax(dim=-1)), "sink_mass": mean(sink),
        "distance": mean((weights * lag).sum(dim=-1) / weights.sum(dim=-1).clamp(min=1e-300)),
    }  # fmt: skip


def weights_of(judge: nn.Module, inputs: dict[str, Tensor], double: bool = True) -> list[Tensor]:
    """The weights that an eager model returns, in float64, in the order of its calls."""
    if double:
        judge = judge.double()
        inputs = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
    with torch.no_grad():
        said = judge(**inputs, output_attentions=True)
    if "attentions" in said:
        return [x.double() for x in said.attentions]
    pairs = zip(said.decoder_attentions, said.cross_attentions, strict=True)
    return [x.double() for x in (*said.encoder_attentions, *(x for pair in pairs for x in pair))]
