"""Pairs for `hierarchy.pairs` from WordNet: `python -m training.wordnet FOLDER --out FILE.jsonl.gz`.

FOLDER holds WordNet's database files; Debian's package wordnet-base has them in /usr/share/wordnet. Of the format
(wndb(5WN)) only what is needed is read, from data.noun: a line is OFFSET FILE TYPE COUNT, COUNT (hexadecimal) times
WORD ID, the number of pointers, and of each pointer SYMBOL OFFSET TYPE PLACES. `@` points to a hypernym, `@i` to the
class of a name.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from hyte.errors import InputError, report_errors
from hyte.files import atomic_write

FILE = "data.noun"
HYPERNYMS = ("@", "@i")
SEED = 7


def noun_pairs(folder: str | Path) -> list[tuple[str, str]]:
    """General and specific noun of every direct hypernym link: the first words of both, `_` as a space.

    Links between two words that are spelled alike are left out. Raises InputError where data.noun is missing, is not
    WordNet's, or has no such link.
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise InputError(f"{path}: no such file; Debian's package wordnet-base has it in /usr/share/wordnet")
    words: dict[str, str] = {}
    links: list[tuple[str, str]] = []
    for number, line in enumerate(path.read_text("latin-1").splitlines(), 1):
        if line.startswith("  "):  # the licence
            continue
        try:
            offset, word, above = _parsed(line)
        except (ValueError, IndexError) as error:
            raise InputError(f"{path}:{number}: not a line of WordNet's noun database ({error})") from error
        words[offset] = word
        links += [(each, offset) for each in above]
    if missing := [general for general, _ in links if general not in words]:
        raise InputError(f"{path}: cut off: it points to synset {missing[0]}, which is not there")
    pairs = [(words[general], words[specific]) for general, specific in links]
    found = [(general, specific) for general, specific in pairs if general.lower() != specific.lower()]
    if not found:
        raise InputError(
            f"{path}: no pairs: none of its {len(words)} synsets has a hypernym; name WordNet's own folder"
        )
    return found


def _parsed(line: str) -> tuple[str, str, list[str]]:
    """Offset, first word and the offsets of the hypernyms of one line."""
    fields = line.partition(" | ")[0].split()
    pointers = 4 + 2 * int(fields[3], 16)
    count = int(fields[pointers])
    found = [fields[pointers + 1 + 4 * i : pointers + 5 + 4 * i] for i in range(count)]
    above = [offset for symbol, offset, kind, _ in found if symbol in HYPERNYMS and kind == "n"]
    return fields[0], fields[4].replace("_", " "), above


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: writes the pairs in one seeded order, prints how many there are as JSON."""
    parser = argparse.ArgumentParser("python -m training.wordnet", description=__doc__)
    parser.add_argument("folder", help="folder with data.noun, as /usr/share/wordnet")
    parser.add_argument("--out", required=True, help="JSON lines file, gzipped where it ends in .gz")
    given = parser.parse_args(arguments)
    with report_errors():
        pairs = noun_pairs(given.folder)
        # In the file's own order neighbours are of one kind, and so would be the lines that are held out.
        random.Random(SEED).shuffle(pairs)  # noqa: S311 - no secret
        text = "".join(json.dumps({"general": a, "specific": b}) + "\n" for a, b in pairs).encode()
        with atomic_write(given.out) as file:
            file.write(gzip.compress(text, mtime=0) if given.out.endswith(".gz") else text)
        sys.stdout.write(json.dumps({"out": given.out, "pairs": len(pairs)}) + "\n")


if __name__ == "__main__":
    main()
