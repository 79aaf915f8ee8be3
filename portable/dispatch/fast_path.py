"""The function behind `portable.<op>(...)`: written out per op, so that a call seen before costs little.

`Op.dispatch_slow` handles every call. The fast path before it first compares the call with the one that came
after the last one the time before, as steps of a program repeat: two checks per tensor and one guard for all.
If they differ, it builds the key of everything a plan may depend on and looks up the plan of an earlier call.
Loops over a signature would take twice as long, so the fast path is source text, filled in per op;
`portable.softmax.source` shows it.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
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
values, a list that holds the entry of the call that followed it last time, at first its own, the autograd
function or None, `from_addresses` or None, what computes it in any case)."""


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
# cache and the comparison with the expected call are all generated from this list.
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

BODY_TEMPLATE = """\
    if _is_compiling() or _dispatch_modes() or _function_modes() or _forward_mode._current_level >= 0:
        return _op.dispatch_slow({call})
    (_guard, _held, {held}{unguarded}_following, _autograd, _from_addresses, _run) = _op.following[0]
    {no_address}
    try:
        _like = {like} and _guard({guarded}) and _pins() is _held
    except RuntimeError:  # a tensor without an address
        _like = False
    if _like:
        _op.following = _following
    else:
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
            if _entry[0] is _guard and not _guard({guarded}):
                _entry = _op.remember(_key, {call})
            _op.following[0] = _entry
            _op.following = _entry[-4]
        _autograd, _from_addresses, _run = _entry[-3:]
    if _autograd is not None and _grad():
        return _autograd({inputs})
    if _from_addresses is not None:
        return _from_addresses({at})
    return _run(({inputs}), {out}, [{at}])
"""

CALL_TEMPLATE = """\
def {op}(_op, {positional}/, *_rest, **_named):
    {defaults}
    if _rest or _named:
        _given, _left = ({given}*_rest), len(_rest) + len(_named)
        {by_name}
        if _left:  # a name that is not there, or given twice: torch's form, or an error
            return _op.call_in_torch_form(_given, _named)
    {fill}
{body}"""

BY_POSITION_TEMPLATE = """\
def {op}({arguments}):
    {out}
{body}"""

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

AUTOGRAD_BACKWARD_TEMPLATE = """\
def backward(_ctx, {grads}):
    if _pins() is not _held:  # autograd runs in other threads, outside any `using`
        with _restored(_held):
            return backward(_ctx, {grads})
    ({needs}) = _ctx.needs_input_grad
    {refused}
    {statement}
    return ({results})
"""

AUTOGRAD_FORWARD_TEMPLATE = """\
def forward(_ctx, {inputs}):
    _made = {compute}
    {several}_ctx.save_for_backward({saved})
    return _made
"""

FROM_ADDRESSES_TEMPLATE = """\
def run({at}):
    {elsewhere}
    {made}
    now = _stream({index})
{launches}    return {results}
"""

LAUNCH_TEMPLATE = """\
    try:
        kernarg, slots, launch = _local{i}.thread_state
    except AttributeError:
        kernarg, slots, launch = _thread_state{i}()
    {writes}
    launch(now)
"""


def no_guard(*tensors: Any) -> bool:
    """The guard of tensors that no single check recognises: it never accepts."""
    return False


def unknown(spec: Spec) -> Entry:
    """The entry of no call: what the fast path compares the first one with."""
    values = 1 + len(spec.params) + len(spec.inputs) * len(_unguarded_parts()) + 4
    return no_guard, *(None,) * values


class _Absent(torch.Tensor):
    """Stands for an input that is None where torch's guard compares tensors. No call has one of this type."""


def _absent(place: int) -> torch.Tensor:
    """That of one place in a signature: the guard takes no tensor twice."""
    while len(_stand_ins) <= place:
        _stand_ins.append(torch.empty(0, device="cpu").as_subclass(_Absent))
    return _stand_ins[place]


_stand_ins: list[torch.Tensor] = []


def guard_of(tensors: Sequence[Any]) -> Callable[..., bool]:
    """A function of tensors: whether torch sees no difference to these but data and address.

    It compares types, dtypes, devices, sizes, strides, requires_grad and what else torch's dispatcher goes
    by: negated views, autocast, transforms, inference mode. torch guards the code of torch.compile by it; it
    takes 0.15 us, where comparing one by one takes 1. It must not be called on what has no sizes or strides,
    a nested tensor or one without storage: that would end the process. For an input that is absent it takes
    `_absent` of its place.
    """
    if _guards is None:
        return no_guard
    tensors = [_absent(i) if t is None else t for i, t in enumerate(tensors)]
    sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    check = _guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check if check(*tensors) else no_guard  # it never accepts one tensor twice


# Names that the generated call uses. torch's functions for its state cost 0.02 to 0.1 us each.
_HELPERS: dict[str, Any] = {
    "_missing": MISSING,
    "_PLAIN": PLAIN,
    "_no_guard": no_guard,
    "_absent": _absent,
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

    return CALL_TEMPLATE.format(
        op=spec.op,
        positional=_list(f"{name}=_missing" for name in positional),
        defaults="\n    ".join(f"{name} = {absent[name]}" for name in keywords),
        given=_list(positional),
        by_name="\n        ".join(by_name),
        fill="\n    ".join(fill),
        body=_body(spec),
    )


def _body(spec: Spec) -> str:
    """What a call does when its arguments are known by name."""
    inputs, out = _inputs(spec), "out" if spec.out else "None"
    held = {name: f"_held_{name}" for name in spec.params}
    unguarded = [f"_held_{name}_{i}" for name in inputs for i in range(len(_unguarded_parts()))]
    like = ["out is None"] if spec.out else []
    like += [_unless_absent(f"type({n}) in _PLAIN and not {n}.is_nested", n, inputs[n]) for n in inputs]
    like += [_unless_absent(f"({_at(n)} := {n}.data_ptr()) >= {LEAST_ADDRESS}", n, inputs[n]) for n in inputs]
    names = [name for name in inputs for _ in _unguarded_parts()]
    for name, part, value in zip(names, _unguarded_values(inputs), unguarded, strict=True):
        like.append(_unless_absent(f"{part} == {value}", name, inputs[name]))
    for name, value in held.items():
        same = f"{name} is {value}"
        if spec.params[name].type in _TYPED:
            same = f"({same} or type({name}) is type({value}) and {name} == {value})"
        like.append(same)
    odd = ["_autocast()"] if spec.autocast != "none" else []
    for name, may_lack in _tensors(spec).items():
        test = f"type({name}) not in _PLAIN or {name}.is_neg()"
        odd.append(f"{name} is not None and ({test})" if may_lack else test)
    guarded = (f"_absent({i}) if {n} is None else {n}" if inputs[n] else n for i, n in enumerate(inputs))
    return BODY_TEMPLATE.format(
        call=f"({_list(inputs)}), ({_list(spec.params)}), {out}",
        held=_list(held.values()),
        unguarded=_list(unguarded),
        no_address="; ".join(f"{_at(name)} = 0" for name, may_lack in inputs.items() if may_lack),
        like=" and ".join(like),
        guarded=_list(guarded),
        odd=" or ".join(odd),
        addresses="\n            ".join(_addresses(_tensors(spec))),
        key=_key(spec, (*TENSOR_KEY, *AUTOGRAD_KEY)),
        inputs=_list(inputs),
        at=_list(map(_at, inputs)),
        out=out,
    )


@functools.cache
def by_position(op: Any) -> Callable[..., Any]:
    """An op as a function of its inputs, then its parameters, all by position: 0.1 us less for each name."""
    spec: Spec = op.spec
    text = BY_POSITION_TEMPLATE.format(
        op=spec.op,
        arguments=_list((*spec.inputs, *spec.params)),
        out="out = None" if spec.out else "",
        body=_body(spec),
    )
    return _made(spec.op, f"<portable.{spec.op} by position>", text, {**_HELPERS, "_op": op})


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
    inputs = _inputs(spec)
    text = UNGUARDED_TEMPLATE.format(
        inputs=_list(inputs),
        addresses="\n    ".join(_addresses(inputs)),
        values=_list(f"None if {n} is None else {v}" if inputs[n] else v
                     for n in inputs for v in _unguarded_values([n])),
    )  # fmt: skip
    return _made("unguarded", f"<portable.{spec.op}'s tensors>", text, _HELPERS)


def _tensors(spec: Spec) -> dict[str, bool]:
    """The tensors of a call and whether each may be absent."""
    return _inputs(spec) | ({"out": True} if spec.out else {})


def _inputs(spec: Spec) -> dict[str, bool]:
    """The inputs of a call and whether each may be absent."""
    return {field.name: field.optional for field in spec.inputs.values()}


def _unless_absent(test: str, name: str, may_lack: bool) -> str:
    return f"({name} is None or {test})" if may_lack else test


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


def from_addresses(
    launches: Sequence[BoundLaunch],
    inputs: int,
    allocations: Sequence[Allocation],
    workspaces: Sequence[Allocation],
    backend: Backend,
    index: int,
) -> Callable[..., Any]:
    """A function of the addresses of a call's inputs: its new tensors and the launches on device `index`."""
    new = [*allocations, *workspaces]
    made = [f"made{i}" for i in range(len(new))]
    by_slot = [f"at{i}" for i in range(inputs + len(new))]
    addresses, made_at = by_slot[:inputs], by_slot[inputs:]
    names: dict[str, Any] = {"_empty": backend.empty, "_stream": backend.stream}
    names |= {"_current": backend.current, "_on": backend.on}
    makes, text = [], ""
    for i, allocation in enumerate(new):
        names |= zip((f"_shape{i}", f"_strides{i}", f"_dtype{i}"), allocation, strict=True)
        makes.append(f"{made[i]} = _empty(_shape{i}, _strides{i}, _dtype{i})")
        makes.append(f"{made_at[i]} = {made[i]}.data_ptr()")
    for i, launch in enumerate(launches):
        writes = [f"slots[{word}] = {by_slot[slot]}" for word, slot in launch.pointers]
        for k, (first, end, slot, encode) in enumerate(launch.encoded):
            names[f"_encode{i}_{k}"] = encode
            writes.append(f"kernarg[{first}:{end}] = _encode{i}_{k}({by_slot[slot]})")
        names |= {f"_local{i}": launch.local, f"_thread_state{i}": launch.thread_state}
        text += LAUNCH_TEMPLATE.format(i=i, writes="\n    ".join(writes))
    elsewhere = f"""if _current() != {index}:
        with _on({index}):
            return run({_list(addresses)})"""
    results = made[: len(allocations)]
    text = FROM_ADDRESSES_TEMPLATE.format(
        at=_list(addresses),
        elsewhere=elsewhere if backend.count() > 1 else "",
        made="\n    ".join(makes),
        launches=text,
        results=results[0] if len(results) == 1 else f"({_list(results)})",
        index=index,
    )
    return _made("run", f"<{launches[0].name}>", text, names)


def forward(
    inputs: Sequence[str],
    absent: Sequence[str],
    from_addresses: Any,
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
        if from_addresses is None
        else f"_from_addresses({_list(addresses)})",
        several="_ctx.set_materialize_grads(False); " if several else "",
        saved=_list(saved),
    )
    names = {"_from_addresses": from_addresses, "_compute": compute}
    return _made("forward", "<a recorded call>", text, names)


def backward(
    grads: Sequence[str],
    statement: str,
    found: Mapping[str, str],
    refused: Sequence[str],
    names: dict[str, Any],
) -> Callable[..., Any]:
    """What autograd calls for the gradients of the inputs: by input the expression that is `found`, after a
    statement of `_ctx`, of `grads`, the gradients of the outputs, and of `names`. Inputs that are `refused`
    have none. `_held`, the pins of the call, and `_refuse` are among `names`."""
    text = AUTOGRAD_BACKWARD_TEMPLATE.format(
        grads=_list(grads),
        needs=_list(f"_needs_{name}" for name in found),
        refused="\n    ".join(f"if _needs_{name}: _refuse({name!r})" for name in refused),
        statement=statement,
        results=_list(
            each if each == "None" else f"{each} if _needs_{name} else None" for name, each in found.items()
        ),
    )
    names = {"_pins": pins.active_pins, "_restored": pins.restored, **names}
    return _made("backward", "<the gradients of a recorded call>", text, names)


def _made(name: str, file: str, text: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that `text` defines, with `names` in its closure; tracebacks show its lines."""
    body = "".join(f"    {line}" for line in text.splitlines(keepends=True))
    outer = f"def make({', '.join(names)}):\n{body}    return {name}\n"
    linecache.cache[file] = (len(outer), None, outer.splitlines(keepends=True), file)
    # Made within this module: torch.compile follows a function's globals into its module.
    made: dict[str, Any] = {}
    exec(_compiled(outer, file), globals(), made)
    return made["make"](**names)


@functools.lru_cache(maxsize=512)
def _compiled(text: str, file: str) -> CodeType:
    return compile(text, file, "exec")


def _list(names: Iterable[str]) -> str:
    """A tuple's inside: "a, b, "."""
    return "".join(f"{name}, " for name in names)
