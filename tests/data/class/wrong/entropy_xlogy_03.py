import torch


def head_entropy(amap):
  terms = torch.xlogy(amap, amap)
  H = terms.sum(-1)
  return H
