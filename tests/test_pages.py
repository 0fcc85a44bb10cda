"""The Python of the pages on observing and on training is run."""

import doctest
import re

import pytest
import torch
from programs import ROOT
from torch import nn

import clearhead as ch


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_page_on_observing_shows_what_comes_out():
    results = doctest.testfile(str(ROOT / "docs" / "observing.md"), module_relative=False)
    assert results.attempted > 15
    assert results.failed == 0


def test_the_lines_for_a_training_loop_find_the_head_that_collapses(capsys):
    """Head 2 of layer 1 is driven into collapse from step 30 on; nobody else moves."""
    (code,) = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "training.md").read_text("utf-8"), re.M | re.S
    )
    torch.manual_seed(0)
    model = ch.TinyGPT(ch.GPTConfig(50, context=32, n_layers=2, d_model=32, n_heads=4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen = []

    def batch(step: int):
        seen.append(step)
        if step == 30:
            with torch.no_grad():
                for name in ("q_proj", "k_proj"):
                    weight = getattr(model.blocks[1].attention, name).weight
                    weight[16:24] *= 40
        return torch.randint(50, (2, 32), generator=torch.Generator().manual_seed(step))

    def loss(model: nn.Module, tokens: torch.Tensor):
        return model.loss(tokens)

    exec(code, {"model": model, "batch": batch, "loss": loss, "optimizer": optimizer})
    assert len(seen) == 100
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"head 1\.2 at step 40: (collapsed|narrowed), 0\.\d\d to 0\.\d\d", line)
