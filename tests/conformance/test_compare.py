"""compare.py: what counts as agreement between two records."""

import copy

import pytest

from portable.conformance import cli, compare, record


def made(tmp_path, device="NVIDIA H200", **changes):
    group = {
        "op": "softmax",
        "impl": "triton",
        "states": {"Pass": 2},
        "worst_ratio": 0.5,
        "worst_case": "softmax/a",
        "problems": [],
        "not_supported": {},
        "digests": {"softmax/a": "11", "softmax/b": "22"},
        "exact": ["softmax/b"],
    }
    group.update(changes)
    head = dict.fromkeys(("driver", "toolkit", "commit", "dirty"))
    head |= {"device": device, "vendor": "cuda", "arch": "sm_90", "emulated": False, "multiprocessors": 1}
    head |= {"versions": {"triton": "3.6.0"}, "command": "x", "date": "2026-01-01", "tier": "core"}
    inputs = {"softmax/a": {"x": "aa"}, "softmax/b": {"x": "bb"}}
    return record.build(head, [group], inputs, [])


def test_equal_records_agree(tmp_path):
    lines, agree = compare.report(made(tmp_path), made(tmp_path, device="emulated gfx942"))
    assert agree and "2 cases within both bounds, 2 of them bit-equal; 1 had to be." in lines[-1]


def test_a_rounding_difference_agrees_and_an_exact_case_may_not_differ(tmp_path):
    one = made(tmp_path)
    rounding = made(tmp_path, digests={"softmax/a": "99", "softmax/b": "22"})
    assert compare.report(one, rounding)[1]
    wrong = made(tmp_path, digests={"softmax/a": "11", "softmax/b": "99"})
    lines, agree = compare.report(one, wrong)
    assert not agree and any("softmax/b: must be bit-equal" in line for line in lines)


def test_a_side_that_fails_is_a_disagreement(tmp_path):
    problem = {"case": "softmax/a", "state": "Fail.value", "message": "m"}
    lines, agree = compare.report(made(tmp_path), made(tmp_path, problems=[problem]))
    assert not agree and any("softmax/a: Pass against Fail.value" in line for line in lines)
    warning = problem | {"state": "QualityWarning"}
    assert compare.report(made(tmp_path), made(tmp_path, problems=[warning]))[1]


def test_different_inputs_and_nothing_in_common_are_refused(tmp_path):
    other = copy.deepcopy(made(tmp_path))
    other["inputs"]["softmax/a"] = {"x": "cc"}
    with pytest.raises(compare.CompareError, match="softmax/a: the two runs had different inputs"):
        compare.report(made(tmp_path), other)
    with pytest.raises(compare.CompareError, match="no case"):
        compare.report(made(tmp_path), made(tmp_path, impl="native"))


def test_the_command(tmp_path, capsys):
    for name in ("a", "b"):
        record.write(tmp_path / f"{name}.json", made(tmp_path))
    assert cli.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "The two agree" in capsys.readouterr().out
    record.write(tmp_path / "b.json", made(tmp_path, digests={"softmax/a": "11", "softmax/b": "99"}))
    assert cli.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    assert cli.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "none.json")]) == 2
    assert "Traceback" not in capsys.readouterr().err
