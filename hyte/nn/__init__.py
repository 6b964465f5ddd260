"""PyTorch + geoopt twins of `hyte.geometry` and `hyte.pooling`, and the trainable projection (extra `train`)."""

import importlib.util

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("geoopt") is None:
    raise ImportError('hyte.nn needs PyTorch and geoopt, which are not installed; run: pip install "hyte[train]"')
