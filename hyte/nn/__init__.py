"""PyTorch + geoopt twins of `hyte.geometry` and `hyte.pooling`, and the trainable projection (extra `train`)."""
