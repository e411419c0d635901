"""Options are made of the fields of configurations."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from tmm_core import TMMConfig
from tmm_core.fields import field_types
from tmm_lab.cli import build_parser, main
from tmm_lab.cli.fields import add_fields, field_docstrings, given_fields, option_of
from tmm_lab.compare.options import ComparisonOptions
from tmm_lab.data.config import DataConfig
from tmm_lab.training.options import TrainingOptions

CONFIGURATIONS = (TMMConfig, TrainingOptions, DataConfig, ComparisonOptions)


def test_every_field_of_model_and_training_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = capsys.readouterr().out
    for cls in (TMMConfig, TrainingOptions, DataConfig):
        notes = field_docstrings(cls)
        for field in fields(cls):
            assert f"--{field.name.replace('_', '-')}" in shown
            assert notes[field.name].split()[0].strip("`") in shown


def test_fields_become_options() -> None:
    @dataclass
    class Example:
        n: int = 1
        x: float | None = None
        on: bool = True
        kind: Literal["a", "b"] = "a"

    parser = argparse.ArgumentParser()
    add_fields(parser, Example)
    assert given_fields(parser.parse_args([]), Example) == {}
    given = given_fields(parser.parse_args(["--n", "3", "--x", "0.5", "--no-on", "--kind", "b"]), Example)
    assert given == {"n": 3, "x": 0.5, "on": False, "kind": "b"}
    with pytest.raises(SystemExit):
        parser.parse_args(["--kind", "c"])


@pytest.mark.parametrize("cls", CONFIGURATIONS)
def test_a_number_out_of_its_bounds_is_refused_by_the_name_of_its_option(cls: type) -> None:
    bounded = {name: bounds for name, field in field_types(cls).items() for bounds in field.bounds}
    assert bounded
    for name, bounds in bounded.items():
        kind = field_types(cls)[name].types[0]
        wrong = [bounds.at_least - 1] if bounds.at_least is not None else [bounds.above]
        wrong += [] if bounds.below is None else [bounds.below]
        for value in wrong:
            with pytest.raises(ValueError, match=f"^{option_of(name)} must be (above|at least|below) "):
                given_fields(argparse.Namespace(**{name: kind(value)}), cls)


def parsers() -> dict[str, argparse.ArgumentParser]:
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices


def test_a_path_that_names_nothing_is_refused_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty one would be the current folder: a variable of the shell that is not set."""
    found = [(parser, action) for parser in parsers().values() for action in parser._actions]
    paths = [(parser, action) for parser, action in found if action.metavar in ("DIR", "FILE", "IN")]
    names = {action.option_strings[0] if action.option_strings else action.dest for _, action in paths}
    assert names == {"--from", "--out", "--plot", "--prompts", "--resume", "--text", "--tokenizer", "dir", "source"}
    assert not [action for _, action in found if action.type is Path]
    for parser, action in paths:
        for wrong, reason in (("", "the name is empty"), ("x" * 300, "cannot be used"), ("a\0b", "cannot be used")):
            with pytest.raises(argparse.ArgumentError, match=reason):
                parser._get_value(action, wrong)
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--out", ""])
    assert stopped.value.code == 2
    assert "error: argument --out: the name is empty: give that of a file or folder" in capsys.readouterr().err


def test_an_option_of_several_values_takes_them_together_or_one_by_one() -> None:
    def parsed(command: str, arguments: list[str]) -> dict[str, object]:
        """Parse by a new parser that asks for nothing else."""
        parser = parsers()[command]
        for part in (*parser._actions, *parser._mutually_exclusive_groups):
            part.required = False
        for place in (action for action in parser._actions if not action.option_strings):
            place.nargs, place.choices = "?", None
        return vars(parser.parse_args(arguments))

    found = [(command, action) for command, parser in parsers().items() for action in parser._actions]
    several = [(command, action) for command, action in found if action.option_strings and action.nargs in ("+", "*")]
    assert {"--text", "--lengths"} <= {option for _, action in several for option in action.option_strings}
    for command, action in several:
        option = action.option_strings[0]
        given = [option, "1", "2"], [option, "1", option, "2"]
        together, one_by_one = (parsed(command, each)[action.dest] for each in given)
        assert one_by_one == together
