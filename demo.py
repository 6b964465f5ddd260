"""The whole method on the built-in collection, one command after the other: `make demo`.

Every step is a command that can be copied from the screen. Ends with a table and the paths of what it left.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS, BATCH = 250, 512
PACKAGE = "numpy."
QUESTION = "how do I solve a system of linear equations?"
MODES = {"BM25 alone": "bm25", "Lorentz alone": "lorentz", "hybrid": "hybrid"}
SHOWN = ("ndcg@10", "map@100", "recall@100")


def run(*command: str) -> None:
    """Show a command and run it; stop the demo where it fails."""
    say(f"\n$ {shlex.join(command)}")
    program = sys.executable if command[0] == "python" else str(Path(sys.executable).with_name(command[0]))
    if subprocess.run([program, *command[1:]], check=False).returncode:
        say(f"demo: stopped at: {shlex.join(command)}")
        sys.exit(1)


def say(text: str) -> None:
    """Print at once, so that it stands before what the commands print."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def evaluate(name: str, mode: str, artifact: Path, out: Path) -> dict[str, Any]:
    """Score one mode on the test queries; returns what eval.run left, with the row's name."""
    folder = out / f"eval-{mode}"
    settings = [f"retrieval.mode={mode}", "experiment=hyte", f"artifact={artifact}", f"out={folder}"]
    run("python", "-m", "eval.run", f"collection={out / 'pydocs'}", *settings)
    return {"row": name, **json.loads((folder / "metrics.json").read_text())}


def write_notes(corpus: Path, folder: Path) -> None:
    """Write the documents of one package as text files, as a folder that a person might have."""
    folder.mkdir(parents=True, exist_ok=True)
    for line in corpus.read_text("utf-8").splitlines():
        document = json.loads(line)
        if document["_id"].startswith(PACKAGE):
            (folder / f"{document['_id']}.txt").write_text(f"{document['title']}\n\n{document['text']}\n", "utf-8")


def table(results: list[dict[str, Any]]) -> str:
    """The metrics as aligned rows."""
    head = f"{'':<14}" + "".join(f"{name:>12}" for name in (*SHOWN, "ms/query"))
    rows = [
        f"{each['row']:<14}" + "".join(f"{each[name]:>12.4f}" for name in SHOWN) + f"{each['ms_per_query']:>12.2f}"
        for each in results
    ]
    first = results[0]
    return "\n".join([f"pydocs: {first['docs']} documents, {first['queries']} test queries", head, *rows])


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser("demo.py", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("outputs/demo"), help="folder for all that it leaves")
    out = parser.parse_args().out
    started = time.perf_counter()
    collection, trained, artifact, notes, idx = (out / name for name in ("pydocs", "train", "artifact", "notes", "idx"))
    run("python", "-m", "eval.pydocs", "--out", str(collection))
    pairs = f"data.pairs=[{collection / 'train.jsonl.gz'}]"
    run("python", "-m", "training.train", pairs, f"steps={STEPS}", f"batch_size={BATCH}", f"out={trained}")
    run("python", "-m", "export.run", f"checkpoint={trained}", f"out={artifact}")
    results = [evaluate(name, mode, artifact, out) for name, mode in MODES.items()]
    (out / "metrics.json").write_text(json.dumps(results, indent=1) + "\n")
    write_notes(collection / "corpus.jsonl", notes)
    run("hyte", "index", str(notes), "--out", str(idx), "--artifact", str(artifact), "--replace")
    run("hyte", "search", str(idx), QUESTION, "-k", "3")
    say(f"\n{table(results)}\n\nin {time.perf_counter() - started:.0f} s; it left:")
    for path in (out / "metrics.json", trained / "checkpoint.safetensors", artifact, idx):
        say(f"  {path}")


if __name__ == "__main__":
    main()
