"""Mistakes that no formula shows: what is random, what is written into, what has no gradient."""

from clearhead.checker.line import Mistake

OBSERVED = (
    Mistake(
        "dropout-in-eval", "dropout", "dropout is on although nobody trains",
        "Answers differ from call to call: evaluation is noisy, generation worse than the model.",
        "F.dropout(weights, p, training=self.training), or nn.Dropout as a part of the module",
        look="dropout|bernoulli|rand",
    ),
    Mistake(
        "dropout-on-weights", "dropout", "the returned weights are those after dropout",
        "Some weights are 0 that are not, and the rest is too large: entropies of them are wrong.",
        "keep the weights before dropout for whoever wants to look",
        look="dropout|return",
    ),
    Mistake(
        "not-deterministic", "side effects", "two calls with the same input give different answers",
        "Nothing that is measured can be measured again.",
        "look for memory that is not filled (torch.empty), state that is kept between calls, or "
        "an order that is not fixed",
        look="empty|self\\.|global|random|time",
    ),
    Mistake(
        "inputs-mixed", "q, k, v", "queries, keys or values are not made of the input of that name",
        "With one text for all inputs nothing is seen. Across two texts it looks at the wrong one, "
        "or hands over what is not asked for.",
        "q_proj(query), k_proj(key), v_proj(value); of x and a context: keys and values of the "
        "context",
        look=r"query|key|value|context|memory",
    ),
    Mistake(
        "inputs-changed", "side effects", "the call writes into its inputs",
        "Whoever uses the tensor afterwards, a residual connection above all, gets other numbers.",
        "scores = scores + mask instead of +=, x * s instead of x.mul_(s), masked_fill instead of "
        "masked_fill_",
        look=r"_\(|[-+*/]=|\[[^\]]*\] ?=[^=]",
    ),
    Mistake(
        "random-state", "side effects", "the call moves the global random state",
        "A model that looks at itself trains differently from one that does not.",
        "use a torch.Generator of one's own, or none",
        look="seed|rand|dropout|bernoulli",
    ),
    Mistake(
        "gradient-stopped", "gradients", "no gradient comes back",
        "What lies before it never learns, and the loss goes down all the same, by what is left.",
        "look for detach(), .data, no_grad(), .item() and numpy on the way",
        look=r"detach|no_grad|\.data|item\(|numpy|round|argmax|tensor\(",
    ),
    Mistake(
        "gradient-wrong", "gradients", "the gradient is not that of the output",
        "Training goes somewhere else than downhill.",
        "compare with torch.autograd.gradcheck in float64; look at backward() of one's own",
        look=r"backward|autograd|detach|register_hook|ctx",
    ),
    Mistake(
        "empty-nan", "a row that sees nothing", "a query that may see nothing gets NaN",
        "One padded row is enough: the NaN reaches the loss, and from there every weight.",
        "fill the weights of such a row with 0, after the softmax: "
        "weights.masked_fill(~visible, 0)",
        look=r"softmax|-?inf", caution=True,
    ),
    Mistake(
        "empty-uniform", "a row that sees nothing",
        "a query that may see nothing gets the average of everything",
        "Hidden values, the future's too, come through in that row.",
        "fill the weights of such a row with 0, after the softmax: "
        "weights.masked_fill(~visible, 0)",
        look=r"1e9|1e4|finfo|masked_fill", caution=True,
    ),
    Mistake(
        "numbers-nan", "numbers", "nothing but NaN or infinity comes out",
        "The loss is NaN from the first step on.",
        "look for 0 * inf, inf - inf and 0 / 0: a mask that is multiplied, a row that sees nothing",
        look=r"inf|mask|/|log",
    ),
    Mistake(
        "numbers-rough", "numbers", "the numbers are rougher than float32's",
        "Something on the way is computed in half precision, or approximated.",
        "keep scores, softmax and sums in float32",
        look="half|float16|bfloat16|autocast",
    ),
)  # fmt: skip

BY_NAME = {mistake.name: mistake for mistake in OBSERVED}
