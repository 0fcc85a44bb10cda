"""What any correct attention obeys, as functions of the module that is to be judged.

`test_scratch.py` holds scratch.py to every law, and then a row of deliberately wrong copies of it,
each of which has to break at least one.
"""

import json
import math
from pathlib import Path
from types import ModuleType

import torch
from chance import some
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
LAWS = []


def law(function):
    LAWS.append(function)
    return function


class Case:
    """One random problem in float64: x (T, d_model), four projections, a causal mask."""

    def __init__(self, T: int, n_heads: int, d_head: int, seed: int) -> None:
        stream = torch.Generator().manual_seed(seed)
        self.T, self.n_heads, self.d_head = T, n_heads, d_head
        self.d_model = n_heads * d_head
        self.x = torch.randn(T, self.d_model, generator=stream, dtype=torch.float64)
        self.W = [
            torch.randn(self.d_model, self.d_model, generator=stream, dtype=torch.float64)
            for _ in range(4)
        ]
        self.mask = torch.ones(T, T).tril()

    def single(self, m: ModuleType, **options) -> tuple[Tensor, Tensor]:
        return m.single_head_attention(self.x, *self.W[:3], self.mask, **options)

    def multi(self, m: ModuleType, **options) -> tuple[Tensor, Tensor]:
        return m.multi_head_attention(self.x, *self.W, self.n_heads, self.mask, **options)


# Sizes that are prime to one another, so that no two axes can be taken for each other by luck.
cases = st.builds(
    Case,
    T=st.sampled_from([1, 2, 3, 7, 11]),
    n_heads=st.sampled_from([1, 2, 3, 5]),
    d_head=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 1000),
)


def close(got, wanted, atol=1e-10, rtol=0.0) -> None:
    got, wanted = torch.as_tensor(got), torch.as_tensor(wanted)
    torch.testing.assert_close(got, wanted, atol=atol, rtol=rtol, check_dtype=False)


# On chosen inputs: quick, so they come first ----------------------------------------------------


@law
def entropy_of_known_distributions(m: ModuleType) -> None:
    close(m.attention_entropy(torch.tensor([0.731058579, 0.268941421])), 0.582203, atol=1e-6)
    close(m.attention_entropy(torch.tensor([0.880797078, 0.119202922])), 0.365334, atol=1e-6)
    for n in (2, 3, 4, 5, 8, 1000):
        for dtype in (torch.float32, torch.float64):
            close(m.attention_entropy(torch.full((n,), 1 / n, dtype=dtype)), math.log(n), atol=1e-5)
    for n in (1, 2, 65536):
        one_hot = F.one_hot(torch.tensor(n // 2), n).float()
        entropy = m.attention_entropy(one_hot)
        assert entropy.item() == 0.0
        assert math.copysign(1.0, entropy.item()) == 1.0, "printed as -0.000"


@law
def zero_weights_leave_gradients_finite(m: ModuleType) -> None:
    scores = torch.tensor([[0.0, -math.inf], [0.0, -200.0], [2.0, 0.0]], requires_grad=True)
    m.attention_entropy(torch.softmax(scores, dim=-1)).sum().backward()
    assert scores.grad.isfinite().all()
    p = torch.tensor([0.880797, 0.119203])
    expected = -p * (p.log() + 0.365334)  # dH/ds_j = -p_j (log p_j + H)
    close(scores.grad[2], expected, atol=1e-5)


@law
def a_row_that_sees_nothing_is_zero(m: ModuleType) -> None:
    case = Case(T=3, n_heads=2, d_head=2, seed=5)
    case.mask[1] = 0
    case.x.requires_grad_()
    out, weights = case.multi(m)
    assert (weights[:, 1] == 0).all()
    assert (out[1] == 0).all()
    assert (m.attention_entropy(weights)[:, 1] == 0).all()
    (out.sum() + m.attention_entropy(weights).sum()).backward()
    assert case.x.grad.isfinite().all()
    close(case.single(m)[0][1], torch.zeros(4))


@law
def half_precision_neither_overflows_nor_rounds_the_weights(m: ModuleType) -> None:
    x = torch.full((2, 128), 256.0, dtype=torch.float16)  # q . k is 8.4 million
    eye = torch.eye(128, dtype=torch.float16)
    out, weights = m.single_head_attention(x, eye, eye, eye, torch.ones(2, 2))
    close(weights, [[0.5, 0.5], [0.5, 0.5]])
    assert out.dtype == torch.float16
    for dtype in (torch.float16, torch.bfloat16):
        ones, zeros = torch.ones(1000, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
        _, weights = m.single_head_attention(ones, zeros, zeros, zeros, torch.ones(1000, 1000))
        close(m.attention_entropy(weights), torch.full((1000,), math.log(1000)), atol=1e-5)


@law
def large_scores_do_not_overflow(m: ModuleType) -> None:
    x = torch.tensor([[300.0, 0.0], [300.0, 1.0]])
    eye = torch.eye(2)
    out, weights = m.single_head_attention(x, eye, eye, eye, torch.ones(2, 2), scale=False)
    assert out.isfinite().all()
    close(weights, [[0.5, 0.5], [0.268941, 0.731059]], atol=1e-6)


@law
def meets_the_golden_figures(m: ModuleType) -> None:
    """To 1e-5; sums over thousands of numbers, and stored to five decimals, to 1e-5 relative."""
    for golden in GOLDEN:
        T, d_model, n_heads = golden["T"], golden["d_model"], golden["n_heads"]
        x = m.make_input_embeddings(T, d_model, golden["seed"])
        W = m.init_projections(d_model, n_heads, golden["seed"])
        close(x.sum(), golden["x_sum"], atol=1e-5, rtol=1e-5)
        close([w.sum().item() for w in W], golden["W_sums"], atol=1e-5, rtol=1e-5)
        for name in ("scaled", "unscaled"):
            figures, scale = golden[name], name == "scaled"
            out, weights = m.single_head_attention(x, *W[:3], m.causal_mask(T), scale)
            close(out[0, :8], figures["single_out_row0"], atol=1e-5)
            close(out.sum(), figures["single_out_sum"], atol=1e-5, rtol=1e-5)
            close(m.attention_entropy(weights), figures["single_entropy"], atol=1e-5)
            if figures["single_weights"] is not None:
                close(weights, figures["single_weights"], atol=1e-5)
            out, weights = m.multi_head_attention(x, *W, n_heads, m.causal_mask(T), scale)
            close(out[-1, :8], figures["multi_out_last"], atol=1e-5)
            close(out.sum(), figures["multi_out_sum"], atol=1e-5, rtol=1e-5)
            mean = m.attention_entropy(weights).mean(dim=-1)
            close(mean, figures["multi_entropy_mean"], atol=1e-5)
            if figures["multi_weights_head0"] is not None:
                close(weights[0], figures["multi_weights_head0"], atol=1e-5)


# On random inputs, and against other implementations -------------------------------------------


@law
def agrees_with_sdpa(m: ModuleType) -> None:
    @some(25)
    @given(cases, st.booleans())
    def check(case: Case, scale: bool) -> None:
        factor = None if scale else 1.0
        q, k, v = (case.x @ w for w in case.W[:3])
        wanted = F.scaled_dot_product_attention(q, k, v, case.mask.bool(), scale=factor)
        close(case.single(m, scale=scale)[0], wanted)
        q, k, v = (
            torch.stack(
                [(case.x @ w)[:, h * case.d_head :][:, : case.d_head] for h in range(case.n_heads)]
            )
            for w in case.W[:3]
        )
        heads = F.scaled_dot_product_attention(q, k, v, case.mask.bool(), scale=factor)
        close(case.multi(m, scale=scale)[0], torch.cat(list(heads), dim=-1) @ case.W[3])

    check()


@law
def agrees_with_torchs_multihead_attention(m: ModuleType) -> None:
    @some(25)
    @given(cases)
    def check(case: Case) -> None:
        theirs = torch.nn.MultiheadAttention(case.d_model, case.n_heads, bias=False).double()
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.cat([w.T for w in case.W[:3]]))
            theirs.out_proj.weight.copy_(case.W[3].T)
            out, weights = theirs(
                case.x, case.x, case.x, attn_mask=case.mask == 0, average_attn_weights=False
            )
        close(case.multi(m)[0], out)
        close(case.multi(m)[1], weights)

    check()


@law
def one_head_is_the_single_head(m: ModuleType) -> None:
    @some(25)
    @given(cases)
    def check(case: Case) -> None:
        identity = torch.eye(case.d_model, dtype=torch.float64)
        out, weights = m.multi_head_attention(case.x, *case.W[:3], identity, 1, case.mask)
        wanted_out, wanted_weights = case.single(m)
        close(out, wanted_out)
        close(weights[0], wanted_weights)

    check()


@law
def rows_sum_to_one(m: ModuleType) -> None:
    @some(25)
    @given(cases)
    def check(case: Case) -> None:
        close(case.multi(m)[1].sum(dim=-1), torch.ones(case.n_heads, case.T))
        close(case.single(m)[1].sum(dim=-1), torch.ones(case.T))

    check()


@law
def nothing_comes_from_the_future(m: ModuleType) -> None:
    @some(25)
    @given(cases)
    def check(case: Case) -> None:
        before, weights = case.multi(m)
        assert (weights.triu(diagonal=1) == 0).all()
        for i in range(case.T):
            case.x[i + 1 :] += 100.0
            torch.testing.assert_close(case.multi(m)[0][: i + 1], before[: i + 1])
            case.x[i + 1 :] -= 100.0

    check()


@law
def permuting_heads_permutes_their_maps(m: ModuleType) -> None:
    @some(25)
    @given(cases, st.randoms(use_true_random=False))
    def check(case: Case, random) -> None:
        out, weights = case.multi(m)
        order = list(range(case.n_heads))
        random.shuffle(order)
        columns = torch.arange(case.d_model).view(case.n_heads, case.d_head)[order].flatten()
        case.W = [*(w[:, columns] for w in case.W[:3]), case.W[3][columns]]
        permuted_out, permuted_weights = case.multi(m)
        close(permuted_weights, weights[order])
        close(permuted_out, out)

    check()


@law
def sqrt_d_head_in_the_queries_undoes_the_scale(m: ModuleType) -> None:
    @some(25)
    @given(cases)
    def check(case: Case) -> None:
        unscaled, unscaled_single = case.multi(m, scale=False), case.single(m, scale=False)
        W_Q = case.W[0]
        case.W[0] = W_Q * math.sqrt(case.d_head)
        close(case.multi(m)[1], unscaled[1])
        case.W[0] = W_Q * math.sqrt(case.d_model)
        close(case.single(m)[1], unscaled_single[1])

    check()


@law
def equal_scores_share_alike(m: ModuleType) -> None:
    """With queries of zero every visible key weighs 1/n: the entropy itself counts the visible."""

    @some(25)
    @given(cases)
    def check(case: Case) -> None:
        case.W[0] = torch.zeros_like(case.W[0])
        entropy = m.attention_entropy(case.multi(m)[1])
        close(entropy, torch.arange(1, case.T + 1).double().log().expand(case.n_heads, -1))

    check()


@law
def entropy_lies_between_zero_and_log_visible(m: ModuleType) -> None:
    @some(25)
    @given(cases)
    def check(case: Case) -> None:
        entropy = m.attention_entropy(case.multi(m)[1])
        ceiling = torch.arange(1, case.T + 1).double().log()
        assert (entropy >= 0).all()
        assert (entropy <= ceiling + 1e-12).all()

    check()
