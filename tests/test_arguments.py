"""Command lines of few settings: what does not fit is one line and exit code 2, before anything starts."""

import sys

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import export.run as exporting
from hyte.errors import InputError
from tests.conftest import ROOT
from training import mine, teacher
from training.arguments import arguments

COMMANDS = {"mine": mine, "teacher": teacher, "export": exporting}


def composed(name: str, *overrides: str):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, overrides=list(overrides))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_key_of_the_configuration_is_known_and_none_else(name):
    module = COMMANDS[name]
    config = composed(name, *(["checkpoint=run", "out=a"] if name == "export" else ["data.pairs=[a]"]))
    found = arguments(config, module.KEYS, module.OPTIONAL)
    assert found == {key: OmegaConf.select(config, key) for key in module.KEYS}
    assert set(module.OPTIONAL) <= module.KEYS.keys()


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("mine", "+seeds=3", r"unknown key seeds=3: there are data.pairs, artifact, out"),
        ("mine", "artifact=3", "artifact=3: expected text or null"),
        ("mine", "teacher=[a]", r"teacher=\['a'\]: expected text or null"),
        ("mine", "out=null", "out=null: expected text$"),
        ("mine", "count=2.5", "count=2.5: expected a whole number$"),
        ("mine", "margin=true", "margin=True: expected a number$"),
        ("mine", "data.pairs=null", "data.pairs=null: expected a list of file names"),
        ("mine", "data.pairs=[a,3]", r"data.pairs=\['a', 3\]: expected a list of file names"),
        ("mine", "data.weights={a:1}", r"data.weights=\{'a': 1\} is not used by this command: leave it null"),
        ("mine", "data.negatives=3", "data.negatives=3 is not used"),
        ("teacher", "data.columns={query:a}", "data.columns=.* is not used"),
        ("teacher", "data.query_tokens=5", "data.query_tokens=5 is not used"),
        ("teacher", "data.cache=a", "data.cache='a' is not used"),
        ("teacher", "+data.pear=3", "data.pear=3 is not used"),
        ("teacher", "model=5", "model=5: expected text or null"),
        ("teacher", "device=0", "device=0: expected text$"),
        ("teacher", "per_source=all", "per_source='all': expected a whole number or null"),
        ("export", "checkpoint=7", "checkpoint=7: expected text$"),
        ("export", "onnx=1", "onnx=1: expected true or false$"),
        ("export", "rows=null", "rows=null: expected text$"),
        ("export", "tokens.path=5", "tokens.path=5: expected text or null"),
        ("export", "+tokens.width=5", "unknown key tokens.width=5"),
    ],
)
def test_what_does_not_fit_is_named_with_its_value_and_what_is_expected(name, override, message):
    module, basic = COMMANDS[name], ["data.pairs=[a]"]
    if name == "export":
        basic = ["checkpoint=run", "out=a"]
    with pytest.raises(InputError, match=message):
        arguments(composed(name, *basic, override), module.KEYS, module.OPTIONAL)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_text_can_be_set_on_the_command_line(name):  # a folder of conf/ with a key's name would take it away
    module = COMMANDS[name]
    texts = [key for key, kind in module.KEYS.items() if kind is str and key != "tokens.name"]
    found = arguments(
        composed(name, *(f"{key}=./a" for key in texts), *(["data.pairs=[a]"] if name != "export" else [])),
        module.KEYS, module.OPTIONAL,
    )  # fmt: skip
    assert {found[key] for key in texts} == {"./a"}


def test_one_file_name_stands_for_a_list_and_a_whole_number_for_a_number():
    found = arguments(composed("mine", "data.pairs=a.jsonl", "margin=1"), mine.KEYS, mine.OPTIONAL)
    assert (found["data.pairs"], found["margin"]) == (["a.jsonl"], 1)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_say_so_in_one_line_with_code_2(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    basic = ["checkpoint=run"] if name == "export" else ["data.pairs=[a]"]
    monkeypatch.setattr(sys, "argv", [name, *basic, "out=null"])
    with pytest.raises(SystemExit) as stopped:
        COMMANDS[name].main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: out=null: expected text\n"
    assert not [*tmp_path.iterdir()]
