"""The parameters of a native kernel, read from its source, and whether a plan's arguments are those.

A C++ kernel takes its arguments by position out of a packed buffer: one in the wrong order, or of another
type, is read as something else without an error. So the declaration of the entry is read after preprocessing,
with the defines and includes of the kernel's build, and kept beside the machine code; each launch is compared
with it once, when it is bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from portable import dtypes
from portable.errors import CompileError, KernelArgumentsError
from portable.plan import Launch, NativeKernel, Pointer, Scalar, Struct

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\d[\w.\']*|##|\s+|.')
_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)\s*(.*)", re.DOTALL)
_QUALIFIERS = frozenset(
    (
        "const",
        "volatile",
        "struct",
        "__restrict__",
        "__restrict",
        "restrict",
        "__grid_constant__",
        "__shared__",
    )
)
_SCALARS = {
    "int": "i32", "int32_t": "i32", "unsigned": "u32", "unsigned int": "u32", "uint32_t": "u32",
    "long": "i64", "long long": "i64", "int64_t": "i64", "float": "f32", "f32": "f32",
    "uint64_t": "u64", "unsigned long": "u64", "unsigned long long": "u64", "double": "f64", "bool": "b8",
    "short": "i16", "unsigned short": "u16", "signed char": "i8", "unsigned char": "u8",
}  # fmt: skip


class Parameter(NamedTuple):
    """One parameter, or one field of a struct: `type` has its typedefs resolved, and is the pointee's where
    `pointer`; `fields` are those of a struct passed by value whose definition was found."""

    name: str
    type: str
    pointer: bool
    fields: tuple[Parameter, ...] = ()

    def __str__(self) -> str:
        return f"{self.type}{'*' if self.pointer else ''} {self.name}"

    @classmethod
    def of(cls, raw: Sequence[Any]) -> Parameter:
        """What JSON made of one."""
        name, kind, pointer, fields = raw
        return cls(name, kind, pointer, tuple(map(cls.of, fields)))


class _Macro(NamedTuple):
    names: tuple[str, ...] | None
    body: str


@dataclass
class _Source:
    """The text of a source after its directives; macros are expanded where a declaration is read."""

    includes: tuple[Path, ...]
    macros: dict[str, _Macro]
    text: list[str] = field(default_factory=list)
    once: set[Path] = field(default_factory=set)
    typedefs: dict[str, str] = field(default_factory=dict)

    def read(self, file: Path) -> None:
        if file in self.once:
            return
        active: list[tuple[bool, bool]] = []  # (this branch is read, one of them was)
        for line in _logical_lines(file.read_text()):
            directive = _DIRECTIVE.fullmatch(line)
            if directive is None:
                if all(read for read, _ in active):
                    self._take(line)
                continue
            word, rest = directive.groups()
            if word in ("if", "ifdef", "ifndef"):
                outer = all(read for read, _ in active)
                holds = outer and self._holds(word, rest)
                active.append((holds, holds or not outer))
            elif word in ("elif", "else"):
                _, done = active.pop()
                holds = not done and (word == "else" or self._holds("if", rest))
                active.append((holds, done or holds))
            elif word == "endif":
                active.pop()
            elif all(read for read, _ in active):
                self._obey(word, rest, file)

    def _obey(self, word: str, rest: str, file: Path) -> None:
        if word == "define":
            name = _NAME.match(rest)
            if name is None:
                return
            after, names = rest[name.end() :], None
            if after.startswith("("):
                inside, _, after = after[1:].partition(")")
                names = tuple(each.strip() for each in inside.split(",") if each.strip())
            self.macros[name.group()] = _Macro(names, after.strip())
        elif word == "undef":
            self.macros.pop(rest.strip(), None)
        elif word == "pragma" and rest.strip() == "once":
            self.once.add(file)
        elif word == "include" and rest.startswith('"'):
            name = rest[1:].partition('"')[0]
            for folder in (file.parent, *self.includes):
                if (folder / name).is_file():
                    return self.read((folder / name).resolve())

    def _take(self, line: str) -> None:
        """A line of code; a typedef is resolved with the macros that hold here."""
        if "typedef" in line or "using" in line:
            full = self.expand(line)
            for kind, name in re.findall(r"\btypedef\s+([^;{}]+?)\s*\b(\w+)\s*;", full):
                self.typedefs[name] = kind
            for name, kind in re.findall(r"\busing\s+(\w+)\s*=\s*([^;{}]+);", full):
                self.typedefs[name] = kind.strip()
        self.text.append(line)

    def _holds(self, word: str, condition: str) -> bool:
        if word != "if":
            return (condition.strip() in self.macros) == (word == "ifdef")
        known = re.sub(
            r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))",
            lambda found: str(int((found[1] or found[2]) in self.macros)),
            condition,
        )
        text = self.expand(known)
        text = re.sub(r"\b(0[xX][\da-fA-F]+|\d+)[uUlL]*\b", r"\1", text)
        text = re.sub(r"\b[A-Za-z_]\w*\b(?!')", lambda found: {"true": "1"}.get(found[0], "0"), text)
        text = text.replace("&&", " and ").replace("||", " or ").replace("/", "//")
        text = re.sub(r"!(?!=)", " not ", text)
        try:
            return bool(eval(text, {"__builtins__": {}}))
        except (SyntaxError, ArithmeticError, TypeError):
            return False

    def expand(self, text: str, hidden: frozenset[str] = frozenset()) -> str:
        """`text` with every macro replaced that now holds."""
        tokens, made, i = _TOKEN.findall(text), [], 0
        while i < len(tokens):
            token, i = tokens[i], i + 1
            macro = self.macros.get(token) if token not in hidden else None
            if macro is None:
                made.append(token)
            elif macro.names is None:
                made.append(self.expand(macro.body, hidden | {token}))
            else:
                given, end = _arguments(tokens, i)
                if end == i:  # the name of a function-like macro that is not called
                    made.append(token)
                    continue
                values: dict[str, str] = dict(zip(macro.names, given, strict=False))
                tokens_of_body: list[str] = _TOKEN.findall(macro.body)
                body = "".join(values.get(each, each) for each in tokens_of_body)
                body = re.sub(r"\s*##\s*", "", body)
                made.append(self.expand(body, hidden | {token}))
                i = end
        return "".join(made)

    def resolved(self, kind: str) -> str:
        """A type without its typedefs: "const T" as "bf16"."""
        seen: set[str] = set()
        words = [word for word in kind.split() if word not in _QUALIFIERS]
        while len(words) == 1 and words[0] in self.typedefs and words[0] not in seen:
            seen.add(words[0])
            words = [word for word in self.typedefs[words[0]].split() if word not in _QUALIFIERS]
        return " ".join(words)


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; one that ends in a backslash goes on."""
    text = _COMMENT.sub(lambda found: found[0] if found[0][0] in "\"'" else " ", text)
    return iter(text.replace("\\\n", " ").splitlines())


def _arguments(tokens: Sequence[str], start: int) -> tuple[list[str], int]:
    """The arguments of a macro's call and where it ends; `start` where there is no call."""
    i = start
    while i < len(tokens) and tokens[i].isspace():
        i += 1
    if i == len(tokens) or tokens[i] != "(":
        return [], start
    depth, given = 0, [""]
    for at, token in enumerate(tokens[i:], i):
        depth += (token in "([{") - (token in ")]}") if len(token) == 1 else 0
        if depth == 0:
            return [each.strip() for each in given], at + 1
        if token == "," and depth == 1:
            given.append("")
        elif depth > 1 or token != "(":
            given[-1] += token
    return [], start


def _split(text: str) -> list[str]:
    """A parameter list at its commas."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def _enclosed(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "({") - (text[i] in ")}")
        if depth == 0:
            return i
    return len(text)


def _declared(text: str, source: _Source, code: str) -> Parameter:
    """One declaration: "const float* __restrict__ x"."""
    text = re.sub(r"\balignas\s*\([^)]*\)|__attribute__\s*\(\(.*?\)\)", " ", text.partition("=")[0])
    pointer = "*" in text or "[" in text
    words = re.sub(r"\[.*?\]|[*&]", " ", text).split()
    *kind, name = words
    resolved = source.resolved(" ".join(kind))
    fields: tuple[Parameter, ...] = ()
    if not pointer and resolved not in _SCALARS:
        fields = _fields(resolved, source, code)
    return Parameter(name, resolved, pointer, fields)


def _fields(struct: str, source: _Source, code: str) -> tuple[Parameter, ...]:
    """The data members of a struct, in order; none where it has no definition here."""
    head = re.search(rf"\bstruct\s+(?:alignas\s*\([^)]*\)\s*)?{re.escape(struct)}\s*\{{", code)
    if head is None:
        return ()
    body = source.expand(code[head.end() : _enclosed(code, head.end() - 1)])
    found: list[Parameter] = []
    while body:
        end = re.search(r"[;{]", body)
        if end is None:
            break
        member, closed = body[: end.start()], end.end()
        if end.group() == "{":  # a function with its body, or an initialiser
            closed = _enclosed(body, end.start()) + 1
        if "(" not in member and member.split() and member.split()[0] not in ("static", "using", "typedef"):
            first, *others = _split(member)
            one = _declared(first, source, code)
            found.append(one)
            shared = re.sub(r"\w+\s*(\[.*\])?$", "", first)
            found += [_declared(f"{shared.replace('*', ' ')} {each}", source, code) for each in others]
        body = body[closed:]
    return tuple(found)


def parameters(
    kernel: NativeKernel, includes: tuple[Path, ...], predefined: Mapping[str, str]
) -> tuple[Parameter, ...]:
    """The parameters of a kernel's entry, as `predefined` macros and its defines make them.

    Raises CompileError where the source declares no such entry.
    """
    macros = {**predefined, **{name: str(value) for name, value in kernel.defines}}
    source = _Source(includes, {name: _Macro(None, value) for name, value in macros.items()})
    source.read(kernel.source.resolve())
    code = "\n".join(source.text)
    for found in re.finditer(rf"\b{re.escape(kernel.entry)}\b", code):
        start = max(code.rfind(mark, 0, found.start()) for mark in ";}") + 1
        end = code.find("{", found.end())
        head = source.expand(code[start : len(code) if end < 0 else end + 1])
        named = re.search(rf"\bvoid\s+{re.escape(kernel.entry)}\s*\(", head)
        if named is not None and 'extern "C"' in head[: named.start()]:
            inside = head[named.end() : _enclosed(head, named.end() - 1)]
            return tuple(_declared(each, source, code) for each in _split(inside) if each != "void")
    raise CompileError(f"{kernel.source.name}", f'it declares no extern "C" kernel {kernel.entry!r}')


def check(launch: Launch, found: Sequence[Parameter], types: Mapping[str, str]) -> None:
    """Compare a launch's arguments with the kernel's parameters: names, order and types. `types` are the
    tensors' dtypes. Raises KernelArgumentsError."""
    kernel = launch.kernel
    assert isinstance(kernel, NativeKernel)
    _check(kernel, "", launch.args, found, types)


def _check(
    kernel: NativeKernel, within: str, args: Sequence[tuple[str, Any]], found: Sequence[Parameter],
    types: Mapping[str, str],
) -> None:  # fmt: skip
    given, wanted = [name for name, _ in args], [parameter.name for parameter in found]
    if given != wanted:
        raise KernelArgumentsError(kernel.source.name, kernel.entry, within, _difference(given, wanted))
    for (name, arg), parameter in zip(args, found, strict=True):
        wrong = _mismatch(arg, parameter, types)
        if wrong:
            problem = f"{name} is {wrong}, and the kernel declares `{parameter}`"
            raise KernelArgumentsError(kernel.source.name, kernel.entry, within, problem)
        if isinstance(arg, Struct):
            _check(kernel, f"{within}{name}.", arg.fields, parameter.fields, types)


def _difference(given: Sequence[str], wanted: Sequence[str]) -> str:
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    if missing or unknown:
        both = [f"leaves out {', '.join(missing)}"] if missing else []
        both += [f"passes {', '.join(unknown)}, which the kernel does not take"] if unknown else []
        return f"the plan {' and '.join(both)}"
    at = next(i for i, (one, other) in enumerate(zip(given, wanted, strict=False)) if one != other)
    return f"parameter {at + 1} is {wanted[at]}, and the plan passes {given[at]} there"


def _mismatch(arg: Any, parameter: Parameter, types: Mapping[str, str]) -> str:
    """What an argument is that its parameter is not, or ""."""
    if isinstance(arg, Pointer):
        dtype = types.get(arg.tensor)
        if not parameter.pointer:
            return f"the address of {arg.tensor}"
        kind = _SCALARS.get(parameter.type, parameter.type)
        own = None if dtype is None else dtypes.of(dtype)
        if own is not None and own.is_float and kind in _FLOATS and kind != own.short:
            return f"the address of {arg.tensor}, of {dtype}"
        return ""
    if isinstance(arg, Scalar):
        if parameter.pointer and arg.kind == "i64" and arg.value == 0:  # a null pointer
            return ""
        kind = None if parameter.pointer else _SCALARS.get(parameter.type)
        return "" if kind == arg.kind else f"a scalar of {arg.kind}"
    if parameter.pointer or parameter.type in _SCALARS:
        return "a struct" if isinstance(arg, Struct) else f"a {type(arg).__name__} by value"
    if isinstance(arg, Struct):
        return "" if parameter.fields else "a struct, whose definition was not found"
    wanted = _c_type(arg)
    return "" if parameter.type == wanted else f"a {wanted} by value"


def _c_type(arg: Any) -> str:
    """The C++ type of a ByValueArgument: what it says, else its class has the same name."""
    return getattr(arg, "c_type", type(arg).__name__)


_FLOATS = frozenset(each.short for each in dtypes.DTYPES.values() if each.is_float)
