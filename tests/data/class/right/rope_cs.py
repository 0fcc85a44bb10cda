import torch


def apply_rope(x, cos, sin):
    # x (T, D), cos/sin (T, D/2), GPT-NeoX layout
    x1, x2 = torch.chunk(x, 2, dim=-1)
    y1 = x1 * cos - x2 * sin
    y2 = x2 * cos + x1 * sin
    return torch.cat([y1, y2], dim=-1)
