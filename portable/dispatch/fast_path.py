"""The function behind `portable.<op>(...)`: written out per op, so that a call seen before costs little.

`Op.dispatch_slow` handles every call. The fast path before it first compares the call with the last one: two
checks per tensor and one guard for all. If they differ, it builds the key of everything a plan may depend on
and looks up the plan of an earlier call. Loops over a signature would take twice as long, so the fast path is
source text, filled in per op; `portable.softmax.source` shows it.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from portable.backend import Backend
from portable.dispatch import pins, torch_form
from portable.dispatch.arguments import MISSING, Signature
from portable.runtime.build import BoundLaunch

if TYPE_CHECKING:
    from portable.spec.model import Spec

Entry = tuple[Any, ...]
"""What the fast path keeps of a call: (guard of its tensors, its pins, its parameters, its `unguarded`
values, the autograd function or None, `single_launch` or None, what computes it in any case)."""


class KeyPart(NamedTuple):
    """One thing of a tensor that a plan may depend on, as an expression of `{t}`, the tensor, and `{at}`, its
    address. `guarded`: a call is compared by it before its key is made, by torch's guard or LEAST_ADDRESS."""

    text: str
    guarded: bool


LEAST_ADDRESS = 1 << 22
"""No program has memory below 4 MiB: an address there is an offset into a storage resized to nothing.

Such calls have keys of their own, so that the first, whose tensors are checked, is never an ordinary one. To
compare the size of each storage took 8 times as long, 154 against 18 ns a tensor (2026-11-22).
"""

# What a plan may depend on besides the pins and the parameters. The key of the plan cache, that of the guard
# cache and the comparison with the last call are all generated from this list.
TENSOR_KEY = (
    KeyPart("{t}.dtype", True),
    KeyPart("{t}.device", True),
    KeyPart("{t}.shape", True),
    KeyPart("{t}.stride()", True),
    KeyPart("{at} & 15", False),
    KeyPart(f"{{at}} < {LEAST_ADDRESS}", True),
)
AUTOGRAD_KEY = (KeyPart("{t}.requires_grad", True),)
"""What the autograd function of a call depends on besides: in the guard cache's key alone."""

Allocation = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of a new tensor."""

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_TYPED = ("int", "float", "bool", "axis")  # True == 1 == 1.0, and not all are legal
_guards: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)  # type: ignore[attr-defined]

CALL_TEMPLATE = """\
def {op}(_op, {positional}/, *_rest, **_named):
    {defaults}
    if _rest or _named:
        _given, _left = ({given}*_rest), len(_rest) + len(_named)
        {by_name}
        if _left:  # a name that is not there, or given twice: torch's form, or an error
            return _op.call_in_torch_form(_given, _named)
    {fill}
    if _is_compiling() or _dispatch_modes() or _function_modes() or _forward_mode._current_level >= 0:
        return _op.dispatch_slow({call})
    (_guard, _held, {held}{unguarded}_autograd, _single_launch, _run) = _op.last_guard
    try:
        _like = {like} and _guard({inputs}) and _pins() is _held
    except RuntimeError:  # a tensor without an address
        _like = False
    if not _like:
        if _transform() is not None or {odd}:
            return _op.dispatch_slow({call})
        try:
            {addresses}
            _key = (_pins(), {key})
            _entry = _op.guard_cache.get(_key)
        except (RuntimeError, TypeError):  # no address, no hash: the checks name it
            return _op.dispatch_slow({call})
        if _entry is None:
            return _op.dispatch_slow({call}, _key)
        if _entry[0] is not _no_guard:
            if _entry[0] is _guard and not _guard({inputs}):
                _entry = _op.remember(_key, {call})
            _op.last_guard = _entry
        _autograd, _single_launch, _run = _entry[-3:]
    if _autograd is not None and _grad():
        return _autograd({inputs})
    if _single_launch is not None:
        return _single_launch({at})
    return _run(({inputs}), {out}, [{at}])
"""

KEY_TEMPLATE = """\
def plan_key(_inputs, _params, out):
    ({inputs}), ({params}) = _inputs, _params
    {addresses}
    return (_pins(), {key})
"""

UNGUARDED_TEMPLATE = """\
def unguarded(_inputs):
    ({inputs}) = _inputs
    {addresses}
    return ({values})
"""

AUTOGRAD_FORWARD_TEMPLATE = """\
def forward(_ctx, {inputs}):
    _made = {compute}
    {several}_ctx.save_for_backward({saved})
    return _made
"""

SINGLE_LAUNCH_TEMPLATE = """\
def run({at}):
    {elsewhere}
    {made}
    try:
        kernarg, slots, launch = _local.thread_state
    except AttributeError:
        kernarg, slots, launch = _thread_state()
    {writes}
    launch(_stream({index}))
    return {results}
"""


def no_guard(*tensors: Any) -> bool:
    """The guard of tensors that no single check recognises: it never accepts."""
    return False


def unknown(spec: Spec) -> Entry:
    """The entry of no call: what the fast path compares the first one with."""
    values = 1 + len(spec.params) + len(spec.inputs) * len(_unguarded_parts()) + 3
    return no_guard, *(None,) * values


def guard_of(tensors: Sequence[Any]) -> Callable[..., bool]:
    """A function of tensors: whether torch sees no difference to these but data and address.

    It compares types, dtypes, devices, sizes, strides, requires_grad and what else torch's dispatcher goes
    by: negated views, autocast, transforms, inference mode. torch guards the code of torch.compile by it; it
    takes 0.15 us, where comparing one by one takes 1. It must not be called on what has no sizes or strides,
    a nested tensor or one without storage: that would end the process.
    """
    if _guards is None or any(t is None for t in tensors):
        return no_guard
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    check = _guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check if check(*tensors) else no_guard  # it never accepts one tensor twice


# Names that the generated call uses. torch's functions for its state cost 0.02 to 0.1 us each.
_HELPERS: dict[str, Any] = {
    "_missing": MISSING,
    "_PLAIN": PLAIN,
    "_no_guard": no_guard,
    "_SHAPES": torch_form.SHAPES,
    "_pins": pins.active_pins,
    "_is_compiling": torch.compiler.is_dynamo_compiling,
    "_dispatch_modes": torch._C._len_torch_dispatch_stack,
    "_function_modes": torch._C._len_torch_function_stack,
    "_transform": torch._C._functorch.peek_interpreter_stack,  # type: ignore[attr-defined]
    "_autocast": torch._C._is_any_autocast_enabled,
    "_grad": torch.is_grad_enabled,
    "_forward_mode": torch.autograd.forward_ad,
}


def is_busy() -> bool:
    """Whether torch has a mode, forward-mode differentiation or a transform on that must see every call."""
    modes = _HELPERS["_dispatch_modes"]() or _HELPERS["_function_modes"]()
    return bool(modes) or _HELPERS["_forward_mode"]._current_level >= 0 or has_transform()


def has_transform() -> bool:
    """Whether a transform of torch.func is on."""
    return _HELPERS["_transform"]() is not None


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, a kernel of torch's dispatcher, run as it is where a graph breaks.

    torch.compile traces what Python is called between two graphs, and does not know that a kernel's tensors
    have levels of torch.func: tangents were zero (2026-11-23).
    """
    disabled: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not disabled:
            if "torch._dynamo" not in sys.modules:  # nothing compiles; to import it takes seconds
                return function(*args, **kwargs)
            disabled.append(torch._dynamo.disable(function))
        return disabled[0](*args, **kwargs)

    return call


def function(spec: Spec, text: str) -> Callable[..., Any]:
    """The shortcut `text` as a function, to be `__call__` of the op's class."""
    return _made(spec.op, f"<portable.{spec.op}>", text, _HELPERS)


def source(spec: Spec, signature: Signature) -> str:
    """The text of the shortcut of one op."""
    defaults = dict(zip(signature.names, signature.defaults, strict=True))
    absent = {name: "_missing" if value is MISSING else repr(value) for name, value in defaults.items()}
    positional, keywords = signature.names[: signature.positional], signature.names[signature.positional :]
    optional = [name for name in positional if absent[name] != "_missing"]
    fill = [f"if {name} is _missing: {name} = {absent[name]}" for name in optional]
    once = {name: f" and {name} is _missing" for name in positional}
    slot = torch_form.shape_slot(spec)
    if slot is not None:  # with a shape there the call is in torch's form, and its names are torch's
        once = {name: f"{once.get(name, '')} and type({slot}) not in _SHAPES" for name in signature.names}
        once[slot] = f" and {slot} is _missing"
    by_name = [
        f"if {name!r} in _named{once.get(name, '')}: {name}, _left = _named[{name!r}], _left - 1"
        for name in signature.names
    ]

    inputs, out = list(spec.inputs), "out" if spec.out else "None"
    held = {name: f"_held_{name}" for name in spec.params}
    unguarded = [f"_held_{name}_{i}" for name in inputs for i in range(len(_unguarded_parts()))]
    like = ["out is None"] if spec.out else []
    like += [f"type({name}) in _PLAIN and not {name}.is_nested" for name in inputs]
    like += [f"({_at(name)} := {name}.data_ptr()) >= {LEAST_ADDRESS}" for name in inputs]
    for name, value in zip(_unguarded_values(inputs), unguarded, strict=True):
        like.append(f"{name} == {value}")
    like += [f"{name} is {held[name]}" for name in spec.params]
    odd = ["_autocast()"] if spec.autocast != "none" else []
    for name, may_lack in _tensors(spec).items():
        test = f"type({name}) not in _PLAIN or {name}.is_neg()"
        odd.append(f"{name} is not None and ({test})" if may_lack else test)
    return CALL_TEMPLATE.format(
        op=spec.op,
        positional=_list(f"{name}=_missing" for name in positional),
        defaults="\n    ".join(f"{name} = {absent[name]}" for name in keywords),
        given=_list(positional),
        by_name="\n        ".join(by_name),
        fill="\n    ".join(fill),
        call=f"({_list(inputs)}), ({_list(spec.params)}), {out}",
        held=_list(held.values()),
        unguarded=_list(unguarded),
        like=" and ".join(like),
        odd=" or ".join(odd),
        addresses="\n            ".join(_addresses(_tensors(spec))),
        key=_key(spec, (*TENSOR_KEY, *AUTOGRAD_KEY)),
        inputs=_list(inputs),
        at=_list(map(_at, inputs)),
        out=out,
    )


def plan_key(spec: Spec) -> Callable[[Sequence[Any], Sequence[Any], Any], tuple[Any, ...]]:
    """A function of the inputs, parameters and `out` of a call: the plan cache's key.

    It raises RuntimeError, TypeError or AttributeError for what is no dense tensor, which the checks name.
    """
    text = KEY_TEMPLATE.format(
        inputs=_list(spec.inputs),
        params=_list(spec.params),
        addresses="\n    ".join(_addresses(_tensors(spec))),
        key=_key(spec, TENSOR_KEY),
    )
    return _made("plan_key", f"<the plan key of portable.{spec.op}>", text, _HELPERS)


def unguarded(spec: Spec) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function of a call's inputs: the parts of TENSOR_KEY that torch's guard does not compare."""
    inputs = {field.name: field.optional for field in spec.inputs.values()}
    text = UNGUARDED_TEMPLATE.format(
        inputs=_list(inputs),
        addresses="\n    ".join(_addresses(inputs)),
        values=_list(f"None if {n} is None else {v}" if inputs[n] else v
                     for n in inputs for v in _unguarded_values([n])),
    )  # fmt: skip
    return _made("unguarded", f"<portable.{spec.op}'s tensors>", text, _HELPERS)


def _tensors(spec: Spec) -> dict[str, bool]:
    """The tensors of a call and whether each may be absent."""
    found = {field.name: field.optional for field in spec.inputs.values()}
    return found | ({"out": True} if spec.out else {})


def _at(name: str) -> str:
    """The variable that holds a tensor's address."""
    return f"_at_{name}"


def _addresses(tensors: Mapping[str, bool]) -> list[str]:
    return [
        f"{_at(name)} = {f'0 if {name} is None else ' if may_lack else ''}{name}.data_ptr()"
        for name, may_lack in tensors.items()
    ]


def _key(spec: Spec, parts: Sequence[KeyPart]) -> str:
    """The inside of a key's tuple after the pins."""
    key = []
    for param in spec.params.values():
        key += [param.name, f"type({param.name})"] if param.type in _TYPED else [param.name]
    for name, may_lack in _tensors(spec).items():
        values = ", ".join(part.text.format(t=name, at=_at(name)) for part in parts)
        key.append(f"None if {name} is None else ({values})" if may_lack else values)
    return _list(key)


def _unguarded_parts() -> list[KeyPart]:
    return [part for part in TENSOR_KEY if not part.guarded]


def _unguarded_values(names: Iterable[str]) -> list[str]:
    """Expressions of what torch's guard does not compare."""
    return [part.text.format(t=name, at=_at(name)) for name in names for part in _unguarded_parts()]


def single_launch(
    launch: BoundLaunch, inputs: int, allocations: Sequence[Allocation], backend: Backend, index: int
) -> Callable[..., Any]:
    """A function of the addresses of a call's inputs: its new tensors and one launch on device `index`."""
    addresses, made = [f"at{i}" for i in range(inputs)], [f"made{i}" for i in range(len(allocations))]
    by_slot = [*addresses, *(f"{name}.data_ptr()" for name in made)]
    writes = [f"slots[{word}] = {by_slot[slot]}" for word, slot in launch.pointers]
    names: dict[str, Any] = {}
    for i, allocation in enumerate(allocations):
        names |= zip((f"_shape{i}", f"_strides{i}", f"_dtype{i}"), allocation, strict=True)
    names |= {"_empty": backend.empty, "_local": launch.local, "_thread_state": launch.thread_state}
    names |= {"_stream": backend.stream, "_current": backend.current, "_on": backend.on}
    for i, (first, end, slot, encode) in enumerate(launch.encoded):
        names[f"_encode{i}"] = encode
        writes.append(f"kernarg[{first}:{end}] = _encode{i}({by_slot[slot]})")
    elsewhere = f"""if _current() != {index}:
        with _on({index}):
            return run({_list(addresses)})"""
    text = SINGLE_LAUNCH_TEMPLATE.format(
        at=_list(addresses),
        elsewhere=elsewhere if backend.count() > 1 else "",
        made="\n    ".join(f"{n} = _empty(_shape{i}, _strides{i}, _dtype{i})" for i, n in enumerate(made)),
        writes="\n    ".join(writes),
        results=made[0] if len(made) == 1 else f"({_list(made)})",
        index=index,
    )
    return _made("run", f"<{launch.name}>", text, names)


def forward(
    inputs: Sequence[str],
    absent: Sequence[str],
    single_launch: Any,
    compute: Any,
    saved: Iterable[str],
    several: bool,
) -> Callable[..., Any]:
    """What autograd calls for a new result; `saved` names inputs, or "_made", which is the result, or one of
    `several` results as "_made[0]": then no gradients of zeros are made for those that have none."""
    addresses = ("0" if name in absent else f"{name}.data_ptr()" for name in inputs)
    text = AUTOGRAD_FORWARD_TEMPLATE.format(
        inputs=_list(inputs),
        compute=f"_compute(({_list(inputs)}))"
        if single_launch is None
        else f"_single_launch({_list(addresses)})",
        several="_ctx.set_materialize_grads(False); " if several else "",
        saved=_list(saved),
    )
    return _made("forward", "<a recorded call>", text, {"_single_launch": single_launch, "_compute": compute})


def _made(name: str, file: str, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that `text` defines, with `names` in its closure; tracebacks show its lines."""
    body = "".join(f"    {line}" for line in text.splitlines(keepends=True))
    outer = f"def make({', '.join(names)}):\n{body}    return {name}\n"
    linecache.cache[file] = (len(outer), None, outer.splitlines(keepends=True), file)
    # Made within this module: torch.compile follows a function's globals into its module.
    made: dict[str, Any] = {}
    exec(compile(outer, file, "exec"), globals(), made)
    return made["make"](**names)


def _list(names: Iterable[str]) -> str:
    """A tuple's inside: "a, b, "."""
    return "".join(f"{name}, " for name in names)
