import inspect
import pickle

import pytest

from portable import errors
from portable.errors import PortableError

EXAMPLES = [
    errors.PortableError("plain"),
    errors.ArgumentError("softmax", "x", 3, "a tensor"),
    errors.SignatureError("softmax", "has no argument 'dims'", "(x, dim=-1)"),
    errors.NotATensorError("softmax", "x", "list", "a torch.Tensor"),
    errors.DtypeError("softmax", "x", "int64", "float32", "Convert it with x.to(torch.float32)"),
    errors.RankError("matmul", "a", 1, "2 or more"),
    errors.ShapeError("matmul", "b", (3, 4), "[..., K, N] with K = 5"),
    errors.LayoutError("matmul", "a", "sparse_coo", "a dense tensor"),
    errors.StorageError("matmul", "a", "byte 64 of a storage of 0 bytes", "a tensor within its storage"),
    errors.DeviceError("matmul", "b", "cpu", "device 0, where argument 'a' is"),
    errors.ParameterError("softmax", "dim", 4, "a dimension of x, as an int"),
    errors.OutputError("matmul", "out", "has shape (3, 4)", "(3, 5)"),
    errors.UnsupportedGradientError("matmul", "it has no formula for out="),
    errors.UnsupportedTransformError("matmul", "vmap over out="),
    errors.UnsupportedDeviceError("matmul", "meta", "cpu"),
    errors.UnknownOpError("sofmax", ["softmax", "matmul"]),
    errors.NoImplementationError("matmul", "a GPU", [("one", "K % 8 != 0"), ("two", "arch")], "bf16 [2, 3]"),
    errors.PinError("matmul", "wgmma", "the GPU is too old"),
    errors.BackendError.several(["one", "two"]),
    errors.BackendError.unknown("tow", ["one", "two"]),
    errors.CompileError("matmul.cu for sm_90a", "error: here\n" * 100, "compile it"),
    errors.NoCompilerError("HIP C++", "no clang", "pip install clang"),
    errors.KernelArgumentsError("softmax.cu", "softmax", "", "parameter 1 is x, and the plan passes y there"),
    errors.LaunchError("softmax on grid (1, 1, 1)", "error 700"),
    errors.SpecError("spec.yaml", 7, "unknown key"),
    errors.IntegrationError("transformers", "needs transformers 5", "Install it"),
    errors.TunedFileError("tuned.yaml", None, "damaged"),
    errors.FormulaError("2 *", "not a formula"),
]


def test_every_class_has_an_example_and_says_when_it_is_raised():
    classes = {each for _, each in inspect.getmembers(errors, inspect.isclass)
               if issubclass(each, PortableError) and not each.__name__.startswith("_")}  # fmt: skip
    assert {type(each) for each in EXAMPLES} == classes
    for each in classes:
        assert each.__doc__, each


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda each: type(each).__name__)
def test_pickling_keeps_class_message_and_facts(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error) and str(copy)
    assert vars(copy) == vars(error)


def test_the_message_says_op_argument_value_expectation_and_remedy():
    error = errors.DtypeError(
        "softmax", "x", "int64", "one of bfloat16, float32", "Convert it with x.to(torch.bfloat16)"
    )
    assert str(error) == (
        "portable.softmax: argument 'x' has dtype int64; expected one of bfloat16, float32."
        " Convert it with x.to(torch.bfloat16)."
    )
    assert (error.op, error.argument, error.value) == ("softmax", "x", "int64")


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [(errors.DtypeError, TypeError), (errors.DtypeError, ValueError), (errors.ShapeError, ValueError),
     (errors.NotATensorError, TypeError), (errors.SignatureError, TypeError),
     (errors.UnknownOpError, AttributeError), (errors.UnsupportedGradientError, RuntimeError),
     (errors.SpecError, ValueError)],
)  # fmt: skip
def test_errors_are_also_what_python_would_raise(cls, builtin):
    assert issubclass(cls, builtin) and issubclass(cls, PortableError)


def test_unknown_op_names_the_nearest():
    assert "Did you mean 'softmax'?" in str(errors.UnknownOpError("sofmax", ["matmul", "softmax"]))


def test_every_candidate_and_its_reason_is_listed():
    reasons = [("one", "K % 8 != 0"), ("two", "wrong arch")]
    text = str(errors.NoImplementationError("matmul", "a GPU", reasons))
    assert "\n  one: K % 8 != 0\n  two: wrong arch" in text


def test_a_long_value_is_shortened_and_a_long_log_is_kept():
    assert len(str(errors.ArgumentError("op", "x", "v" * 10_000, "a tensor"))) < 400
    error = errors.CompileError("k", "\n".join(f"line {i}" for i in range(1000)))
    assert "960 more lines" in str(error) and "line 999" in error.log and "line 999" not in str(error)


def test_two_backends_name_the_variable():
    assert "PORTABLE_BACKEND=one" in str(errors.BackendError.several(["one", "two"]))


def test_a_string_parameter_is_shown_quoted():
    assert "argument 'activation' is 'Relu'; expected" in str(
        errors.ParameterError("linear", "activation", "Relu", "one of 'relu'")
    )
