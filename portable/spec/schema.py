"""The schema of a spec file, once: every key, the kind of its value, what it means and an example.

`portable.spec.reader` checks files against it and `docs/spec.md` is written from it.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Key:
    """One legal key: a kind of KINDS, what it means, an example of its value."""

    kind: str
    meaning: str
    example: str
    required: bool = False


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "an integer"),
    "number": ((int, float), "a number"),
    "str": ((str,), "a string"),
    "bool": ((bool,), "true or false"),
    "list": ((list,), "a list"),
    "map": ((dict,), "a mapping"),
    "str|map": ((str, dict), "a string or a mapping"),
    "str|list": ((str, list), "a string or a list of strings"),
    "int|str": ((int, str), "a size or the name of an axis"),
    "formula": ((str, int, float), "a formula"),
    "any": ((), "any value"),
}

SPEC = {
    "schema_version": Key("int", "The version of this schema.", "1", True),
    "extends": Key(
        "str",
        "Another spec file of the folder, for an internal op: `axes`, `leading`, `types`, `params`, "
        "`rules` and "
        "`bench` are that file's where this one does not give them.",
        "spec.yaml",
    ),
    "op": Key("str", "The op's name; in `spec.yaml` it is the folder's.", "scale", True),
    "summary": Key("str", "What the op computes, in a sentence.", "y = x * weight.", True),
    "axes": Key(
        "map",
        "The named extents of the tensors and their legal sizes, both ends included. A required input must "
        "have each of them. Formulas may name them.",
        "{M: 0.., N: 1..65536}",
        True,
    ),
    "leading": Key(
        "str",
        "`same`: the inputs with `...` have the same leading dimensions. `broadcast`: theirs "
        "broadcast as in "
        "torch. Formulas name the number of leading elements B.",
        "broadcast",
    ),
    "types": Key(
        "list",
        "The legal combinations of dtypes, one row each: a dtype per type variable, and `acc`, the "
        "type that the "
        "op accumulates in. The dtypes of the inputs must identify the row.",
        "[{T: bfloat16, acc: float32}, {T: float32, acc: float32}]",
        True,
    ),
    "inputs": Key("map", "The tensors that go in, in the order of a call.", "{x: {...}}", True),
    "params": Key("map", "The numbers and words that go in.", "{eps: {type: float, default: 1.0e-6}}"),
    "outputs": Key(
        "map",
        "The tensors that come out, in their order. An op that only writes its mutated inputs has none, and "
        "returns None.",
        "{y: {...}}",
    ),
    "rules": Key("list", "What must hold of every call beyond its shapes.", "[{that: ..., says: ...}]"),
    "reference": Key("map", "The op's meaning, in float64.", '{entry: "reference.py:scale"}', True),
    "gradient": Key(
        "str|map",
        "How the op is differentiated: a Python file with `save` and `backward`, or a mapping that "
        "names the internal op which computes the gradients. With a section `backward`, `{}` is the default. "
        "Without either, torch differentiates the `torch` implementation, as it does for tangents and second "
        "derivatives.",
        "{op: scale_backward}",
    ),
    "torch_form": Key(
        "str",
        "A function of the arguments of torch's own function which returns this op's by name; calls in "
        "that form are accepted too.",
        "torch_form.py:scale",
    ),
    "autocast": Key(
        "str",
        "What autocast does to the inputs: `lower` converts them to its dtype, `float32` to "
        "float32, `widest` to "
        "the widest of theirs, `none` nothing.",
        "lower",
    ),
    "tolerance": Key(
        "map",
        "The error bound of every output and mutated input. Those of integers have none: they must be equal.",
        "{y: {...}}",
    ),
    "cost": Key("map", "The work of one call.", '{flops: "5 * B * N", roof: vector}', True),
    "cases": Key(
        "list", "Calls that the suite must judge: sizes, parameters.", "[{N: 33, leading: [3, 5]}]", True
    ),
    "behaviour_case": Key(
        "map",
        "The sizes of the calls on other streams, devices and threads, in graphs, and so on, where "
        "equal sizes in "
        "all axes make no call.",
        "{H: 4, G: 2, N: 65}",
    ),
    "latency_case": Key(
        "map", "The sizes of the small call whose host cost is timed.", "{H: 2, G: 2, N: 64}"
    ),
    "boundary_cases": Key(
        "list",
        "With the two cases above, the shapes at the edges of tiles, in the place of those that the suite "
        "generates.",
        "[{H: 3, G: 1, N: 0}]",
    ),
    "probes": Key("str", "A Python file of cases whose answers are known exactly.", "probes.py"),
    "demo": Key("map", "The call that `make demo` shows.", "{N: 4096, leading: [512]}"),
    "bench": Key("list", "The calls that are timed.", "[{N: 4096, leading: [16384]}]"),
    "functions": Key(
        "list", "What people call in the op's place, as `portable.<function>`.", '["api.py:scale"]'
    ),
    "implementations": Key(
        "list",
        "The ways to compute the op in order of preference; the first that takes the call runs.",
        "[{name: torch, run: reference, language: torch}]",
        True,
    ),
    "backward": Key(
        "map",
        "The spec of the internal op `<op>_backward`, with the keys of a spec. It takes `axes`, "
        "`leading`, `types`, "
        "`params`, `rules` and `bench` from the op where it does not give them.",
        "{summary: ..., inputs: {dy: {...}}, ...}",
    ),
}

INPUT = {
    "shape": Key(
        "list",
        'Axes, sizes, and formulas of axes; "..." first stands for leading dimensions.',
        '["...", M, "ceildiv(K, 128)"]',
        True,
    ),
    "dtype": Key("str", "A type variable of `types`, or a dtype.", "T", True),
    "layout": Key(
        "str",
        "What memory order the kernels get: `rows` and `unit` (the last axis has stride 1), "
        "`matrix` (one of the "
        "last two has), `contiguous`, `any`. Other tensors are copied first.",
        "rows",
    ),
    "optional": Key("bool", "Whether the input may be None.", "true"),
    "below": Key("int|str", "For an index: every value is at least 0 and below this size or axis.", "V"),
    "or": Key(
        "int|str",
        "Of an index with `below`: one more legal value, which stands for none: a number or a parameter of "
        "type `int`.",
        "ignore_index",
    ),
    "squeeze": Key(
        "str",
        "An axis that a tensor may lack, with all leading dimensions: it counts as 1, and the outputs come "
        "without it, as with torch's vectors in a product of matrices.",
        "M",
    ),
    "derived": Key(
        "str",
        "For the suite: a function of the other inputs that makes this one, where not any numbers "
        "make sense.",
        '"reference.py:derived"',
    ),
    "values": Key(
        "map",
        "For the suite: the value class that the input takes in the place of another; `others` stands for "
        "those not named.",
        "{nonfinite: normal}",
    ),
    "gradient": Key(
        "bool",
        "Whether the op has a gradient with respect to it (true); where not, one that is asked for is an "
        "UnsupportedGradientError.",
        "false",
    ),
    "mutated": Key(
        "bool",
        "Whether the op writes the tensor in place. Its layout is `any`, as no copy could be written, and it "
        "has no gradient. `reference` returns its new contents, and `tolerance` bounds them, after those of "
        "the outputs; what the reference leaves as it was must keep its bits.",
        "true",
    ),
}

OUTPUT = {
    "shape": Key("list", "As of an input.", '["...", M, N]', True),
    "dtype": Key("str", "As of an input.", "R", True),
    "out": Key("bool", "Whether a caller may pass the tensor as `out=`; for ops of one output.", "true"),
    "in_place": Key(
        "str",
        "With `out: true`, an input of the output's shape and dtype, which may itself be passed as `out=`: "
        "every kernel reads each of its elements before it writes that one, and nobody else reads it.",
        "logits",
    ),
    "when": Key("str", "An optional input; the output has shape (0,) where it is absent.", "weight"),
    "like": Key(
        "str",
        "An input of as many dimensions. In memory the output's own dimensions but the last are in the order "
        "of that input's, so that heads which a model has transposed come out as they went in. Without it "
        "the output is contiguous.",
        "q",
    ),
}

PARAM = {
    "type": Key(
        "str",
        "`int`, `float`, `bool`, `choice`, `axis` (a dimension of a tensor) or `dtype` (the dtype of a type "
        "variable that no input has, as an output's; it has no default).",
        "float",
        True,
    ),
    "default": Key(
        "any", "Its value where the call gives none; without it, the parameter is required.", "1.0e-6"
    ),
    "choices": Key("list", "The legal words of a `choice`.", "[up, down]"),
    "of": Key(
        "str",
        "The input whose dimension an `axis` counts; kernels see that axis last. For a `dtype`, the type "
        "variable.",
        "x",
    ),
    "keyword": Key("bool", "Whether it is given by keyword alone.", "true"),
}

RULE = {
    "that": Key(
        "formula",
        "What must be true. The name of an optional input is True where the call has it.",
        '"H % G == 0"',
        True,
    ),
    "says": Key(
        "str", "What was expected, for the error message.", '"as many query heads as key heads"', True
    ),
}

REFERENCE = {
    "entry": Key(
        "str",
        "The function of the float64 inputs that returns the outputs, and then new tensors with the contents "
        "of the mutated inputs after the call, None for an absent one. Indices come as int64; other "
        "integers, bools and packed types as they are.",
        '"reference.py:scale"',
        True,
    ),
    "error_scale": Key(
        "str",
        "A function that returns, by output name, the size of the terms of each element before they cancel.",
        '"reference.py:error_scale"',
    ),
}

TOLERANCE = {
    "result_ulp": Key(
        "number",
        "Units in the last place of the output's type for its rounding: 0.51 for one rounding; 0 demands "
        "every bit of the reference, the sign of a zero included.",
        "0.51",
        True,
    ),
    "accumulation_ulp": Key(
        "formula",
        "Units of `acc` for everything before: error <= result_ulp * eps(output) * abs(ref) + "
        "accumulation_ulp * "
        "eps(acc) * (abs(ref) + error_scale).",
        '"4 + sqrt(N)"',
        True,
    ),
}

COST = {
    "flops": Key(
        "formula",
        "Floating point operations of a call: a formula, or `file.py:function` of a function of the "
        "axes, B and "
        "the parameters.",
        '"2 * B * M * N * K"',
        True,
    ),
    "roof": Key("str", "Which rate bounds it: `matrix` units or `vector` units and memory.", "matrix", True),
    "bytes": Key("formula", "Bytes moved; by default every operand once.", '"4 * B * N"'),
    "baseline": Key(
        "str",
        "What a user of torch would call instead: a function of the folder or of torch. By default "
        "the function "
        "of torch.nn.functional of the op's name and arguments, if there is one.",
        '"baseline.py:scale"',
    ),
    "unit": Key(
        "formula", "The dtype whose matrix rate is the roof, where it is not the inputs'.", "\"'bfloat16'\""
    ),
    "passes": Key("formula", "How many products of `unit` make one of the op's.", '"6"'),
}

GRADIENT = {
    "op": Key("str", "The internal op; by default `<op>_backward`.", "scale_backward"),
    "saves": Key(
        "list",
        "The inputs and outputs that the backward pass keeps; by default those that the internal op "
        "takes. It "
        "takes the gradient of the output y as `dy`.",
        "[y]",
    ),
    "grads": Key(
        "map",
        "By input, the output of the internal op that is its gradient; by default `d<input>`.",
        "{x: dx}",
    ),
}

IMPLEMENTATION = {
    "name": Key("str", "Its name: the kernel's language or unit, as wgmma or triton.", "triton", True),
    "extends": Key(
        "str",
        "Another spec file, of a neighbouring folder or this one: a key that is absent has the value of its "
        "implementation of the same name.",
        "../scale/spec.yaml",
    ),
    "language": Key(
        "str|list", "The languages that a backend must build, one of these at least.", "triton", True
    ),
    "plan": Key(
        "str",
        "The function that plans its launches, or the name of a shared plan (`elementwise`, `rows`; "
        "all are in kernels/_lib/plans), which reads `kernel`.",
        '"native.py:forward"',
    ),
    "run": Key(
        "str",
        "In the place of `plan`, a function of tensors: of the folder, of torch (`torch.sin`), "
        "or `reference`, "
        "the reference in float32 (float64 for float64), rounded once. It writes mutated inputs itself and "
        "returns the outputs alone.",
        "reference",
    ),
    "kernel": Key("map", "The kernel of a shared plan.", "{source: scale.cu, ...}"),
    "options": Key("map", "What the planning function takes by name besides.", "{most_chunks: 8}"),
    "sources": Key("list", "Its C++ sources, which the cache of compiled code depends on.", "[scale.cu]"),
    "requires": Key(
        "map",
        "What it needs: `arch` (names or patterns), dtypes per type variable, `rules` (formulas "
        "that must hold).",
        '{arch: [sm_80+], T: [bfloat16], rules: ["N % 8 == 0"]}',
    ),
    "tunables": Key("map", "What `portable tune` may choose, with all legal values.", "{BLOCK_M: [32, 64]}"),
    "default": Key("map", "The config where nothing tuned matches.", "{BLOCK_M: 64}"),
    "accumulation_ulp": Key(
        "map",
        "By arch (a name or pattern), the formula in the place of the tolerance's, for matrix units that "
        "keep fewer bits of a sum than `acc` has.",
        '{sm_90a: "20 * 1024"}',
    ),
    "batch_invariant": Key(
        "bool",
        "False where a row's bits may depend on the other rows, or the calls that it takes on how many there "
        "are, unless others give the same bits; true by default. They may depend on whether rows start at "
        "multiples of 16 bytes.",
        "false",
    ),
}

KERNEL = {
    "source": Key("str", "The file of the kernel.", "scale.cu", True),
    "entry": Key("str", 'Its extern "C" name.', "scale_forward", True),
    "args": Key("list", "The tensors in the kernel's order.", "[x, weight, y]", True),
    "defines": Key("map", "Preprocessor names and their values.", "{PASS: FORWARD}"),
    "tiles": Key(
        "list",
        "For a shared plan of rows: how clusters of blocks take long rows, the first that fits a call.",
        "[{cluster: 4, threads: 256, chunks: 4, resident: 5}]",
    ),
}

ROW_TILE = {
    "cluster": Key("int", "How many blocks share a row.", "4", True),
    "threads": Key("int", "The threads of a block that hold the row.", "256", True),
    "chunks": Key(
        "int",
        "16-byte vectors per thread. The tile is for rows of more than half of "
        "cluster * threads * chunks vectors.",
        "4",
        True,
    ),
    "resident": Key("int", "How many blocks fit a multiprocessor.", "5", True),
    "slots": Key("int", "Rows go through a ring of so many chunks in shared memory.", "12"),
    "clusters": Key("int", "At most so many clusters are launched, with a ring.", "30"),
    "hold": Key("int", "Chunks of each parameter that a block keeps in registers, with a ring.", "8"),
    "dtypes": Key("list", "The dtypes that the tile is for, where it is not for all.", "[float32]"),
}

CASE = {
    "<axis>": Key("int", "The size of every axis.", "33", True),
    "<param>": Key("any", "The value of a parameter; its default where it has one.", "up"),
    "leading": Key(
        "list", "The leading dimensions, of every input or by input: `{a: [2, 1], b: [3]}`.", "[3, 5]"
    ),
    "absent": Key("list", "The optional inputs that are None.", "[weight]"),
}

TABLES = {
    "spec": SPEC,
    "input": INPUT,
    "output": OUTPUT,
    "param": PARAM,
    "rule": RULE,
    "reference": REFERENCE,
    "tolerance": TOLERANCE,
    "cost": COST,
    "gradient": GRADIENT,
    "implementation": IMPLEMENTATION,
    "kernel": KERNEL,
    "tile": ROW_TILE,
}

INHERITED = ("schema_version", "axes", "leading", "types", "params", "rules", "bench")
"""What `extends` and `backward` take from the other spec."""

RENAMED = {
    "spec": {
        "edition": "schema_version",
        "boundary": "behaviour_case (the first case), latency_case (the second), boundary_cases (the rest)",
    },
    "reference": {"magnitude": "error_scale"},
    "tolerance": {"result": "result_ulp", "sum": "accumulation_ulp"},
    "cost": {"peak": "roof"},
}
"""Keys of earlier versions of the schema, and what they are called now."""
