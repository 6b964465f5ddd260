"""The built wheel in an environment that holds the three declared dependencies and nothing else."""

import importlib.metadata
import json
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from hyte.encoder import WEIGHTS_FILE
from tests.conftest import ROOT, write_artifact

RUNTIME = ("numpy", "tokenizers", "PyStemmer")
HEAVY = ("torch", "scipy", "hydra", "onnx", "onnxruntime", "transformers", "geoopt", "datasets", "sklearn")


def run(*command: object) -> str:
    """What a command prints. It runs in the root folder, where nothing of the clone can be imported by chance."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True, cwd="/").stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, tiny_tokenizer_file) -> Path:
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    for folder in ("hyte", "training", "eval", "export", "conf", "tests"):
        shutil.copytree(ROOT / folder, clone / folder, ignore=shutil.ignore_patterns("__pycache__"))
    if not (clone / "hyte" / "assets" / WEIGHTS_FILE).exists():
        write_artifact(clone / "hyte" / "assets", tiny_tokenizer_file)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, clone)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    """A fresh environment with the wheel; the dependencies are linked into it, so that no network is needed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    for name in RUNTIME:
        for top in {file.parts[0] for file in importlib.metadata.files(name) if file.parts[0] != ".."}:
            source = Path(importlib.metadata.distribution(name).locate_file(top))
            if top != "__pycache__":
                (site / top).symlink_to(source)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hyte"}
    assert {"hyte/index.py", "hyte/nn/lorentz.py"} <= set(names)
    assert {f"hyte/assets/{name}" for name in ("weights.bin", "tokenizer.json", "README.md")} <= set(names)
    metadata = importlib.metadata.PathDistribution(zipfile.Path(wheel) / "hyte-0.1.0.dist-info")
    required = [line for line in metadata.requires if "extra ==" not in line]
    assert sorted(line.split(">")[0] for line in required) == sorted(RUNTIME)


def test_index_and_search_in_a_bare_environment(bare, tiny_artifact, tmp_path):
    (tmp_path / "a.txt").write_text("the blue sea")
    hyte, idx = bare / "bin" / "hyte", tmp_path / "idx"
    run(hyte, "index", tmp_path / "a.txt", "--out", idx, "--artifact", tiny_artifact)
    found = json.loads(run(hyte, "search", idx, "sea", "--json"))
    assert found["hits"][0]["path"] == str(tmp_path / "a.txt")
    for command in ("index", "add", "remove", "search", "info", "check"):
        assert f"usage: hyte {command}" in run(hyte, command, "--help")


def test_a_bare_environment_needs_no_artifact_and_its_index_outlives_a_move(bare, tmp_path):
    (tmp_path / "a.txt").write_text("the blue sea")
    hyte, idx = bare / "bin" / "hyte", tmp_path / "idx"
    run(hyte, "index", tmp_path / "a.txt", "--out", idx)
    facts = json.loads(run(hyte, "info", idx, "--json"))
    (assets,) = bare.glob("lib/python*/site-packages/hyte/assets")
    assert facts["artifact"] == str(assets.resolve())
    (package,) = bare.glob("lib/python*/site-packages/hyte")
    moved = tmp_path / "moved"
    shutil.copytree(package, moved / "hyte")
    hidden = package.with_name("hidden")
    package.rename(hidden)
    try:
        code = (
            f"import sys; sys.path.insert(0, {str(moved)!r}); from hyte.cli import main; sys.exit(main(sys.argv[1:]))"
        )
        found = json.loads(run(bare / "bin" / "python", "-c", code, "search", idx, "sea", "--json"))
    finally:
        hidden.rename(package)
    assert found["hits"][0]["path"] == str(tmp_path / "a.txt")
    assert found["hits"][0]["lorentz"] is not None


@pytest.mark.parametrize("python", ["bare", "full"])
def test_the_runtime_loads_no_heavy_package_even_where_they_are_installed(python, bare):
    code = f"import sys, hyte, hyte.cli; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(bare / "bin" / "python" if python == "bare" else sys.executable, "-c", code).strip() == "[]"
