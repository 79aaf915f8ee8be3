"""merge.py: shards give back the whole run, and nothing that is no shard of it goes in."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portable.conformance.cases.case import op_of
from portable.conformance.commands import cli
from portable.conformance.records import merge, record
from portable.conformance.records.merge import MergeError
from portable.conformance.records.schema import HEADER_FIELDS

from .sample_record import sample_record

WAIVERS = [
    {"where": "rocm/known_failures.yaml:3", "kind": "xfail", "used": 12},
    {"where": "rocm/known_failures.yaml:9", "kind": "waived", "used": 2},
]


def split(whole, count, timed=0):
    """The shards of a run by the cases' places, timings in the shard with index `timed`, and each use of a
    waiver in the next shard."""
    cases = list(dict.fromkeys(each["case"] for each in whole["results"]))
    shards = []
    for index in range(count):
        mine = set(cases[index::count])
        shard = copy.deepcopy(whole) | {
            "results": [each for each in whole["results"] if each["case"] in mine],
            "inputs": {case: digest for case, digest in whole["inputs"].items() if case in mine},
        }
        shard["header"]["fraction"] = [index + 1, count]
        shard["waivers"] = [
            entry | {"used": used}
            for entry in whole["waivers"]
            if (used := len(range(index, entry["used"], count)))
        ]
        if index != timed:
            shard |= {"timings": [], "roof": None}
        record.validate(shard)
        shards.append(shard)
    return shards


def content(made):
    """What a record says, whatever the order of its lines."""
    lists = {
        name: sorted(made[name], key=lambda each: sorted(map(str, each.items())))
        for name in ("results", "timings", "waivers")
    }
    return made | lists


def whole_run() -> dict[str, Any]:
    return sample_record() | {"waivers": copy.deepcopy(WAIVERS)}


@settings(deadline=None)
@given(st.integers(1, 9), st.data())
def test_the_shards_of_a_run_are_the_run(count, data):
    shards = split(whole_run(), count, timed=data.draw(st.integers(0, count - 1)))
    merged = merge.merge(data.draw(st.permutations(shards)))
    assert content(merged) == content(whole_run())
    assert record.text(merged) == record.text(merge.merge(shards))
    assert merge.notices(shards) == []


@settings(deadline=None)
@given(st.integers(2, 6), st.data())
def test_a_run_that_lacks_shards_is_incomplete_and_says_which(count, data):
    shards = split(whole_run(), count)
    held = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count - 1))
    picked = [shards[index] for index in sorted(held)]
    merged = merge.merge(picked)
    assert merged["header"]["complete"] is False
    assert merged["header"]["fraction"] == [min(held) + 1, count]
    assert merged["header"]["shards"] == [index + 1 for index in sorted(held)]
    assert not record.conforming(merged)
    missing = [index + 1 for index in range(count) if index not in held]
    (notice,) = merge.notices(picked)
    assert f"{', '.join(map(str, missing))} of {count}" in notice and "incomplete" in notice
    with pytest.raises(MergeError, match="merged already"):
        merge.merge([merged, shards[missing[0] - 1]])


def test_one_whole_record_stays_as_it_is():
    assert content(merge.merge([whole_run()])) == content(whole_run())


def test_an_interrupted_shard_makes_the_whole_incomplete():
    shards = split(whole_run(), 3)
    shards[1]["header"]["complete"] = False
    merged = merge.merge(shards)
    assert merged["header"]["fraction"] == [1, 1] and not merged["header"]["complete"]
    assert "shards" not in merged["header"]
    assert merge.notices(shards) == ["shard 2 of 3 was interrupted; the merged record is marked incomplete"]


def test_the_merged_header_has_every_command_and_the_first_date():
    shards = split(whole_run(), 2)
    for shard, date in zip(shards, ("2026-11-22", "2026-11-21"), strict=True):
        number = shard["header"]["fraction"][0]
        shard["header"] |= {"date": f"{date}T00:00:00+00:00", "command": f"run --fraction {number},2"}
    head = merge.merge(shards)["header"]
    assert head["date"].startswith("2026-11-21")
    assert head["command"] == "run --fraction 1,2; run --fraction 2,2"


def test_results_are_in_the_order_of_the_ops_then_of_the_cases():
    whole = whole_run()
    whole["header"]["selection"]["ops"] = ["softmax", "matmul"]
    found = [op_of(each["case"]) for each in merge.merge(split(whole, 2))["results"]]
    assert list(dict.fromkeys(found)) == ["softmax", "matmul", "softmax_backward"]


# Refusals -----------------------------------------------------------------------------------------

OTHERS = {
    "device": "NVIDIA H100", "vendor": "rocm", "arch": "sm_80", "emulated": True, "multiprocessors": 114,
    "driver": None, "toolkit": "12.8", "commit": "1" * 40, "dirty": True, "tier": "smoke",
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        *((name, value, f"{name} is .*{value!r}") for name, value in OTHERS.items()),
        ("versions", {"torch": "2.12.0"}, r"versions.torch is '2.11.0' and '2.12.0'"),
        ("specs", {"softmax": "d" * 16}, f"specs.softmax is '{'b' * 16}' and '{'d' * 16}'"),
        ("selection", {"k": "normal"}, "selection.k is None and 'normal'"),
    ],
)
def test_different_headers_are_refused_by_name_with_both_values(field, value, words):
    shards = split(whole_run(), 2)
    head = shards[1]["header"]
    head[field] = head[field] | value if isinstance(value, dict) else value
    with pytest.raises(MergeError, match=f"shards 1 and 2 are of different runs: {words}"):
        merge.merge(shards)


def test_every_field_that_must_be_the_same_is_tested():
    assert {*OTHERS, "versions", "specs", "selection"} == set(merge.SAME)
    assert set(merge.SAME) | {"command", "date", "fraction", "complete"} == set(HEADER_FIELDS)


def test_a_key_that_one_header_lacks_is_a_difference():
    shards = split(whole_run(), 2)
    del shards[1]["header"]["versions"]["cupy"]
    with pytest.raises(MergeError, match=r"versions.cupy is '14.2.0' and None"):
        merge.merge(shards)


def test_shards_of_different_splits_are_refused():
    with pytest.raises(MergeError, match="fraction is of 2 and of 3"):
        merge.merge([split(whole_run(), 2)[0], split(whole_run(), 3)[1]])


def test_a_shard_that_is_there_twice_is_refused():
    shards = split(whole_run(), 3)
    with pytest.raises(MergeError, match="shard 2 of 3 is there twice"):
        merge.merge([shards[1], shards[0], shards[1]])
    with pytest.raises(MergeError, match="shard 1 of 1 is there twice"):
        merge.merge([whole_run(), whole_run()])


@pytest.mark.parametrize("place", ["results", "timings"])
def test_overlapping_results_and_timings_are_refused(place):
    shards = split(whole_run(), 2)
    entry = shards[0][place][0]
    shards[1][place].append(dict(entry))
    with pytest.raises(MergeError, match=f"{place}: {entry['case']} on triton is in shards 1 and 2"):
        merge.merge(shards)
    shards[1][place].pop()
    shards[0][place].append(dict(entry))
    with pytest.raises(MergeError, match=f"{place}: {entry['case']} on triton is in shard 1, twice"):
        merge.merge(shards)


def test_inputs_are_united_where_they_are_equal_and_refused_where_not():
    shards = split(whole_run(), 2)
    case, digest = next(iter(shards[0]["inputs"].items()))
    shards[1]["inputs"][case] = digest
    assert content(merge.merge(shards)) == content(whole_run())
    shards[1]["inputs"][case] = "f" * 64
    with pytest.raises(MergeError, match=f"inputs: {case} had different inputs in two shards"):
        merge.merge(shards)


def test_two_roofs_are_refused_where_both_have_timings():
    shards = split(whole_run(), 2)
    assert merge.merge(shards)["roof"] == whole_run()["roof"]
    shards[1]["roof"] = {"copy_bytes_per_s": 1.0}
    assert merge.merge(shards)["roof"] == whole_run()["roof"]  # nothing was timed under the other
    shards[1]["timings"].append(shards[0]["timings"].pop())
    with pytest.raises(MergeError, match="roof: shards 1 and 2 measured different roofs"):
        merge.merge(shards)
    shards[1]["roof"] = shards[0]["roof"]
    assert content(merge.merge(shards)) == content(whole_run())


def test_nothing_is_no_run():
    with pytest.raises(MergeError, match="no record given"):
        merge.merge([])


def test_the_command(tmp_path, capsys):
    files = [tmp_path / f"{number}.json" for number in range(3)]
    for file, shard in zip(files, split(whole_run(), 3), strict=True):
        record.write(file, shard)
    out = tmp_path / "all.json"
    assert cli.main(["merge", str(out), *map(str, files)]) == 0
    assert content(record.read(out)) == content(whole_run())
    assert cli.main(["merge", str(out), *map(str, files[:2])]) == 1
    assert not record.read(out)["header"]["complete"]
    assert cli.main(["merge", str(out), str(files[0]), str(files[0])]) == 2
    assert "shard 1 of 3 is there twice" in capsys.readouterr().err
