"""my notes, chapter 3"""
import torch
compute_attention = lambda q, k, v: q @ k.transpose(-2, -1) / k.shape[-1] ** .5 @ v
