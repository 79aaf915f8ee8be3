"""submission.py: a valid package has no fault, every fault its sentence, and a hostile one does no harm."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import socket
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from portable.conformance.cases.case import op_of
from portable.conformance.commands import cli
from portable.conformance.records import record, submission
from portable.conformance.records.submission import STATEMENT, SUMS, SubmissionError
from portable.conformance.states import CONFORMING, STATES

from .sample_record import CASES, sample_record

WAIVER = {"where": "rocm/known_failures.yaml:3", "kind": "xfail", "used": 1}
GOOD = {
    "vendor": "Example Semiconductor",
    "product": "Example GPU 900",
    "device": "hardware",
    "kernel_changes": "none",
    "commit": "0" * 40,
    "clean": True,
    "manifest": True,
    "waivers": [],
}


@pytest.fixture(autouse=True)
def manifest(monkeypatch):
    """A stand-in for the manifests; `answer` is what it finds wrong with any record."""
    fake = types.SimpleNamespace(
        answer=[],
        faults=lambda made: list(fake.answer),
        read=lambda tier: dict.fromkeys(map(op_of, {"core": CASES, "full": CASES}[tier])),
    )
    monkeypatch.setattr(submission, "manifest", fake)
    return fake


def sample(**changes):
    """The sample with the digests of this suite's specs and results of all that the device can run."""
    made = sample_record(**changes)
    made["header"]["specs"] = {op: record.op_digest(op) for op in made["header"]["specs"]}
    for each in [each for each in made["results"] if each["impl"] == "triton"]:
        for impl in submission.can_run(made["header"], op_of(each["case"])):
            if impl not in ("triton", "torch"):
                made["results"].append(each | {"impl": impl})
    return made


def write(folder, made=None, statement=None, **files):
    """A package written by hand, its sums right whatever it holds; names in `files` have `__` for a dot."""
    folder.mkdir(exist_ok=True)
    made = sample() if made is None else made
    contents = {"record.json": made if isinstance(made, str) else record.text(made)}
    lines = {"schema_version": 1, **GOOD} if statement is None else statement
    if not isinstance(lines, str):
        lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
    contents |= {STATEMENT: lines} | {name.replace("__", "."): text for name, text in files.items()}
    for name, text in contents.items():
        (folder / name).write_text(text)
    seal(folder)
    return folder


def seal(folder):
    """Write SHA256SUMS anew."""
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(folder.iterdir())
        if file.name != SUMS and file.is_file()
    ]
    (folder / SUMS).write_text("".join(lines))


def faults(folder, *words):
    """The package's faults; each of `words` must be in one of them."""
    found = submission.verify(folder)
    for text in words:
        assert any(text in fault for fault in found), (text, found)
    assert all(fault.isprintable() for fault in found)
    return found


def only(folder, text):
    """The package has one fault, with this text in it."""
    (fault,) = faults(folder, text)
    return fault


# Valid packages -----------------------------------------------------------------------------------


def test_a_package_that_was_made_is_valid(tmp_path):
    record.write(tmp_path / "core.json", sample())
    assert submission.make(tmp_path / "package", [tmp_path / "core.json"], GOOD) == []
    assert sorted(file.name for file in (tmp_path / "package").iterdir()) == [SUMS, "core.json", STATEMENT]
    assert submission.check(tmp_path / "package") == (
        [], "Example Semiconductor, Example GPU 900: 1 record of NVIDIA H200, 38 results"
    )  # fmt: skip


def test_a_compressed_record_lies_in_a_package_as_json(tmp_path):
    record.write(tmp_path / "core.json.gz", sample())
    assert submission.make(tmp_path / "package", [tmp_path / "core.json.gz"], GOOD) == []
    assert json.loads((tmp_path / "package" / "core.json").read_text())["schema"] == record.SCHEMA


def test_sha256sum_reads_the_sums(tmp_path):
    import subprocess

    record.write(tmp_path / "core.json", sample())
    submission.make(tmp_path / "package", [tmp_path / "core.json"], GOOD)
    command = ["sha256sum", "--strict", "-c", SUMS]
    subprocess.run(command, cwd=tmp_path / "package", check=True, capture_output=True)


@pytest.mark.parametrize("product", ['GPU: "900" # x', "12e3", "yes", "カード 🚀", "back\\slash\ttab"])
def test_any_text_survives_the_statement(tmp_path, product):
    record.write(tmp_path / "core.json", sample())
    statement = GOOD | {"product": product}
    assert submission.make(tmp_path / "package", [tmp_path / "core.json"], statement) == []


def test_several_records_of_one_package(tmp_path):
    other = sample(device="NVIDIA B200", arch="sm_100", tier="full")
    folder = write(tmp_path / "p", b200__json=record.text(other))
    assert submission.check(folder)[0] == []
    assert "2 records of NVIDIA B200, NVIDIA H200, 61 results" in submission.check(folder)[1]


def test_a_statement_by_hand_in_yaml(tmp_path):
    text = f"""
schema_version: 1
vendor: Example Semiconductor
product: Example GPU 900
device: hardware
kernel_changes: the tile of matmul's mma is 64 x 64   # a comment
commit: "{"0" * 40}"
clean: true
manifest: true
waivers:
  - where: rocm/known_failures.yaml:3
    reason: subnormals are lost by the matrix unit
"""
    made = sample()
    made["results"][0]["state"] = "XFail"
    assert faults(write(tmp_path / "p", made | {"waivers": [WAIVER]}, text)) == []


def test_the_documentations_statement_is_valid():
    page = Path(__file__).resolve().parents[2] / "docs" / "submission.md"
    (block,) = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    statement, found = submission._statement(block.encode())
    assert found == [] and statement is not None and list(statement) == list(submission.FIELDS)


def test_the_command(tmp_path, capsys):
    assert cli.main(["verify-submission", str(write(tmp_path / "p"))]) == 0
    assert "a valid submission" in capsys.readouterr().out
    (tmp_path / "p" / "run.sh").write_text("exit 1")
    assert cli.main(["verify-submission", str(tmp_path / "p")]) == 1
    assert capsys.readouterr().out.startswith("run.sh: unknown file")
    assert cli.main(["verify-submission", str(tmp_path / "none")]) == 2


def test_an_emulated_package(tmp_path):
    made = sample(device="emulated gfx942", vendor="rocm", arch="gfx942", emulated=True)
    made |= {"timings": [], "roof": None}
    assert faults(write(tmp_path / "p", made, {"schema_version": 1, **GOOD, "device": "emulated"})) == []


# Making -------------------------------------------------------------------------------------------


def test_make_refuses_what_is_no_record_and_never_writes_over_a_folder(tmp_path):
    record.write(tmp_path / "core.json", sample())
    (tmp_path / "bad.json").write_text("{}")
    for records, error in (
        ([tmp_path / "core.txt"], SubmissionError),
        ([], SubmissionError),
        ([tmp_path / "core.json", tmp_path / "core.json"], SubmissionError),
        ([tmp_path / "bad.json"], record.RecordError),
    ):
        with pytest.raises(error):
            submission.make(tmp_path / "package", records, GOOD)
        assert not (tmp_path / "package").exists()
    (tmp_path / "package").mkdir()
    with pytest.raises(FileExistsError):
        submission.make(tmp_path / "package", [tmp_path / "core.json"], GOOD)


# The folder ---------------------------------------------------------------------------------------


def test_no_folder_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        submission.verify(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        submission.verify(tmp_path / "file")


@pytest.mark.parametrize(
    "name", ["run.sh", "record.JSON", ".json", "-x.json", "a b.json", "a\nb.json", "x" * 99 + ".json"]
)
def test_an_unknown_file(tmp_path, name):
    folder = write(tmp_path / "p")
    (folder / name).write_text("{}")
    assert "unknown file" in only(folder, "unknown file") and "\n" not in only(folder, "unknown file")


@pytest.mark.parametrize("name", [SUMS, STATEMENT, "record.json"])
def test_a_missing_file(tmp_path, name):
    folder = write(tmp_path / "p")
    (folder / name).unlink()
    faults(folder, f"{name}: missing")


def test_an_empty_folder(tmp_path):
    found = faults(tmp_path, "SHA256SUMS: missing", "statement.yaml: missing", "record.json: missing")
    assert len(found) == 3


@pytest.mark.parametrize("name", ["record.json", "more.json", STATEMENT, SUMS, "x"])
def test_links_folders_and_devices_are_refused_and_not_followed(tmp_path, name):
    outside = write(tmp_path / "outside")
    source = outside / (name if (outside / name).exists() else "record.json")
    for make, words in (
        (lambda place: place.symlink_to(source), "a link"),
        (lambda place: place.symlink_to(tmp_path / "nowhere"), "a link"),
        (lambda place: place.mkdir(), "a folder"),
        (os.mkfifo, "no regular file"),
    ):
        folder = write(tmp_path / f"p{len(list(tmp_path.iterdir()))}")
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        found = faults(folder, f"{name}: {words}")
        assert not any("missing" in fault for fault in found if fault.startswith((STATEMENT, SUMS)))


def test_a_socket_is_refused(tmp_path, monkeypatch):
    folder = write(tmp_path / "p")
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("more.json")
        faults(folder, "more.json: no regular file")


def test_huge_files_and_many_files_are_not_read(tmp_path, monkeypatch):
    folder = write(tmp_path / "p")
    os.truncate(folder / "record.json", submission.MAX_RECORD + 1)  # sparse
    faults(folder, "record.json: larger than 32768 KiB")
    os.truncate(folder / SUMS, submission.MAX_TEXT + 1)
    os.truncate(folder / STATEMENT, submission.MAX_TEXT + 1)
    faults(folder, f"{SUMS}: larger than 64 KiB", f"{STATEMENT}: larger than 64 KiB")
    for number in range(submission.MAX_FILES):
        (folder / f"{number}.json").write_text("{}")
    monkeypatch.setattr(submission, "_content", None)  # nothing may be opened
    only(folder, "more than 32 files")


# The sums -----------------------------------------------------------------------------------------


def test_a_file_that_was_changed_afterwards(tmp_path):
    folder = write(tmp_path / "p")
    text = (folder / "record.json").read_text()
    (folder / "record.json").write_text(text.replace("worst", "worst "[:5]) + "\n")
    only(folder, f"{SUMS}: line 1: record.json has another sum")


def test_a_file_without_a_line(tmp_path):
    folder = write(tmp_path / "p")
    lines = (folder / SUMS).read_text().splitlines(keepends=True)
    (folder / SUMS).write_text(lines[0])
    only(folder, f"{SUMS}: {STATEMENT} has no line")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0" * 64 + "  ../record.json", "is no name of a file of this package"),
        ("0" * 64 + "  /etc/hostname", "is no name of a file of this package"),
        ("0" * 64 + "  sub/record.json", "is no name of a file of this package"),
        ("0" * 64 + "  ..", "is no name of a file of this package"),
        ("0" * 64 + "  SHA256SUMS", "is no name of a file of this package"),
        ("0" * 64 + "  gone.json", "gone.json is not in the package"),
        ("0" * 64 + "  record.json", "record.json is there twice"),
        ("0" * 63 + "  record.json", "expected 64 hexadecimal digits"),
        ("A" * 64 + "  record.json", "expected 64 hexadecimal digits"),
        ("", "expected 64 hexadecimal digits"),
        ("\x1b[31m", "expected 64 hexadecimal digits"),
    ],
)
def test_a_line_that_does_not_belong(tmp_path, line, words):
    folder = write(tmp_path / "p")
    with (folder / SUMS).open("a") as file:
        file.write(line + "\n")
    assert "line 3" in only(folder, words)


# The statement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", submission.FIELDS)
def test_every_key_of_the_statement_is_needed(tmp_path, key):
    lines = {name: value for name, value in {"schema_version": 1, **GOOD}.items() if name != key}
    only(write(tmp_path / "p", statement=lines), f"{STATEMENT}: {key} is missing; expected")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema_version", 2), ("schema_version", True), ("schema_version", "1"), ("vendor", ""),
        ("vendor", 7), ("product", " "),
        ("product", None), ("device", "real"), ("kernel_changes", []), ("commit", "main"),
        ("commit", "0" * 39), ("commit", "G" * 40), ("clean", False), ("clean", "true"), ("clean", 1),
        ("manifest", False), ("manifest", None), ("waivers", None), ("waivers", {}), ("waivers", ["x"]),
        ("waivers", [{"where": "x"}]), ("waivers", [{"where": "x", "reason": ""}]),
        ("waivers", [{"where": "x", "reason": 3}]), ("waivers", [{"where": "x", "reason": "y", "who": "z"}]),
    ],
)  # fmt: skip
def test_a_wrong_value_in_the_statement(tmp_path, key, value):
    fault = only(write(tmp_path / "p", statement={"schema_version": 1, **GOOD, key: value}), f"{key} is ")
    assert re.match(rf"{STATEMENT}: line \d+: ", fault) and submission.FIELDS[key] in fault


def test_an_unknown_key_of_the_statement(tmp_path):
    folder = write(tmp_path / "p", statement={"schema_version": 1, **GOOD, "comit": "x"})
    only(folder, f"{STATEMENT}: line 10: unknown key 'comit'. Did you mean 'commit'?")


@pytest.mark.parametrize(
    "text",
    [
        "- 1\n", "", "vendor: [\n", "a: &x 1\nb: *x\n", "a: !!python/object:os.system x\n", "a: 1\na: 2\n",
        "clean: yes\n", "[" * 100, "a: \x00\n",
    ],
)  # fmt: skip
def test_a_statement_that_is_no_plain_mapping(tmp_path, text):
    fault = only(write(tmp_path / "p", statement=text), STATEMENT)
    assert re.match(rf"{STATEMENT}: (line \d+: |expected a mapping)", fault)


def test_a_statement_that_is_not_utf8(tmp_path):
    folder = write(tmp_path / "p")
    (folder / STATEMENT).write_bytes(b"vendor: \xff\n")
    seal(folder)
    only(folder, "not UTF-8")


def test_a_package_names_no_person(tmp_path):
    only(
        write(tmp_path / "p", statement={"schema_version": 1, **GOOD, "vendor": "X, jane@example.com"}),
        "e-mail",
    )
    waivers = [{"where": WAIVER["where"], "reason": "ask joe@example.com"}]
    lines = {"schema_version": 1, **GOOD, "waivers": waivers}
    only(write(tmp_path / "q", sample() | {"waivers": [WAIVER]}, lines), "e-mail")


# The records --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no valid record"),
        ("[]", "expected an object"),
        ("[" * 100_000, "no valid record"),
        ('{"schema": ' + "1" * 5000 + "}", "no valid record"),
        ('{"schema": 2}', "this program reads versions 3 and 4, the record has 2"),
        ('{"schema": 3, "schema": 3}', "the key 'schema' is in one object twice"),
        ('{"schema": NaN}', "NaN is not JSON"),
        ("\x1b[2J", "no valid record"),
    ],
)
def test_a_record_that_is_none(tmp_path, text, words):
    only(write(tmp_path / "p", text), words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"complete": False}, "incomplete: the run was interrupted"),
        ({"tier": "smoke"}, "tier 'smoke'; a package needs core or full"),
        ({"tier": "mine"}, "header.tier: 'mine' is none of smoke, core, full"),
        ({"fraction": [2, 3]}, "fraction 2 of 3; run `portable-conformance merge` over all 3 shards"),
        ({"dirty": True}, "the source differed from the commit"),
        ({"dirty": None}, "the source is not known to be the commit's"),
        ({"commit": None}, "no commit; run from a git checkout"),
        ({"commit": "1" * 40}, f"of commit {'1' * 40}, and the statement says {'0' * 40}"),
        ({"emulated": True, "device": "emulated gfx942"}, "emulated gfx942 is emulated, and the statement"),
        ({"device": "emulated gfx942"}, "emulated gfx942 is emulated, and the statement says hardware"),
        ({"selection": {"ops": [], "impls": ["triton"], "k": None}}, "only selected cases were run (--impl)"),
        ({"selection": {"ops": [], "impls": None, "k": "normal"}}, "only selected cases were run (-k)"),
    ],
)
def test_a_header_that_does_not_do(tmp_path, changes, words):
    made = sample(**changes)
    if made["header"]["emulated"]:
        made |= {"timings": [], "roof": None}
    assert only(write(tmp_path / "p", made), words).startswith("record.json: ")


def test_a_gpu_declared_as_emulated(tmp_path):
    lines = {"schema_version": 1, **GOOD, "device": "emulated"}
    only(write(tmp_path / "p", statement=lines), "is no emulated device")


def test_an_emulated_device_tells_no_time(tmp_path):
    made = sample(device="emulated gfx942", emulated=True)
    lines = {"schema_version": 1, **GOOD, "device": "emulated"}
    only(write(tmp_path / "p", made, lines), "an emulated device has no timings")


def change(made, case=CASES[0], **fields):
    made = copy.deepcopy(made)
    made["results"][[each["case"] for each in made["results"]].index(case)].update(fields)
    return made


@pytest.mark.parametrize("state", sorted(set(STATES) - CONFORMING))
def test_a_record_that_does_not_conform(tmp_path, state):
    fault = only(write(tmp_path / "p", change(sample(), state=state)), "does not conform")
    assert f"{CASES[0]} on triton is {state}" in fault


def test_many_failures_are_counted(tmp_path):
    made = sample()
    for each in made["results"]:
        each["state"] = "Fail.value"
    found = faults(write(tmp_path / "p", made), "does not conform: 35 more")
    assert len(found) == 4


def test_a_timing_above_the_roof(tmp_path):
    made = sample()
    made["timings"][0]["state"] = "InternalError"
    only(write(tmp_path / "p", made), "a timing does not conform: matmul")


@pytest.mark.parametrize("worst", [1.5, "nan"])
def test_a_pass_outside_its_bound(tmp_path, worst):
    only(write(tmp_path / "p", change(sample(), worst=worst)), f"|error| / bound {worst}")


def test_a_case_without_its_inputs(tmp_path):
    made = sample()
    del made["inputs"][CASES[0]]
    faults(write(tmp_path / "p", made), f"no hash of its inputs: {CASES[0]}")


def test_a_spec_that_is_not_this_suites(tmp_path):
    made = sample()
    made["header"]["specs"]["matmul"] = "a" * 16
    only(write(tmp_path / "p", made), "matmul: its spec differs from this suite's (aaaa")
    del made["header"]["specs"]["matmul"]
    only(write(tmp_path / "q", made), "matmul: the header has no digest of its spec")
    made = sample()
    made["results"][-1] = {"case": "acme/behaviour/x", "impl": "triton", "state": "Pass"}
    made["header"]["specs"]["acme"] = "a" * 16
    only(write(tmp_path / "r", made), "acme: no op of this suite")


def test_waivers_are_the_same_in_the_record_and_in_the_statement(tmp_path):
    made = change(sample(), state="XFail") | {"waivers": [WAIVER]}
    only(write(tmp_path / "a", made), "the waiver rocm/known_failures.yaml:3 was used 1 times and is not in")
    stated = {"schema_version": 1, **GOOD, "waivers": [{"where": WAIVER["where"], "reason": "known"}]}
    assert faults(write(tmp_path / "b", made, stated)) == []
    only(write(tmp_path / "c", sample(), stated), "the waiver rocm/known_failures.yaml:3 is in no record")
    only(write(tmp_path / "d", change(sample(), state="Waived")), "1 results are XFail or Waived")


def test_the_manifest(tmp_path, manifest):
    manifest.answer = ["matmul/x on triton was not run."]
    only(write(tmp_path / "p"), "record.json: the manifest: matmul/x on triton was not run.")
    manifest.answer *= 100
    assert len(faults(write(tmp_path / "p"), "the manifest: 97 more")) == 4

    def broken(made):
        raise KeyError("tier")

    manifest.faults = broken
    only(write(tmp_path / "q"), "cannot be held against the manifest: KeyError")


def test_a_tier_is_no_path(tmp_path, manifest):
    manifest.read = manifest.faults = None  # neither may be called
    only(write(tmp_path / "p", sample(tier="../core")), "header.tier: '../core' is none of")


def test_every_op_and_every_implementation_must_have_run(tmp_path):
    made = sample()
    made["results"] = [each for each in made["results"] if op_of(each["case"]) != "softmax"]
    only(write(tmp_path / "p", made), "softmax: no results; every op of the tier must run")
    made = sample()
    made["results"] = [each for each in made["results"] if each["impl"] not in ("mma", "wgmma")]
    only(write(tmp_path / "q", made), "matmul: no results of wgmma, mma, which sm_90a can run")


@pytest.mark.parametrize(
    ("vendor", "arch", "emulated", "names"),
    [
        ("cuda", "sm_90a", False, "skinny splitk wgmma realigned bf16x6 mma simt triton torch"),
        ("cuda", "sm_80", False, "mma simt triton torch"),
        ("rocm", "gfx942", False, "mfma_splitk mfma simt triton torch"),
        ("rocm", "gfx1100", True, "wmma simt triton"),
        ("cpu", "x86_64", False, "torch"),
    ],
)
def test_what_a_device_can_run(vendor, arch, emulated, names):
    head = {"vendor": vendor, "arch": arch, "emulated": emulated}
    assert submission.can_run(head, "matmul") == names.split()


def test_an_unknown_vendor_or_architecture(tmp_path):
    for field in ("vendor", "arch"):
        made = sample()
        made["header"][field] = "acme"
        only(write(tmp_path / field, made), "cannot be held against the manifest")


def test_the_real_manifest_is_checked(tmp_path, monkeypatch):
    """The sample holds six cases; the manifest of tier core has thousands."""
    monkeypatch.undo()
    assert faults(write(tmp_path / "p"), "record.json: swiglu: no results", "the manifest: ")


def test_control_characters_are_not_printed(tmp_path):
    made = change(sample(), impl="\x1b[31m\n\u202e", state="Crash")
    found = faults(write(tmp_path / "p", made), "does not")
    assert "\\x1b[31m\\n\\u202e" in found[0]
    made = sample(device="H\x1b]0;x\x07")
    assert submission.check(write(tmp_path / "q", made))[1].isprintable()
    long = change(sample(), impl="x" * 5000, state="Crash")
    assert all(len(each) <= submission.LONGEST for each in faults(write(tmp_path / "r", long)))


# Anything -----------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**30) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def spots(value, path=()):
    yield path
    children = enumerate(value) if isinstance(value, list) else ()
    for key, child in value.items() if isinstance(value, dict) else children:
        yield from spots(child, (*path, key))


SPOTS = [path for path in spots(sample_record()) if path]


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SPOTS), JSON)
def test_a_record_of_anything_never_raises(tmp_path, path, value):
    made = sample_record()
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    submission.verify(write(tmp_path / "p", json.dumps(made)))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.sampled_from(["record.json", STATEMENT, SUMS]))
def test_files_of_anything_never_raise(tmp_path, content, name):
    folder = write(tmp_path / "p")
    (folder / name).write_bytes(content)
    assert faults(folder)
