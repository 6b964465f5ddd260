"""Flat arrays larger than memory: a folder of .npy files, written piece by piece, read memory-mapped."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from hyte.errors import InputError
from hyte.files import sync

Array = npt.NDArray[Any]


def write_arrays(folder: Path, dtypes: Mapping[str, str], pieces: Iterable[Mapping[str, Array]]) -> None:
    """Write one array (n,) a name: its pieces, one after the other. Only one piece is in memory at a time.

    The folder appears whole or not at all. Where another process has made it meanwhile, that one stays.

    Args:
        folder: its parents are made where they are missing.
        dtypes: of each array, by its name.
        pieces: each holds the next part of every array.
    """
    with _new_folder(folder) as made, ExitStack() as stack:
        files = {name: stack.enter_context((made / f"{name}.npy").open("w+b")) for name in dtypes}
        lengths = dict.fromkeys(dtypes, 0)
        for name, file in files.items():
            _write_header(file, dtypes[name], 0)
        for piece in pieces:
            for name, file in files.items():
                file.write(np.ascontiguousarray(piece[name], dtype=dtypes[name]).data)
                lengths[name] += len(piece[name])
        for name, file in files.items():
            file.seek(0)
            _write_header(file, dtypes[name], lengths[name])  # NumPy leaves room in a header for a longer shape
            sync(file)


def open_arrays(folder: Path, names: Iterable[str]) -> list[Array]:
    """The arrays of these names, memory-mapped and read-only.

    Raises InputError where one is missing or cut off.
    """
    try:
        # asarray: the same mapped memory, without the class np.memmap, which makes every small read slower.
        return [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in names]
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{folder}: damaged cache of training pairs ({error}); remove this folder") from error


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `folder` when the block ends, and vanishes if it fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # One level deeper, because mkdtemp's folder itself is for its owner only.
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    made = temporary / folder.name
    try:
        made.mkdir()
        yield made
        _rename(made, folder)
    except OSError as error:
        if error.filename is None:  # a full disk does not say which
            error.filename = str(folder)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rename(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _write_header(file: IO[bytes], dtype: str, length: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
