"""Hybrid retrieval in hyperbolic space for small devices. Importing this loads numpy, never torch."""

from hyte.encoder import Encoder
from hyte.errors import InputError
from hyte.hits import Hit
from hyte.index import HybridIndex
from hyte.settings import Settings

__all__ = ["Encoder", "Hit", "HybridIndex", "InputError", "Settings"]
