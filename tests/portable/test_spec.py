import copy
import inspect
import json
import pickle
import time
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from portable.errors import SpecError
from portable.spec import registry
from portable.spec.docs_page import page as page_of
from portable.spec.model import Axis
from portable.spec.reader import load_spec

TOY = """\
schema_version: 1
op: toy
summary: y = x * weight + shift.
axes: {N: 1..4096, M: 0..}
leading: broadcast
types:
  - {T: float16, R: float32, acc: float32}
  - {T: float32, R: float32, acc: float32}
inputs:
  x: {shape: ["...", M, N], dtype: T, layout: rows}
  other: {shape: ["...", N], dtype: T}
  weight: {shape: [N, 2], dtype: float32, layout: contiguous, optional: true}
params:
  mode: {type: choice, choices: [fast, slow]}
  dim: {type: axis, of: x, default: -1}
  shift: {type: float, default: 1e-6, keyword: true}
  exact: {type: bool, default: false, keyword: true}
  kind: {type: choice, choices: [up], default: null, keyword: true}
outputs:
  y: {shape: ["...", M, N], dtype: R}
  z: {shape: [N], dtype: R, when: weight}
reference: {entry: "reference.py:toy", error_scale: "reference.py:error_scale"}
gradient: "gradient.py"
autocast: widest
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: 4 + sqrt(N)}
  z: {result_ulp: 0.51, accumulation_ulp: 8}
cost: {flops: 2 * B * M * N, roof: vector, bytes: 4 * B * M * N}
cases:
  - {N: 3, M: 0, mode: fast}
  - {N: 4, M: 2, mode: slow, leading: {x: [2, 1], other: [3]}, absent: [weight], shift: 2}
demo: {N: 8, M: 8, mode: fast, leading: [4]}
bench:
  - {N: 4096, M: 1024, mode: fast}
implementations:
  - {name: cpp, plan: "native.py:plan", sources: [toy.cu], language: [one, two],
     requires: {arch: [g1, "g2*"], T: [float16], rules: ["N % 8 == 0 and mode == 'fast'"]},
     tunables: {BLOCK: [16, 32], FLAG: [a, b]},
     default: {BLOCK: 16, FLAG: b}}
  - {name: torch, run: "torch_impl.py:toy", language: torch}
"""
FILES = ("reference.py", "gradient.py", "native.py", "toy.cu", "torch_impl.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels" / "toy"
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text("")
    return folder


def load(folder: Path, text: str = TOY, **options):
    (folder / "spec.yaml").write_text(text)
    return load_spec(folder / "spec.yaml", **options)


def test_the_whole_schema_is_read(folder):
    spec = load(folder)
    assert (spec.op, spec.schema_version, spec.leading, spec.autocast) == ("toy", 1, "broadcast", "widest")
    assert spec.axes == {"N": Axis("N", 1, 4096), "M": Axis("M", 0, None)}
    assert 0 not in spec.axes["N"] and 4096 in spec.axes["N"] and 10**9 in spec.axes["M"]
    x, weight = spec.inputs["x"], spec.inputs["weight"]
    assert (x.dims, x.leading, x.layout, x.optional, x.rank) == (("M", "N"), True, "rows", False, 2)
    assert (weight.dims, weight.leading, weight.optional) == (("N", 2), False, True)
    assert x.shape_text == "[..., M, N]" and weight.shape_text == "[N, 2]"
    assert spec.outputs["z"].when == "weight" and spec.out is None
    assert spec.params["shift"].default == 1e-6 and spec.params["mode"].required
    assert spec.type_variables == ("T", "R")
    assert (
        spec.tolerance["y"].accumulation_ulp.evaluate(N=4) == 6.0
        and spec.tolerance["z"].accumulation_ulp.evaluate() == 8
    )
    assert spec.cost.flops.evaluate(B=2, M=3, N=4) == 48
    assert spec.cost.bytes is not None and spec.cost.bytes.evaluate(B=1, M=1, N=1) == 4
    assert spec.gradient == (folder / "gradient.py").resolve()
    scale = spec.reference.error_scale
    assert spec.reference.entry.function == "toy" and scale is not None and scale.function == "error_scale"
    native, through_torch = spec.implementations
    assert (native.kind, native.languages, native.line) == ("plan", ("one", "two"), 36)
    assert native.sources == ((folder / "toy.cu").resolve(),)
    assert native.requires.arch == ("g1", "g2*") and native.requires.types == {"T": ("float16",)}
    assert native.requires.rules[0].evaluate(N=8, mode="fast") is True
    assert native.tunables == {"BLOCK": (16, 32), "FLAG": ("a", "b")}
    assert native.default == {"BLOCK": 16, "FLAG": "b"}
    assert (through_torch.kind, through_torch.languages) == ("run", ("torch",))
    assert spec.implementation("torch") is through_torch and spec.implementation("none") is None


def test_cases(folder):
    first, second = load(folder).cases
    assert first.axes == {"N": 3, "M": 0} and first.leading == {"x": (), "other": ()} and first.batch == 1
    assert second.leading == {"x": (2, 1), "other": (3,)} and second.batch == 6
    assert second.absent == ("weight",) and second.params == {"mode": "slow", "shift": 2}
    assert first.label == "N3-M0-mode=fast"
    assert second.label == "N4-M2-x2x1-other3-mode=slow-shift=2-no_weight"


def test_signature(folder):
    spec = load(folder)
    assert str(spec.signature) == (
        "(x, other, mode, weight=None, dim=-1, *, shift=1e-06, exact=False, kind=None)"
    )
    parameters = spec.signature.parameters.values()
    required = [each.name for each in parameters if each.default is inspect.Parameter.empty]
    assert required == ["x", "other", "mode"]


def test_torch_takes_the_schema(folder):
    text = load(folder).torch_schema()
    assert text == (
        "toy(Tensor x, Tensor other, str mode, Tensor? weight=None, int dim=-1, *, "
        "float shift=1e-06, bool exact=False, str? kind=None) -> (Tensor, Tensor)"
    )
    torch._C.parse_schema("portable::" + text)


def test_types(folder):
    spec = load(folder)
    row = spec.match_types({"x": "float16", "other": "float16", "weight": "float32"})
    assert row is not None and row["R"] == "float32"
    assert spec.match_types({"x": "float16", "other": "float32"}) is None
    assert spec.match_types({"x": "float16", "weight": "float16"}) is None
    assert spec.legal_dtypes("x") == ("float16", "float32") and spec.legal_dtypes("weight") == ("float32",)


def test_what_parameters_accept(folder):
    params = load(folder).params
    assert params["kind"].accepts(None) and not params["mode"].accepts(None)
    assert params["mode"].accepts("fast") and not params["mode"].accepts("Fast")
    assert params["shift"].accepts(1) and params["shift"].accepts(1e-9)
    assert not params["shift"].accepts(True) and not params["shift"].accepts("1")
    assert params["dim"].accepts(-2) and not params["dim"].accepts(1.0) and not params["dim"].accepts(True)
    assert params["exact"].accepts(False) and not params["exact"].accepts(0)


def test_the_page_says_what_the_spec_says(folder):
    page = page_of(load(folder))
    pieces = [
        "# toy", "portable.toy(x, other, mode", "`[..., M, N]`", "| float16 | float32 | float32 |",
        "one of 'up', None", "`4 + sqrt(N)`", "| `cpp` | one, two | g1, g2*; T: float16;",
        "`ParameterError`", "empty if `weight` is None", "Leading dimensions (`...`) broadcast.",
    ]  # fmt: skip
    for piece in pieces:
        assert piece in page, piece
    assert "OutputError" not in page


def test_a_spec_can_be_pickled(folder):
    spec = load(folder)
    again = pickle.loads(pickle.dumps(spec))
    assert again.op == "toy" and again.cases == spec.cases and again.implementations == spec.implementations


# Each line: what to replace in TOY, with what, and what the message must say. The line of the error
# is that of the replaced text unless a number is given.
ROW = "{T: float32, R: float32, acc: float32}"
FIRST = "types:\n  - {T: float16,"
WRONG = [
    ("schema_version: 1", "schema_version: 2", "schema_version 2 is unknown"),
    ("schema_version: 1", "edition: 1", "'edition' in the spec is now called schema_version", 1),
    ("y: {result_ulp: 0.51,", "y: {result: 0.51,", "'result' in tolerance of y is now called result_ulp"),
    ("accumulation_ulp: 8", "sum: 8", "'sum' in tolerance of z is now called accumulation_ulp"),
    ("error_scale:", "magnitude:", "'magnitude' in reference is now called error_scale"),
    ("roof: vector", "peak: vector", "'peak' in cost is now called roof"),
    ("\nimplementations:", "\nboundary: []\nimplementations:", "now called behaviour_case (the first", 35),
    ("schema_version: 1", "schema_version: true", "\'schema_version\' of the spec must be an integer"),
    ("summary:", "sumary:", "unknown key 'sumary' in the spec. Did you mean 'summary'?"),
    ("op: toy", "op: tory", "folder is 'toy'"),
    ("op: toy", "op: my op", "not a usable Python name"),
    ("N: 1..4096", "N: 1-4096", "not a range"),
    ("N: 1..4096", "N: 5..4", "is empty"),
    ("N: 1..4096", "N: 7", "not a range"),
    ("N: 1..4096, M: 0..", "N: 1..4096, M: 0.., K: 0..", "no required input has the axis K"),
    ("N: 1..4096, M: 0..", "N: 1..4096, M: 0.., B: 0..", "'B' in axes is taken"),
    ("N: 1..4096, M: 0..", "N: 1..4096, M: 0.., sqrt: 0..", "a function in formulas"),
    ("leading: broadcast", "leading: brodcast", "legal are same, broadcast. Did you mean 'broadcast'?"),
    (ROW, "{T: float32, acc: float32}", "where the first has"),
    (ROW, "{T: float23, R: float32, acc: float32}", "Did you mean 'float32'?"),
    (ROW, "{T: float32, R: float32}", "lacks 'acc'"),
    (ROW, "{T: float16, R: float32, acc: float32}", "the same row"),
    (ROW, "{T: float16, R: float16, acc: float32}", "two rows of types agree", 6),
    (FIRST, "types:\n  - {T: half,", "'half' is not a dtype", 7),
    ("dtype: T, layout: rows", "dtype: W, layout: rows", "'W' is no type variable or dtype"),
    ("dtype: T, layout: rows", "dtype: T, layout: row", "Did you mean 'rows'?"),
    ("dtype: T, layout: rows", "dtype: T, layuot: rows", "Did you mean 'layout'?"),
    ('x: {shape: ["...", M, N]', 'x: {shape: ["...", M, P]', "'P' is not an axis"),
    ('x: {shape: ["...", M, N]', 'x: {shape: [M, "...", N]', "'...' may come first"),
    ('x: {shape: ["...", M, N]', "x: {shape: [M, N, -1]", "is not an axis or a size"),
    ('x: {shape: ["...", M, N]', 'x: {optional: true, shape: ["...", M, N]', "follows an optional one", 11),
    ("layout: contiguous, optional: true", "layout: contiguous, optional: 1", "must be true or false"),
    ("layout: contiguous, optional: true", "or: -1, optional: true", "'or' but no 'below'"),
    ("float32, layout: contiguous", "int32, below: N, or: shift", "'shift' is no parameter of type int"),
    ("  other: {", "  out: {", "'out' in inputs is taken"),
    ("  other: {", "  class: {", "not a usable Python name"),
    ("  other: {", "  float32: {", "the name of a dtype"),
    ("  other: {", "  mode: {", "'mode' in params is taken", 14),
    ("choices: [fast, slow]", "choices: [fast, 3]", "list of strings"),
    ("{type: choice, choices: [fast, slow]}", "{type: choice}", "needs 'choices'"),
    ("{type: choice, choices: [fast, slow]}", "{type: chioce, choices: [fast]}", "Did you mean 'choice'?"),
    ("{type: axis, of: x, default: -1}", "{type: axis, of: xx, default: -1}", "'xx' is not an input"),
    ("{type: axis, of: x, default: -1}", "{type: axis, default: -1}", "needs 'of'"),
    ("{type: axis, of: x, default: -1}", "{type: int, of: x, default: -1}", "cannot have 'of'"),
    ("default: 1e-6", "default: tiny", "default 'tiny' of shift is not a float"),
    ("default: false", "default: 0", "is not True or False"),
    ("dtype: R, when: weight", "dtype: R, when: x", "not an optional input"),
    ("dtype: R, when: weight", "dtype: R, out: true", "for ops with one output", 20),
    ("dtype: R, when: weight", "dtype: R, in_place: x", "in_place: 'x' needs 'out: true'"),
    ("dtype: R, when: weight", "dtype: R, like: wieght", "'wieght' is not a required input of as many"),
    ("dtype: R, when: weight", "dtype: R, like: weight", "'weight' is not a required input of as many"),
    ("reference.py:toy", "reference.py", "not of the form file.py:function"),
    ("reference.py:toy", "referense.py:toy", "no file 'referense.py'. Did you mean 'reference.py'?"),
    ("reference.py:toy", "/etc/x.py:toy", "outside the folder of kernels"),
    ("reference.py:toy", "../../x.py:toy", "outside the folder of kernels"),
    ("[toy.cu]", r'["t\0y.cu"]', "is no path: embedded null byte"),
    ("[toy.cu]", f"[{'x' * 5000}]", "is no path: File name too long"),
    ("[toy.cu]", "[ty.cu]", "no file 'ty.cu'. Did you mean 'toy.cu'?"),
    ('"gradient.py"', '"gradients.py"', "no file 'gradients.py'"),
    ('"native.py:plan"', '"natives.py:plan"', "no file 'natives.py'"),
    ("autocast: widest", "autocast: wide", "Did you mean 'widest'?"),
    ("4 + sqrt(N)", "4 + sqrt(n)", "unknown name 'n'"),
    ("4 + sqrt(N)", "4 + sqr(N)", "Did you mean 'sqrt'?"),
    ("y: {result_ulp: 0.51,", "y: {result_ulp: 0.4,", "is 0.4; expected 0, which demands every bit"),
    ("  z: {result_ulp: 0.51, accumulation_ulp: 8}\n", "", "output z has no tolerance", 26),
    ("  z: {result_ulp: 0.51", "  q: {result_ulp: 0.51", "'q' in tolerance is not an output"),
    ("flops: 2 *", "flop: 2 *", "Did you mean 'flops'?"),
    ("roof: vector", "roof: vectors", "Did you mean 'vector'?"),
    ("{N: 3, M: 0, mode: fast}", "{N: 0, M: 0, mode: fast}", "axis N is 0; legal is 1..4096"),
    ("{N: 3, M: 0, mode: fast}", "{N: 3, mode: fast}", "no size for axis M"),
    ("{N: 3, M: 0, mode: fast}", "{N: 3, M: 0}", "no value for mode"),
    ("{N: 3, M: 0, mode: fast}", "{N: 3, M: 0, mode: quick}", "mode is 'quick'"),
    ("{N: 3, M: 0, mode: fast}", "{N: 3, M: 0, mode: fast, leadign: [3]}", "Did you mean 'leading'?"),
    ("{N: 3, M: 0, mode: fast}", "{N: true, M: 0, mode: fast}", "axis N is True"),
    ("absent: [weight]", "absent: [x]", "not an optional input"),
    ("{x: [2, 1], other: [3]}", "{x: [2, 2], other: [3]}", "do not broadcast"),
    ("{x: [2, 1], other: [3]}", "{x: [2, 1], weight: [3]}", "no input with leading"),
    ("{x: [2, 1], other: [3]}", "[2, -1]", "a list of sizes"),
    ("demo: {N: 8", "demo: {N: 5000", "axis N is 5000"),
    ("bench:\n  - {N: 4096", "bench:\n  - {N: 4097", "axis N is 4097", 34),
    ("name: torch, run", "name: cpp, run", "two implementations are called 'cpp'"),
    ("name: torch, run", "name: a-b, run", "not a usable Python name"),
    ('name: torch, run: "torch_impl.py:toy"', "name: torch", "exactly one of 'plan' and 'run'"),
    ("language: torch", "languages: torch", "Did you mean 'language'?"),
    ("language: torch", "language: []", "list of strings"),
    ("arch: [g1,", "archs: [g1,", "Did you mean 'arch'?"),
    ("T: [float16], rules", "T: [float64], rules", "which no row of types has"),
    ("T: [float16], rules", "Q: [float16], rules", "unknown key 'Q' in requires"),
    ("N % 8 == 0 and", "n % 8 == 0 and", "unknown name 'n'"),
    ("BLOCK: [16, 32]", "BLOCK: [16, 16]", "distinct"),
    ("default: {BLOCK: 16", "default: {BLOCK: 17", "17 is not among 16, 32"),
    ("default: {BLOCK: 16", "default: {BLOK: 16", "Did you mean 'BLOCK'?"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "words", "line"), [(*each, 0)[:4] for each in WRONG],
                         ids=[each[1].strip().replace("\n", " ")[:40] for each in WRONG])  # fmt: skip
def test_wrong_specs_are_refused_with_line_and_nearest_key(folder, old, new, words, line):
    assert TOY.count(old) == 1, "the text to replace must be unique"
    with pytest.raises(SpecError) as caught:
        load(folder, TOY.replace(old, new))
    assert words in str(caught.value)
    assert caught.value.file == str(folder / "spec.yaml")
    assert caught.value.line == (line or TOY[: TOY.index(old)].count("\n") + 1)


@pytest.mark.parametrize("key", list(yaml.safe_load(TOY)))
def test_a_missing_key_is_named_or_has_a_default(folder, key):
    data = yaml.safe_load(TOY)
    del data[key]
    optional = {"leading", "gradient", "autocast", "demo", "bench", "params"}
    with pytest.raises(SpecError) as caught:
        load(folder, yaml.safe_dump(data, sort_keys=False))
        raise SpecError("", None, "read")
    if key in optional - {"leading", "params"}:
        assert caught.value.problem == "read"
    elif key not in optional:
        assert f"lacks the key {key!r}" in str(caught.value)


def test_files_may_be_checked_later(folder):
    (folder / "toy.cu").unlink()
    assert load(folder, files=False).implementations[0].sources
    with pytest.raises(SpecError, match=r"no file 'toy\.cu'"):
        load(folder)


def test_files_may_lie_in_folders_of_the_op(folder):
    (folder / "one").mkdir()
    (folder / "toy.cu").rename(folder / "one/toy.cu")
    text = TOY.replace("[toy.cu]", "[one/toy.cu]")
    assert load(folder, text).implementations[0].sources == ((folder / "one/toy.cu").resolve(),)
    with pytest.raises(SpecError, match=r"no file 'one/ty\.cu'\. Did you mean 'one/toy\.cu'"):
        load(folder, text.replace("one/toy.cu", "one/ty.cu"))


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False, allow_infinity=False),
    st.text("aN.*: /", max_size=5), st.lists(st.integers(0, 2), max_size=2), st.just([[]]), st.just({}),
    st.just({"N": [{}]}), st.just(["..."]), st.just("x.py:f"), st.just([{"T": {}}]),
)  # fmt: skip


def paths(data, prefix=()):
    yield prefix
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from paths(value, (*prefix, key))


@given(st.data())
def test_junk_anywhere_is_read_or_refused_with_one_error(tmp_path_factory, data):
    spec = copy.deepcopy(yaml.safe_load(TOY))
    *inner, last = data.draw(st.sampled_from(list(paths(spec))[1:]))
    target = spec
    for key in inner:
        target = target[key]
    target[last] = data.draw(JUNK)
    folder = tmp_path_factory.getbasetemp() / "junk" / "toy"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = load(folder, json.dumps(spec, indent=1), files=False)  # JSON is YAML, and quick to write
    except SpecError as error:
        assert error.line
        return
    _ = found.signature, found.torch_schema(), page_of(found)


@pytest.mark.parametrize("op", registry.op_folders())
def test_every_spec_of_the_package_is_complete(op):
    file = registry.op_folders()[op]
    spec = load_spec(file, backward=file.name == "spec.yaml" and op != file.parent.name)
    torch._C.parse_schema("portable::" + spec.torch_schema())
    assert page_of(spec).startswith(f"# {op}\n")
    labels = [case.label for case in spec.cases]
    assert len(set(labels)) == len(labels) > 0
    for implementation in spec.implementations:
        assert implementation.kind == ("run" if implementation.languages == ("torch",) else "plan")


def test_reading_is_quick():
    files = list(registry.op_folders().values())
    load_spec(files[0], files=False)
    started = time.process_time()
    for file in files:
        load_spec(file, files=False)
    assert (time.process_time() - started) / len(files) < 0.05


def test_a_tunable_may_have_no_default(folder):
    """Options of one vendor's compiler are given by its tuned entries alone."""
    spec = load(folder, TOY.replace("default: {BLOCK: 16, FLAG: b}", "default: {BLOCK: 16}"))
    assert "FLAG" not in next(i for i in spec.implementations if i.name == "cpp").default
