"""`portable new-op`: what it writes and what it refuses."""

from __future__ import annotations

import pytest

from portable.commands import cli
from portable.spec.reader import load_spec


def new_op(folder, *arguments) -> int:
    return cli.main(["new-op", *arguments, "--at", str(folder)])


def test_the_folder_is_a_spec_that_reads(tmp_path, capsys):
    assert new_op(tmp_path, "scaled_add") == 0
    folder = tmp_path / "scaled_add"
    assert {each.name for each in folder.iterdir()} == {
        "spec.yaml", "reference.py", "triton_impl.py", "scaled_add.cu",
    }  # fmt: skip
    spec = load_spec(folder / "spec.yaml")
    assert spec.op == "scaled_add" and [each.name for each in spec.implementations] == [
        "cpp",
        "triton",
        "torch",
    ]
    out = capsys.readouterr().out
    assert str(folder / "spec.yaml") in out and f"PORTABLE_KERNEL_PATH={tmp_path.resolve()}" in out
    for file in folder.iterdir():
        assert "new_op" not in file.read_text(), file
        assert file.name == "spec.yaml" or f"fill in scaled_add/{file.name}" in file.read_text()


@pytest.mark.parametrize("like", ["swiglu", "softmax", "layer_norm"])
def test_a_copy_of_another_op_reads_as_well(tmp_path, like):
    assert new_op(tmp_path, "scaled_add", "--like", like) == 0
    folder = tmp_path / "scaled_add"
    for backward in (False, True):
        spec = load_spec(folder / "spec.yaml", backward=backward)
        assert spec.op == "scaled_add" + "_backward" * backward
    text = (folder / "spec.yaml").read_text()
    assert ("torch.softmax" in text) is (like == "softmax")
    assert (folder / "scaled_add.cu").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["2fast"], "'2fast' is no name for an op; write a Python name"),
        (["class"], "'class' is no name for an op"),
        (["_hidden"], "'_hidden' is no name for an op"),
        (["softmax"], "there is an op 'softmax' already, in "),
        (["softmax_backward"], "there is an op 'softmax_backward' already, in "),
        (["taken"], "taken is there already"),
        (["fine", "--like", "softmaxx"], "there is no op 'softmaxx' to copy; there are activation, "),
        (["fine", "--like", "attention"], "attention defines functions"),
        (["fine", "--like", "linear"], "linear cannot be copied there: "),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(tmp_path, capsys, arguments, sentence):
    (tmp_path / "taken").mkdir()
    assert new_op(tmp_path, *arguments) == 2
    assert f"portable new-op: {sentence}" in capsys.readouterr().err.replace(f"{tmp_path.resolve()}/", "")
    assert not (tmp_path / "fine").exists()


def test_a_folder_that_is_none_is_refused(tmp_path, capsys):
    assert new_op(tmp_path / "nowhere", "fine") == 2
    assert "nowhere is not a folder" in capsys.readouterr().err
