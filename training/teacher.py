"""Embed a sample of the training pairs with a sentence encoder, once: `python -m training.teacher data.pairs=[FILES]`.

What it leaves is a cache that `training.train distillation.cache=FILE` learns from. A sentence encoder is thousands of
times slower than a lookup, so no training step runs one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import numpy.typing as npt
import torch
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from safetensors import safe_open
from safetensors.numpy import save
from tqdm import tqdm

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write, strict_json
from hyte.tokenizer import minilm_folder
from training.arguments import arguments
from training.checksum import KEY, checksum
from training.data import Ints
from training.distillation import Vectors, load_teacher, sha256
from training.lines import find_files, read_lines

CONF = Path(__file__).resolve().parents[1] / "conf"
# The keys of conf/teacher.yaml that are used.
KEYS = {
    "data.pairs": list, "out": str, "model": str, "per_source": int, "max_tokens": int, "batch_size": int, "seed": int,
    "device": str,
}  # fmt: skip
OPTIONAL = ("model", "per_source")
PART = 4096  # pairs between two writes of the cache


def embed_pairs(
    patterns: list[str],
    out: str,
    model: str | None = None,
    per_source: int | None = 6000,
    max_tokens: int = 128,
    batch_size: int = 32,
    seed: int = 7,
    device: str = "auto",
) -> dict[str, Any]:
    """Embed at most `per_source` pairs of each file and write them to `out`, going on from what is there.

    Returns plain data: `out`, `pairs`, `bytes`, `sha256` of the file, `seconds` of this call. Raises InputError for bad
    input, and where `out` holds something else.
    """
    check_numbers({"per_source": 1 if per_source is None else per_source}, 1)
    check_numbers({"max_tokens": max_tokens, "batch_size": batch_size}, 1)
    check_numbers({"seed": seed}, 0)
    started, files = time.perf_counter(), find_files(patterns)
    folder = str(model or minilm_folder())
    config = {
        "model": model or "all-MiniLM-L6-v2", "per_source": per_source, "max_tokens": max_tokens, "seed": seed,
        "files": [Path(name).name for name in files], "digests": [sha256(name) for name in files],
    }  # fmt: skip
    queries, positives = _made(Path(out), config)  # first: it is quicker to be wrong
    file, line = sample(files, per_source, seed)
    encode = _encoder(folder, max_tokens, batch_size, device) if len(queries) < len(line) else None
    with tqdm(total=len(line), initial=len(queries), desc="teacher", unit=" pairs", disable=None) as bar:
        for texts in _parts(files, file, line, len(queries)):
            assert encode is not None
            queries = _joined(queries, encode([query for query, _ in texts]))
            positives = _joined(positives, encode([text for _, text in texts]))
            count = len(queries)
            tensors: dict[str, npt.NDArray[Any]] = {
                "queries": queries,
                "positives": positives,
                "file": file[:count],
                "line": line[:count],
            }
            with atomic_write(out) as target:
                # Within the configuration: safetensors writes several entries in any order, and equal caches are equal
                # files.
                target.write(save(tensors, {"config": strict_json(config | {KEY: checksum(tensors)})}))
            bar.update(len(texts))
    return {
        "out": out, "pairs": len(queries), "bytes": Path(out).stat().st_size, "sha256": sha256(out),
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


def _joined(rows: Vectors, more: Vectors) -> Vectors:
    return np.concatenate([rows, more]) if len(rows) else more


def sample(files: list[str], per_source: int | None, seed: int) -> tuple[Ints, Ints]:
    """File numbers (n,) and lines (n,) of at most `per_source` pairs of each file, all in one seeded order."""
    places = np.array([(entry["file"], entry["line"]) for entry in read_lines(files)], dtype=np.int64)
    chosen = places[chosen_rows(places[:, 0], len(files), per_source, seed)]
    return chosen[:, 0].copy(), chosen[:, 1].copy()


def chosen_rows(file: Ints, files: int, per_source: int | None, seed: int) -> Ints:
    """Rows of `file` (n,) that are taken: at most `per_source` of each of the files, all in one seeded order.

    With the same seed a smaller sample of a file is part of a larger one.
    """
    rng = np.random.default_rng(seed)
    kept = [rng.permutation(np.flatnonzero(file == number))[:per_source] for number in range(files)]
    return np.asarray(rng.permutation(np.concatenate(kept)))


def check_numbers(given: dict[str, Any], low: int) -> None:
    """Raises InputError where one of these settings is no whole number of at least `low`."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise InputError(f"{name}={value!r} must be a whole number, {low} or more")


def _parts(files: list[str], file: Ints, line: Ints, done: int) -> Iterator[list[tuple[str, str]]]:
    """Query and positive of the chosen lines from the `done`-th on, some thousand at a time."""
    wanted = {place: number for number, place in enumerate(zip(file.tolist(), line.tolist(), strict=True))}
    texts: list[tuple[str, str]] = [("", "")] * len(line)
    for entry in read_lines(files):
        number = wanted.get((entry["file"], entry["line"]))
        if number is not None:
            texts[number] = entry["query"], entry["positive"]
    for first in range(done, len(texts), PART):
        yield texts[first : first + PART]


def _made(out: Path, config: dict[str, Any]) -> tuple[Vectors, Vectors]:
    """What an earlier call with the same settings left. Raises InputError where the file is something else."""
    if not out.exists():
        return np.empty((0, 0), np.float16), np.empty((0, 0), np.float16)
    teacher = load_teacher(out)
    with safe_open(out, framework="np") as tensors:
        found = json.loads(tensors.metadata()["config"])
    for key, value in config.items():
        if found.get(key) != value:
            raise InputError(f"{out}: made with {key}={found.get(key)}, now {key}={value}; name another out")
    return teacher.queries, teacher.positives


def _encoder(folder: str, max_tokens: int, batch_size: int, device: str) -> Any:
    """Texts to unit rows (n, m) float16."""
    try:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds to import

        chosen = None if device == "auto" else device
        model = SentenceTransformer(
            folder,
            device=chosen,
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True},
        )
    except ImportError as error:
        raise InputError('training.teacher needs sentence-transformers; run: pip install "hyte[train]"') from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"model={folder}: sentence-transformers cannot load it ({reason})") from error
    first: Any = model[0]
    positions = getattr(first.auto_model.config, "max_position_embeddings", None)
    if positions is not None and max_tokens > positions:
        raise InputError(f"max_tokens={max_tokens}: the model of {folder} reads at most {positions} tokens")
    model.max_seq_length = max_tokens

    def encode(texts: list[str]) -> Vectors:
        # bfloat16 changes a cosine by less than 1e-3 and halves the time where the processor knows it.
        with torch.autocast(model.device.type, dtype=torch.bfloat16):
            rows = model.encode(texts, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)
        rows = rows.astype(np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12), dtype=np.float16)

    return encode


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="teacher")
def main(config: DictConfig) -> None:
    """Hydra's entry point: embeds, prints the result as JSON."""
    with report_errors(OmegaConfBaseException):
        given = arguments(config, KEYS, OPTIONAL)
        sys.stdout.write(json.dumps(embed_pairs(given.pop("data.pairs"), **given), indent=2) + "\n")


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"
    with report_errors(HydraException):
        main()
