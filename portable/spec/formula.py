"""Formulas in specs: arithmetic over declared names, evaluated by walking a checked tree.

    ceildiv(M, 128) * K <= 65536 and T in ('bfloat16', 'float16')

The text goes through Python's own parser and is then compiled to closures; nothing is ever handed to
`eval`. Allowed are numbers, strings, None, True, False, names, + - * / // % **, comparisons, and, or,
not, `a if condition else b`, `in` over a list of constants, and calls to the functions below. Arithmetic
takes numbers alone (no string repetition), so that what a formula costs is bounded by its length.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, SupportsIndex

from portable.errors import FormulaError, listed, nearest

MAX_LENGTH = 500
MAX_DEPTH = 32
MAX_BITS = 1024  # of an integer power

Evaluator = Callable[[Mapping[str, Any]], Any]


def ceildiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def next_pow2(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << (math.ceil(n) - 1).bit_length() if n > 1 else 1


FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {  # function, fewest and most arguments
    "min": (min, 2, 8),
    "max": (max, 2, 8),
    "sqrt": (math.sqrt, 1, 1),
    "log2": (math.log2, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "ceildiv": (ceildiv, 2, 2),
    "next_pow2": (next_pow2, 1, 1),
}


def _power(base: float, exponent: float) -> float:
    if isinstance(base, int) and isinstance(exponent, int):
        if exponent * max(base.bit_length(), 1) > MAX_BITS:
            raise ValueError(f"a power of more than {MAX_BITS} bits")
        if exponent < -MAX_BITS:
            raise ValueError(f"an exponent below -{MAX_BITS}")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("a fractional power of a negative number")
    return result


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_EQUALITY: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _mixed(left: Any, right: Any) -> bool:
    return isinstance(left, bool) is not isinstance(right, bool)


class Formula:
    """A formula over `names`, checked and compiled once.

    `names` holds the names that the text uses. Raises FormulaError for anything that is not a formula
    or names something unknown.
    """

    __slots__ = ("_evaluator", "_known", "names", "text")

    def __init__(self, text: str, names: Iterable[str]) -> None:
        self.text = text
        self._known = tuple(names)
        compiler = _Compiler(text, self._known)
        self._evaluator = compiler.compile()
        self.names = frozenset(compiler.used)

    def evaluate(self, /, **values: Any) -> Any:
        """The formula's value; names that it does not use are ignored. Raises FormulaError."""
        try:
            return self._evaluator(values)
        except KeyError as error:
            raise FormulaError(self.text, f"no value for {error.args[0]!r}") from None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise FormulaError(self.text, f"cannot be evaluated: {error}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return Formula, (self.text, self._known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Formula({self.text!r})"


class _Compiler:
    """Turns one text into closures, refusing what is not on the list."""

    def __init__(self, text: str, known: tuple[str, ...]) -> None:
        self.text = text
        self.known = known
        self.used: set[str] = set()

    def fail(self, problem: str) -> FormulaError:
        return FormulaError(self.text, problem)

    def compile(self) -> Evaluator:
        if not isinstance(self.text, str):
            raise FormulaError(repr(self.text), "a formula is a string")
        if len(self.text) > MAX_LENGTH:
            raise self.fail(f"longer than {MAX_LENGTH} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text.strip(), mode="eval")
        except SyntaxError as error:
            raise self.fail(f"not a formula: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise self.fail(f"not a formula: {type(error).__name__}") from None
        return self.node(tree.body, 0)

    def node(self, node: ast.expr, depth: int) -> Evaluator:
        if depth > MAX_DEPTH:
            raise self.fail(f"nested deeper than {MAX_DEPTH} levels")
        depth += 1
        if isinstance(node, ast.Constant):
            value = self.constant(node)
            return lambda values: value
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node, depth)
        if isinstance(node, ast.UnaryOp):
            return self.unary(node, depth)
        if isinstance(node, ast.BoolOp):
            parts = [self.node(part, depth) for part in node.values]
            if isinstance(node.op, ast.And):
                return lambda values: all(part(values) for part in parts)
            return lambda values: any(part(values) for part in parts)
        if isinstance(node, ast.IfExp):
            test, then, other = (self.node(part, depth) for part in (node.test, node.body, node.orelse))
            return lambda values: then(values) if _truth(test(values)) else other(values)
        if isinstance(node, ast.Compare):
            return self.comparison(node, depth)
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        raise self.fail(f"{type(node).__name__} is not allowed")

    def constant(self, node: ast.Constant) -> Any:
        if node.value is None or isinstance(node.value, (bool, int, float, str)):
            return node.value
        raise self.fail(f"a constant of type {type(node.value).__name__} is not allowed")

    def name(self, name: str) -> Evaluator:
        if name not in self.known:
            if name in FUNCTIONS:
                raise self.fail(f"{name} is a function; call it")
            hint = nearest(name, self.known)
            raise self.fail(f"unknown name {name!r}.{hint} Known are {listed(self.known)}")
        self.used.add(name)
        return lambda values: values[name]

    def arithmetic(self, node: ast.BinOp, depth: int) -> Evaluator:
        function = _ARITHMETIC.get(type(node.op))
        if function is None:
            raise self.fail(f"the operator {type(node.op).__name__} is not allowed")
        left, right = self.node(node.left, depth), self.node(node.right, depth)
        return lambda values: function(_number(left(values)), _number(right(values)))

    def unary(self, node: ast.UnaryOp, depth: int) -> Evaluator:
        part = self.node(node.operand, depth)
        if isinstance(node.op, ast.Not):
            return lambda values: not part(values)
        if isinstance(node.op, ast.USub):
            return lambda values: -_number(part(values))
        if isinstance(node.op, ast.UAdd):
            return lambda values: _number(part(values))
        raise self.fail(f"the operator {type(node.op).__name__} is not allowed")

    def comparison(self, node: ast.Compare, depth: int) -> Evaluator:
        first = self.node(node.left, depth)
        steps: list[Callable[[Any, Mapping[str, Any]], tuple[bool, Any]]] = []
        for op, operand in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)):
                if len(node.ops) > 1:
                    raise self.fail("`in` cannot be part of a chain of comparisons")
                return self.membership(first, operand, isinstance(op, ast.In))
            steps.append(self.step(op, self.node(operand, depth)))

        def evaluate(values: Mapping[str, Any]) -> bool:
            value = first(values)
            for step in steps:
                holds, value = step(value, values)
                if not holds:
                    return False
            return True

        return evaluate

    def step(self, op: ast.cmpop, operand: Evaluator) -> Callable[[Any, Mapping[str, Any]], tuple[bool, Any]]:
        """One comparison of a chain: left value and names -> (does it hold, right value)."""
        if type(op) in _EQUALITY:
            equal = _EQUALITY[type(op)]

            def compare_any(left: Any, values: Mapping[str, Any]) -> tuple[bool, Any]:
                right = operand(values)
                if isinstance(left, (int, float)) and isinstance(right, (int, float)) and _mixed(left, right):
                    _number(left)
                    _number(right)  # one of them refuses: True is not 1 here
                return equal(left, right), right

            return compare_any
        if type(op) in _ORDER:
            order = _ORDER[type(op)]

            def compare_numbers(left: Any, values: Mapping[str, Any]) -> tuple[bool, Any]:
                right = operand(values)
                return order(_number(left), _number(right)), right

            return compare_numbers
        raise self.fail(f"the comparison {type(op).__name__} is not allowed")

    def membership(self, item: Evaluator, operand: ast.expr, inside: bool) -> Evaluator:
        if not isinstance(operand, (ast.Tuple, ast.List)):
            raise self.fail("`in` needs a list of constants on its right")
        constants: list[Any] = []
        for element in operand.elts:
            if not isinstance(element, ast.Constant):
                raise self.fail("`in` needs a list of constants on its right")
            constants.append(self.constant(element))
        return lambda values: (item(values) in constants) is inside

    def call(self, node: ast.Call, depth: int) -> Evaluator:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            called = node.func.id if isinstance(node.func, ast.Name) else type(node.func).__name__
            hint = nearest(called, FUNCTIONS)
            raise self.fail(f"{called!r} is not a function here.{hint} There are {listed(FUNCTIONS)}")
        function, fewest, most = FUNCTIONS[node.func.id]
        if node.keywords or not fewest <= len(node.args) <= most:
            count = str(fewest) if fewest == most else f"{fewest} to {most}"
            raise self.fail(f"{node.func.id} takes {count} arguments")
        arguments = [self.node(argument, depth) for argument in node.args]
        return lambda values: function(*(_number(argument(values)) for argument in arguments))


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is neither True nor False")


def _number(value: Any) -> Any:
    """A number, or a symbolic size of torch.compile's: what has a size's __index__."""
    if isinstance(value, (int, float, SupportsIndex)) and not isinstance(value, bool):
        return value
    raise TypeError(f"{value!r} is not a number")
