"""A mask that somebody saved: read without running anything that is in the file."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

LONGEST = 4096  # tokens on a side: a mask larger than that is asked for in parts


def read_mask(name: str | Path) -> Tensor:
    """The tensor in a file of torch.save (.pt, .pth), numpy (.npy) or safetensors.

    Returns it as it is stored. Raises ValueError, with what was found, if it is no single mask,
    OSError if there is no such file.
    """
    path = Path(name)
    path.stat()
    try:
        if path.suffix == ".npy":
            found: object = torch.from_numpy(np.load(path, allow_pickle=False))
        elif path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise ValueError(
            f"{path} could not be read as a tensor ({type(error).__name__}: {first[:120]}). "
            "Save it with torch.save(mask, 'mask.pt')"
        ) from error
    if isinstance(found, Mapping) and len(found) == 1:
        found = next(iter(found.values()))
    if not isinstance(found, Tensor):
        inside = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(f"{path} holds no single tensor but {inside[:200]}")
    if found.layout is not torch.strided or found.is_meta or found.is_quantized:
        kind = "meta" if found.is_meta else "quantized" if found.is_quantized else found.layout
        raise ValueError(f"{path} holds a tensor whose numbers are not there one by one ({kind})")
    if found.ndim < 2 or found.numel() == 0 or max(found.shape[-2:]) > LONGEST:
        raise ValueError(
            f"a mask has axes (..., queries, keys), from 1 to {LONGEST} on a side; {path} holds "
            f"{list(found.shape)}"
        )
    return found
