import contextlib
import math
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portable.errors import FormulaError
from portable.spec.formula import Formula, ceildiv, next_pow2

NAMES = ("M", "N", "K", "B", "T", "precision")


def value(text, **values):
    return Formula(text, NAMES).evaluate(**values)


VALUES = {"M": 5, "N": 9, "K": 64, "B": 4, "T": "bfloat16", "precision": "ieee"}


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "2 * sqrt(K)": 16.0, "8 + 2 * sqrt(N) + 2 * sqrt(B)": 18.0, "2 * B * M * N * K": 23040, "16": 16,
        "K % 8 == 0": True, "M % 2 == 0": False, "1 < M <= 5 < K": True, "1 < M < 5 < K": False,
        "precision == 'ieee'": True, "precision != 'ieee'": False, "precision == None": False,
        "T in ('bfloat16', 'float16')": True, "T not in ['bfloat16']": False, "M in (1, 5)": True,
        "ceildiv(M, 2)": 3, "next_pow2(M)": 8, "log2(K)": 6.0, "ceil(M / 2)": 3, "max(M, N, K)": 64,
        "min(M, 2)": 2, "-M + +1": -4, "not M == 5": False, "M == 5 and N == 9": True,
        "M == 4 or N == 4": False, "K / 16 if T == 'bfloat16' else 0": 4.0,
        "1 / (M - 5) if M != 5 else -1": -1, "2 * sqrt(K) + (K if M > 5 else 0)": 16.0,
        "2 ** 10": 1024, "M ** -1": 0.2, "7 // 2": 3, "1e-6 * 2": 2e-6,
        "(" * 90 + "1" + ")" * 90: 1,
    }.items(),
)  # fmt: skip
def test_values(text, expected):
    got = value(text, **VALUES)
    assert got == expected and type(got) is type(expected)


def test_and_or_stop_early():
    assert value("M == 0 or N / M > 1", M=0, N=3) is True
    assert value("M != 0 and N / M > 1", M=0, N=3) is False


NOT_FORMULAS = """
    __import__('os').system('true')|().__class__|M.bit_length()|lambda: 1|[x for x in M]|M if N|M[0]
    f'{M}'|M := 3|(M, N)|{1: 2}|b'x'|1j|...|M; N|import os|eval('1')|min|sqrt|min(1)|sqrt(1, 2)|min(*M)
    ceildiv(a=1, b=2)|max(M, key=N)|M @ N|M << 1000|M & N|~M|M is N|M in T|'a' in 'abc'|M in (N, K)
    1 < M in (1, 2)|unknown + 1|m|print|yield M|await M|sqrt(sqrt)|min(min, 1)|# only a comment|'M
"""


@pytest.mark.parametrize(
    "text",
    [
        *(text.strip() for line in NOT_FORMULAS.strip().splitlines() for text in line.split("|")),
        "", " ", "M\nN", "\x00", "\ud800", "(" * 400, "-" * 450 + "1", "+".join(["M"] * 120), "M" + " " * 600,
        "9" * 100_000, "(" * 220 + "1" + ")" * 220, "not " * 60 + "M", "sqrt(" * 60 + "1" + ")" * 60,
    ],
    ids=lambda text: ascii(text[:30]),
)  # fmt: skip
def test_what_is_not_a_formula_is_refused_when_it_is_read(text):
    started = time.perf_counter()
    with pytest.raises(FormulaError) as caught:
        Formula(text, NAMES)
    assert len(str(caught.value)) < 600
    assert time.perf_counter() - started < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "10 ** 10 ** 10", "2 ** 100000", "((9 ** 99) ** 99) ** 99", "2.0 ** 1e9", "0 ** -1", "(-8) ** 0.5",
        "2 ** -100000", "'a' * 1000000000", "'a' + 'b'", "T % M", "T < M", "-T", "M / 0", "M // 0", "M % 0",
        "sqrt(-1)", "log2(0)", "ceil(1e308 * 10)", "True + 1", "None + 1", "sqrt(T)", "M == 5 and N",
        "next_pow2(1e308 * 10)", "1 if M else 2", "1 if T else 2",
    ],
)  # fmt: skip
def test_what_cannot_be_evaluated_gives_one_error_at_once(text):
    formula = Formula(text, NAMES)
    started = time.perf_counter()
    with pytest.raises(FormulaError):
        formula.evaluate(M=5, T="bfloat16")
    assert time.perf_counter() - started < 0.1


def test_names_are_those_used_and_checked_when_read():
    assert Formula("2 * M + min(K, 3)", NAMES).names == {"M", "K"}
    with pytest.raises(FormulaError, match="Did you mean 'precision'"):
        Formula("precison == 'ieee'", NAMES)
    with pytest.raises(FormulaError, match="Did you mean 'sqrt'"):
        Formula("sqr(M)", NAMES)


def test_a_missing_value_is_named_and_a_spare_one_ignored():
    with pytest.raises(FormulaError, match="no value for 'M'"):
        value("M + 1")
    assert value("M + 1", M=1, Z=3) == 2


@pytest.mark.parametrize("text", ["M == (M and M)", "(M < 3) != 1", "True == M"])
def test_a_truth_value_is_not_compared_with_a_number(text):
    with pytest.raises(FormulaError, match="is not a number"):
        value(text, M=-1)
    assert value("(M < 3) == True", M=-1) is True


def test_pickle_equality_and_text():
    formula = Formula("2 * sqrt(K)", NAMES)
    copy = pickle.loads(pickle.dumps(formula))
    assert copy == formula and hash(copy) == hash(formula) and copy.evaluate(K=4) == 4.0
    assert str(formula) == "2 * sqrt(K)" and formula != Formula("K", NAMES)


@given(st.integers(0, 2**70), st.integers(1, 2**40))
def test_ceildiv_and_next_pow2(n, d):
    q = ceildiv(n, d)
    assert (q - 1) * d < n <= q * d
    p = next_pow2(n)
    assert p >= max(n, 1) and p & (p - 1) == 0 and (p == 1 or p // 2 < n)


EXPRESSIONS = st.recursive(
    st.sampled_from(["M", "N", "2", "3.5", "0", "1e3"]),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "<", "==", "and"]), inner)
    .map(lambda part: f"({part[0]} {part[1]} {part[2]})") | inner.map(lambda part: f"(-{part})"),
    max_leaves=8,
)  # fmt: skip


@given(EXPRESSIONS, st.integers(-50, 50), st.integers(-50, 50))
def test_arithmetic_agrees_with_python(text, m, n):
    try:
        got = value(text, M=m, N=n)
    except FormulaError:
        return
    python = eval(text, {"__builtins__": {}}, {"M": m, "N": n})  # a text of this test's own making
    assert got == python or bool(got) == bool(python) or (math.isnan(got) and math.isnan(python))


PIECES = [*"MNK01.+-*/%()[]{}<>=!&|^~,:;'\"\\ \n_", "**", "__", "in", "sqrt", "\x00"]


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_a_formula_or_one_error(text):
    with contextlib.suppress(FormulaError):
        Formula(text, NAMES).evaluate(M=3, N=4, K=5)
