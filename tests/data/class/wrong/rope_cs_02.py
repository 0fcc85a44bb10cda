# -*- coding: utf-8 -*-
import torch


def apply_rotary(x, cos, sin):
    x1, x2 = torch.chunk(x, 2, dim=-1)
    y1 = x1 * cos + x2 * sin
    y2 = x2 * cos - x1 * sin
    return torch.cat([y1, y2], dim=-1)
