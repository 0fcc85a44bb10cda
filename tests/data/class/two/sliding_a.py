import torch


def sliding_window_attention(q, k, v, window=3):
  """Each token sees itself and the window - 1 tokens before it."""
  T = q.shape[-2]
  i = torch.arange(T).unsqueeze(1)
  j = torch.arange(T).unsqueeze(0)
  keep = (j <= i) & (j >= i - window)
  raw = (q @ k.mT) / q.shape[-1] ** 0.5
  raw = torch.where(keep, raw, torch.tensor(float("-inf"), dtype=raw.dtype))
  amap = torch.softmax(raw, -1)
  return amap @ k, amap


if __name__ == "__main__":
    torch.manual_seed(0)
    print("ok")
