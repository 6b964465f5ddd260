"""`hyte index | add | remove | compact | search | info | check`: index text files and search them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from hyte.analyzers import ANALYZERS
from hyte.commits import FILES, INDEX_FILE
from hyte.encoder import OPTIONS, Encoder
from hyte.errors import InputError, report_errors
from hyte.files import strict_json
from hyte.fusion import FUSIONS
from hyte.hits import Hit
from hyte.index import HybridIndex
from hyte.lock import writing
from hyte.paths import from_folder, to_file
from hyte.ranking import MODES
from hyte.settings import Settings
from hyte.snippets import printable, snippet
from hyte.textfiles import read_text, text_files

EXIT_NO_HIT = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Returns 0, or 1 where a search finds nothing; errors exit with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what the terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    with report_errors():
        code = int(options.run(options))
        sys.stdout.flush()  # here, where a closed pipe is known how to be taken
        return code


def _index(options: argparse.Namespace) -> int:
    if (options.out / INDEX_FILE).exists() and not options.replace:
        raise InputError(
            f"{options.out}: holds an index already: add to it with 'hyte add {options.out} PATH', "
            "or build it anew with --replace"
        )
    settings = Settings().override(
        analyzer=options.analyzer, window=options.window, overlap=options.overlap, fusion=options.fusion,
        alpha=options.alpha, candidates=options.candidates,
    )  # fmt: skip
    return _add_files(HybridIndex(Encoder.load(options.artifact), settings), options.paths, options.out)


def _add(options: argparse.Namespace) -> int:
    _must_exist(options.dir)
    with writing(options.dir):  # from the first look, so that no other commit comes between
        return _add_files(_open(options), options.paths, options.dir)


def _add_files(index: HybridIndex, paths: list[Path], folder: Path) -> int:
    counts = {"added": 0, "updated": 0, "unchanged": 0}
    skipped: list[str] = []
    seen: set[str] = set()
    for path in text_files(paths, folder, skipped):
        name = from_folder(path, folder)
        seen.add(name)
        try:
            counts[index.add(name, read_text(path))] += 1
        except (InputError, OSError) as error:
            skipped.append(f"skipped: {error}" + ("; the text indexed before stays" if name in index else ""))
    sys.stderr.writelines(f"{printable(line)}\n" for line in skipped)
    gone = _gone(index, paths, folder) if seen else []
    for name in gone:
        index.remove(name)
    if not any(counts.values()) and not gone:
        raise InputError(f"{', '.join(map(str, paths))}: nothing to index: no readable .txt or .md file there")
    index.flush(_counter(counts["added"] + counts["updated"]))
    if index.changed:
        index.save(folder)
    more = "".join(f", {n} {what}" for n, what in ((counts["unchanged"], "unchanged"), (len(gone), "gone")) if n)
    told = f"{counts['added']} added, {counts['updated']} updated, {len(skipped)} skipped{more}"
    _say(f"{told}; {_holds(index, folder)}")
    return 0


def _gone(index: HybridIndex, paths: list[Path], folder: Path) -> list[str]:
    """The indexed files below these folders that are there no more."""
    folders = tuple(os.path.join(os.path.realpath(path), "") for path in paths if path.is_dir())
    files = ((name, to_file(name, folder)) for name in index.paths)
    return [name for name, file in files if file.startswith(folders) and _is_gone(file)]


def _is_gone(file: str) -> bool:
    """Whether there is no such file; False where a folder that may not be looked into hides the answer."""
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _holds(index: HybridIndex, folder: Path) -> str:
    empty = f", of them {index.n_empty} without any word" if index.n_empty else ""
    return f"{folder} holds {len(index)} documents{empty}, {index.n_chunks} chunks"


def _remove(options: argparse.Namespace) -> int:
    _must_exist(options.dir)
    with writing(options.dir):
        index = _open(options, need_encoder=False)
        held, gone = {path: to_file(path, options.dir) for path in index.paths}, set()
        for full in map(os.path.realpath, options.paths):
            found = [path for path, file in held.items() if file == full or file.startswith(full + os.sep)]
            if not found:
                raise InputError(f"{full}: not in the index {options.dir}, which holds {len(index)} documents")
            gone.update(found)
        for path in gone:
            index.remove(path)
        index.save(options.dir)
    _say(f"{len(gone)} removed; {_holds(index, options.dir)}")
    return 0


def _compact(options: argparse.Namespace) -> int:
    _must_exist(options.dir)
    before = _size(options.dir)
    with writing(options.dir):
        index = _open(options, need_encoder=False)
        index.compact()
        index.save(options.dir)
    _say(f"{before:,} bytes before, {_size(options.dir):,} now; {_holds(index, options.dir)}")
    return 0


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def _must_exist(folder: Path) -> None:
    """Raises InputError where there is no index: a lock is not taken, nor a folder made, where nothing is."""
    if not (folder / INDEX_FILE).is_file():
        raise InputError(f"{folder / INDEX_FILE}: no index there; make one with: hyte index PATH --out {folder}")


def _search(options: argparse.Namespace) -> int:
    index = _open(options, need_encoder=options.mode != "bm25")
    hits = index.search(
        options.query, options.k, options.alpha, options.candidates, mode=options.mode, fusion=options.fusion
    )
    hits = [hit._replace(path=to_file(hit.path, options.dir)) for hit in hits]
    mark = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() and not options.json else ("**", "**")
    shown = [(hit, snippet(hit.text, options.query, index.tokens, mark)) for hit in hits]
    if options.json:
        _say(strict_json({"query": options.query, "hits": [{**h._asdict(), "snippet": s} for h, s in shown]}, indent=1))
    else:
        for rank, (hit, text) in enumerate(shown, 1):
            _say(_printed(rank, hit, text))
    return 0 if hits else EXIT_NO_HIT


def _printed(rank: int, hit: Hit, text: str) -> str:
    bm25 = "-" if hit.bm25 is None else f"{hit.bm25:.3f}"
    lorentz = "-" if hit.lorentz is None else f"{hit.lorentz:.3f}"
    score = "-" if hit.score is None else f"{hit.score:.4f}"
    return (
        f"{rank}. {printable(hit.path)}  chunk {hit.chunk}  score {score}  (bm25 {bm25}, lorentz {lorentz})\n   {text}"
    )


def _info(options: argparse.Namespace) -> int:
    index = _open(options, need_encoder=False)
    facts: dict[str, Any] = {"documents": len(index), "chunks": index.n_chunks, "empty_documents": index.n_empty}
    if made_by := index.made_by:
        facts |= {"artifact": made_by["path"], "fingerprint": made_by["fingerprint"], "pooling": made_by["pooling"]}
        facts |= {"P": float(made_by["power"]), "K": made_by["k"]}
        facts |= {name: float(made_by[name]) for name in OPTIONS if name in made_by}
    facts |= asdict(index.settings)
    facts["generation"] = index.generation
    facts |= {f"{name}_bytes": (options.dir / name).stat().st_size for name in FILES if (options.dir / name).exists()}
    if options.json:
        _say(strict_json(facts, indent=1))
    else:
        _say("\n".join(f"{name}: {value}" for name, value in facts.items()))
    return 0


def _check(options: argparse.Namespace) -> int:
    index = _open(options, need_encoder=False)
    index.check()
    _say(f"{options.dir}: complete and undamaged: {len(index)} documents, {index.n_chunks} chunks")
    return 0


def _open(options: argparse.Namespace, need_encoder: bool = True) -> HybridIndex:
    return HybridIndex.load(options.dir, options.artifact, need_encoder=need_encoder)


def _counter(total: int) -> Callable[[int], None]:
    """A progress line on stderr, on terminals only."""
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if sys.stderr.isatty():
            sys.stderr.write(f"\rindexed {done} of {total} files" + ("\n" if done == total else ""))

    return count


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _path(text: str) -> Path:
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("an empty path")
    return Path(text)


def _candidates(text: str) -> int | str:
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a count nor 'all'")
    return text if text == "all" else int(text)


class _Parser(argparse.ArgumentParser):
    """Tells of a wrong option in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {printable(message)}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="hyte", description="Hybrid search (BM25 and hyperbolic) over text files.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    index = commands.add_parser("index", help="build an index of .txt and .md files")
    index.add_argument("paths", nargs="+", type=_path, metavar="PATH", help="a file, or a folder with all below it")
    index.add_argument("--out", required=True, type=_path, metavar="DIR", help="folder for the index")
    index.add_argument("--analyzer", choices=ANALYZERS, help="BM25's tokens (default english)")
    index.add_argument("--window", type=int, help="words of a chunk (default 300)")
    index.add_argument("--overlap", type=int, help="words shared by neighbouring chunks (default 60)")
    index.add_argument("--replace", action="store_true", help="build anew where DIR holds an index already")
    index.set_defaults(run=_index)
    for name, run, text in (
        ("add", _add, "add files, or update them; files that are gone from a folder are removed"),
        ("remove", _remove, "remove files or folders"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("dir", type=_path, metavar="DIR", help="folder of the index")
        command.add_argument("paths", nargs="+", type=_path, metavar="PATH", help="a file or a folder")
        command.set_defaults(run=run)
    search = commands.add_parser("search", help="search; exit code 1 where nothing is found")
    search.add_argument("dir", type=_path, metavar="DIR", help="folder of the index")
    search.add_argument("query")
    search.add_argument("-k", type=int, default=10, help="documents wanted (default 10)")
    search.add_argument("--mode", choices=MODES, default="hybrid", help="default hybrid")
    search.set_defaults(run=_search)
    for name, run, text in (
        ("compact", _compact, "give the disk back what removed texts held"),
        ("info", _info, "sizes and settings"),
        ("check", _check, "verify every byte"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("dir", type=_path, metavar="DIR", help="folder of the index")
        command.set_defaults(run=run)

    for name, command in commands.choices.items():
        default = "the shipped weights" if name == "index" else "the one that the index records"
        command.add_argument("--artifact", type=_path, metavar="A", help=f"artifact folder (default: {default})")
        if name in ("index", "search"):
            command.add_argument("--fusion", choices=tuple(FUSIONS), help="default: the index's (zscore)")
            command.add_argument(
                "--alpha", type=float, help="1 is BM25 alone, 0 is Lorentz alone (default: the index's)"
            )
            command.add_argument("--candidates", type=_candidates, metavar="M", help="chunks to fuse (200), or 'all'")
        if name in ("search", "info"):
            command.add_argument("--json", action="store_true", help="print JSON")
    return parser
