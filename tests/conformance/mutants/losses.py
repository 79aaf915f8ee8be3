"""Wrong losses: cross-entropy, log-probabilities and their gradients with one step replaced."""

from __future__ import annotations

import torch

from .registry import Edit, mutant, source
from .tools import right, wide

SCAN = "_lib/rows/log_sum_exp.h"
TRITON = "cross_entropy/triton_impl.py"
TRITON_SCAN = "_lib/triton/log_sum_exp.py"


class Loss:
    """The loss of rows, step by step; a mutant is one with a step replaced."""

    def score(self, x, cap):
        return x if cap is None else cap * torch.tanh(x / cap)

    def log_sum_exp(self, s):
        return torch.logsumexp(s, -1)

    def ignored(self, target, ignore_index):
        return target == ignore_index

    def even(self, s, target):
        return s.mean(-1)

    def own(self, weight, target):
        return weight[target.clamp(0, len(weight) - 1)]

    def of_classes(self, weight, s, lse):
        return (weight * (lse[:, None] - s)).mean(-1)

    def extra(self, lse, z_loss):
        return z_loss * lse.square()

    def __call__(self, logits, target, weight=None, *, ignore_index, label_smoothing, softcap, z_loss):
        s = self.score(wide(logits), softcap)
        lse, ignored = self.log_sum_exp(s), self.ignored(target, ignore_index)
        at = s.gather(-1, target.clamp(0, s.shape[-1] - 1)[:, None])[:, 0]
        if weight is None:
            loss = lse - (1 - label_smoothing) * at
            if label_smoothing:
                loss = loss - label_smoothing * self.even(s, target)
        else:
            loss = (1 - label_smoothing) * self.own(wide(weight), target) * (lse - at)
            if label_smoothing:
                loss = loss + label_smoothing * self.of_classes(wide(weight), s, lse)
        if z_loss:
            loss = loss + self.extra(lse, z_loss)
        return loss.masked_fill(ignored, 0), lse.masked_fill(ignored, 0)


def _add(name):
    def add(kind):
        mutant("cross_entropy", name)(kind())
        return kind

    return add


@_add("rows to ignore have a loss")
class _(Loss):
    def ignored(self, target, ignore_index):
        return torch.zeros_like(target, dtype=torch.bool)


@_add("ignore_index taken for the default")
class _(Loss):
    def ignored(self, target, ignore_index):
        return target == -100


@_add("all negative targets ignored, and no other")
class _(Loss):
    def ignored(self, target, ignore_index):
        return target < 0


@_add("smoothing leaves the target's class out")
class _(Loss):
    def even(self, s, target):
        at = s.gather(-1, target.clamp(0, s.shape[-1] - 1)[:, None])[:, 0]
        return (s.sum(-1) - at) / max(s.shape[-1] - 1, 1)


@_add("smoothing of the class behind the target")
class _(Loss):
    def even(self, s, target):
        return s.gather(-1, ((target + 1) % s.shape[-1])[:, None])[:, 0]


@_add("weight of the class behind the target")
class _(Loss):
    def own(self, weight, target):
        return weight[(target + 1) % len(weight)]


@_add("weights forgotten where the target is another class")
class _(Loss):
    def of_classes(self, weight, s, lse):
        return lse - s.mean(-1)


@_add("mean over the weights, not over the classes")
class _(Loss):
    def of_classes(self, weight, s, lse):
        return (weight * (lse[:, None] - s)).sum(-1) / weight.sum()


@_add("maximum not subtracted")
class _(Loss):
    def log_sum_exp(self, s):
        return torch.exp(s).sum(-1).log()


@_add("last class left out of the sum")
class _(Loss):
    def log_sum_exp(self, s):
        return torch.logsumexp(s[..., : max(s.shape[-1] - 1, 1)], -1)


@_add("sign of z_loss turned")
class _(Loss):
    def extra(self, lse, z_loss):
        return -z_loss * lse.square()


@_add("z_loss of lse, not of its square")
class _(Loss):
    def extra(self, lse, z_loss):
        return z_loss * lse


@_add("logits clamped to the softcap")
class _(Loss):
    def score(self, x, cap):
        return x if cap is None else x.clamp(-cap, cap)


def _backward(name, change):
    """A gradient whose arguments or result `change` replaces."""

    @mutant("cross_entropy_backward", name)
    def _(dloss, logits, target, lse, dlse=None, weight=None, weight_mean=None, **params):
        given = {"dloss": dloss, "logits": logits, "target": target, "lse": lse, "dlse": dlse}
        given |= {"weight": weight, "weight_mean": weight_mean, **params}
        return right("cross_entropy_backward")(**{**given, **change(given)})


_backward("z_loss forgotten", lambda given: {"z_loss": 0.0})
_backward("sign of z_loss turned", lambda given: {"z_loss": -given["z_loss"]})
_backward("dlse forgotten", lambda given: {"dlse": None})
_backward("smoothing forgotten", lambda given: {"label_smoothing": 0.0})
_backward("rows to ignore have a gradient", lambda given: {"ignore_index": -1})
_backward("weights forgotten", lambda given: {"weight": None})
_backward("mean of the weights forgotten", lambda given: {"weight_mean": None})
_backward("target of the class behind", lambda given: {"target": given["target"] + 1})


@mutant("cross_entropy_backward", "derivative of the softcap forgotten")
def no_slope(dloss, logits, target, lse, dlse=None, weight=None, weight_mean=None, *, softcap, **params):
    scores = logits if softcap is None else (softcap * torch.tanh(wide(logits) / softcap)).to(logits.dtype)
    given = (dloss, scores, target, lse, dlse, weight, weight_mean)
    return right("cross_entropy_backward")(*given, softcap=None, **params)


def _logprob(name, change):
    """The right outputs, after `change` of them."""

    @mutant("selected_logprob", name)
    def _(logits, index, *, temperature):
        found = right("selected_logprob")(logits, index, temperature=temperature)
        return change(*found, wide(logits) / temperature, temperature)


_logprob(
    "entropy in base 2", lambda logprob, entropy, lse, s, t: (logprob, entropy / 0.6931471805599453, lse)
)
_logprob("sign of the entropy turned", lambda logprob, entropy, lse, s, t: (logprob, -entropy, lse))
_logprob(
    "entropy not moved to the maximum of the row",
    lambda logprob, entropy, lse, s, t: (logprob, entropy + s.amax(-1), lse),
)
_logprob("temperature left out of lse", lambda logprob, entropy, lse, s, t: (logprob, entropy, lse * t))


@mutant("selected_logprob", "temperature a factor")
def multiplied(logits, index, *, temperature):
    return right("selected_logprob")(logits, index, temperature=1 / temperature)


@mutant("selected_logprob", "a class of probability 0 makes the entropy NaN")
def zero_times_infinity(logits, index, *, temperature):
    logp = torch.log_softmax(wide(logits) / temperature, -1)
    logprob, _, lse = right("selected_logprob")(logits, index, temperature=temperature)
    return logprob, -(logp.exp() * logp).sum(-1), lse


def _logprob_backward(name, change):
    """A gradient whose arguments `change` replaces."""

    @mutant("selected_logprob_backward", name)
    def _(dlogprob, dentropy, logits, index, entropy, lse, dlse=None, *, temperature):
        given = {"dlogprob": dlogprob, "dentropy": dentropy, "logits": logits, "index": index}
        given |= {"entropy": entropy, "lse": lse, "dlse": dlse, "temperature": temperature}
        return right("selected_logprob_backward")(**{**given, **change(given)})


_logprob_backward("entropy left out of its gradient", lambda given: {"entropy": 0 * given["entropy"]})
_logprob_backward("sign of dentropy turned", lambda given: {"dentropy": -given["dentropy"]})
_logprob_backward("dlse forgotten", lambda given: {"dlse": None})


@mutant("selected_logprob_backward", "gradient not divided by the temperature")
def not_divided(*tensors, temperature):
    return right("selected_logprob_backward")(*tensors, temperature=temperature) * temperature


source(
    *("selected_logprob", "cpp", "gfx942", "entropy's sum not moved when the maximum grows"),
    Edit(SCAN, "$scale * math_fma(distance, value[1], value[2])", "$scale * value[2]"),
)
source(
    *("selected_logprob", "triton", "gfx942", "entropy's sum not moved when lanes are merged"),
    Edit(TRITON_SCAN, "power * (moment + tl.maximum(distance, -FARTHEST) * total)", "power * moment"),
)
source(
    *("cross_entropy", "cpp", "gfx942", "sum not rescaled when the maximum grows"),
    Edit(SCAN, "value[1] *= $scale;", ""),
)
source(
    *("cross_entropy", "cpp", "gfx942", "elements beyond the row are 0"),
    Edit(SCAN, "if (!inside($base + chunk_column($c), $i, $count)) continue;", ""),
)
source(
    *("cross_entropy", "triton", "gfx942", "elements beyond the row are 0"),
    Edit(TRITON, 'x = tl.where(mask, x, -float("inf"))', "x = x"),
)
source(
    *("cross_entropy_backward", "triton", "gfx942", "target compared within a tile, not within the row"),
    Edit(TRITON, "tl.where(col == target[:, None]", "tl.where(col % BLOCK == target[:, None]"),
)
source(
    *("cross_entropy", "cpp", "gfx942", "weights of a lane's first elements"),
    Edit(SCAN, "weight[base + chunk_column(c) + $i]", "weight[base + chunk_column(c)]"),
)
source(
    *("cross_entropy", "triton", "gfx942", "weights of a tile, not of the row"),
    Edit(
        TRITON,
        "tl.load(weight_ptr + col, mask=col < length, other=0.0)\n                even",
        "tl.load(weight_ptr + lane, mask=lane < length, other=0.0)\n                even",
    ),
)
source(
    *("cross_entropy_backward", "cpp", "gfx942", "weight left out of the target's class"),
    Edit("cross_entropy/cross_entropy.cu", "upstream * own;", "upstream * (1.0f - label_smoothing);"),
)

COLUMNS = "cross_entropy/cross_entropy.cu"
TRITON_COLUMNS = "cross_entropy/columns_triton.py"


def _columns(impl, name, *edits, op="cross_entropy"):
    """A change of the kernels that logits in other strides than those of rows go to."""
    source(op, impl, "gfx942", f"by columns: {name}", *edits)


_columns("cpp", "classes beyond the last are 0", Edit(COLUMNS, "if ($column >= $end) continue;", ""))
_columns(
    "cpp", "the second half of the slots left out", Edit(COLUMNS, "$half = ROWS / 2;", "$half = ROWS / 4;")
)
_columns(
    *("cpp", "no barrier before the slots are reduced"),
    Edit(COLUMNS, "exchanged[$slot][$first + $i] = $value[$i]; barrier();",
         "exchanged[$slot][$first + $i] = $value[$i];"),
)  # fmt: skip
_columns(
    *("cpp", "score of the target by rows"),
    Edit(COLUMNS, "to_float($row[$wanted * class_stride])", "to_float($row[$wanted])"),
)
_columns(
    *("cpp", "weight of a lane's first class for all of its classes"),
    Edit(COLUMNS, "THIRD == WEIGHTED ? weight[$column] : 1.0f", "THIRD == WEIGHTED ? weight[base] : 1.0f"),
)
_columns(
    *("cpp", "the last class of a part left out"),
    Edit(COLUMNS, "min($begin + SPAN, length)", "min($begin + SPAN - 1, length)"),
)
_columns(
    *("cpp", "a part added about its own maximum"),
    Edit(COLUMNS, "other.move(larger);", ""),
)
_columns(
    *("cpp", "parts beyond the slots left out"),
    Edit(COLUMNS, "$row < $rows && $index < $count;", "$row < $rows && $index < $count && $index < ROWS;"),
)
_columns(
    *("triton", "classes beyond the last are 0"),
    Edit(TRITON_COLUMNS, 'tl.where(mask, x, -float("inf"))', "x"),
)
_columns(
    "triton", "all programs read the first part", Edit(TRITON_COLUMNS, "begin = part * SPAN", "begin = 0")
)
_columns(
    *("triton", "a part added about its own maximum"),
    Edit(TRITON_COLUMNS, "whole_of * addend(larger - most_of)", "whole_of"),
)
_columns(
    *("triton", "sum of parts not rescaled when the maximum grows"),
    Edit(TRITON_COLUMNS, "total * addend(larger - highest) + whole_of", "total + whole_of"),
)
_columns(
    *("triton", "the smoothed sum of the first parts alone"),
    Edit(TRITON_COLUMNS, "even += tl.load(place", "even = tl.load(place"),
)
_columns(
    *("cpp", "one class of a lane compared with the target"),
    Edit(COLUMNS, "offset == c * ROWS", "offset == 0"),
    op="cross_entropy_backward",
)
_columns(
    *("cpp", "the gradient written by the strides of the logits"),
    Edit(COLUMNS, "* dlogits_class_stride;", "* class_stride;"),
    op="cross_entropy_backward",
)
_columns(
    *("triton", "target compared within a tile"),
    Edit(TRITON_COLUMNS, "tl.where(index[:, None] == target", "tl.where((index % BLOCK)[:, None] == target"),
    op="cross_entropy_backward",
)
