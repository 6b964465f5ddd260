"""The encoder as an ONNX graph: flat token ids and offsets in, points out."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

from hyte.nn.pooling import pool, portable_sum
from hyte.tokenizer import Ids
from hyte.weights import quantise

OPSET = 18
INPUTS, OUTPUTS = ["ids", "offsets"], ["points", "known"]


class BakedEncoder(nn.Module):
    """Gathers one baked row a token and pools in float64.

    Args:
        rows: (V, d) float32 space coordinates.
        pooling: one of `hyte.pooling.POOLINGS`.
        power: P.
        k: K.
        kind: one of `hyte.weights.KINDS`. "int8" keeps int8 rows and scales, multiplied in float32 as the runtime does.
    """

    rows: Tensor
    scales: Tensor | None

    def __init__(
        self, rows: npt.NDArray[np.float32], pooling: str, power: float, k: float, kind: str = "float32"
    ) -> None:
        super().__init__()
        scales, table = quantise(rows) if kind == "int8" else (None, np.array(rows))
        self.register_buffer("rows", torch.from_numpy(table))
        self.register_buffer("scales", None if scales is None else torch.from_numpy(scales))
        self.pooling, self.power, self.k = pooling, power, k

    def forward(self, ids: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Flat ids (T,) and starts (B,) to points (B, d+1) float32 and known flags (B,)."""
        space = self.rows.index_select(0, ids)
        if self.scales is not None:
            space = space.float() * self.scales.index_select(0, ids)[:, None]
        every = torch.arange(ids.shape[0], device=ids.device)
        points, known = pool(space.double(), every, offsets, self.pooling, self.power, self.k, bag_sum=portable_sum)
        return points.float(), known


def write_onnx(path: Path, model: BakedEncoder) -> None:
    """Write the graph to one file, with any number of tokens and of texts.

    Raises RuntimeError where the exporter fixed a size that must stay free, or freed the width of a point.
    """
    ids, offsets = torch.tensor([5, 6, 7, 5, 8]), torch.tensor([0, 2, 2])
    free = {"ids": {0: torch.export.Dim.DYNAMIC}, "offsets": {0: torch.export.Dim.DYNAMIC}}
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):  # they tell of every node, and of packages not installed
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(), (ids, offsets), dynamo=True, dynamic_shapes=free, input_names=INPUTS,
            output_names=OUTPUTS, opset_version=OPSET, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(str(path), external_data=False)
    _check_shapes(path, model.rows.shape[1] + 1)


def _check_shapes(path: Path, width: int) -> None:
    graph = onnx.load(str(path)).graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    free = all(isinstance(shapes.get(name, [0])[0], str) for name in (*INPUTS, *OUTPUTS))
    if not free or shapes["points"][1] != width:
        raise RuntimeError(
            f"{path}: the exporter gave shapes {shapes}; the first of each must be free, points {width} wide"
        )


def flat(bags: list[Ids]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bags of token ids as flat ids (T,) and starts (B,), both int64."""
    starts = np.cumsum([0, *map(len, bags)])[:-1]
    return np.concatenate([*bags, np.zeros(0)]).astype(np.int64), starts.astype(np.int64)


def run_onnx(path: Path, bags: list[Ids]) -> npt.NDArray[np.float32]:
    """Points (B, d+1) of bags of token ids, by onnxruntime on the CPU."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ids, offsets = flat(bags)
    return np.asarray(session.run(["points"], {"ids": ids, "offsets": offsets})[0], dtype=np.float32)
