"""All mutants, in a fixed order, and those that the suite does not reject."""

from __future__ import annotations

from . import (
    activations,
    attention_holes,
    attention_in_8_bits,
    attention_sources,
    attentions,
    caches,
    caches_in_8_bits,
    calls,
    codes_in_registers,
    dequantisers,
    four_bit_products,
    four_bits,
    gated_products,
    gradients,
    holes,
    int8_by_int4_products,
    integer_products,
    integers,
    losses,
    means,
    microscales,
    norms,
    optimizers,
    pages,
    products,
    quantised_gates,
    quantised_norms,
    quantisers,
    quantisers_to_4_bits,
    ropes,
    samples,
    scaled_groups,
    scaled_products,
    softmaxes,
    sources,
    sparse_scaled_products,
    sparse_weights,
    tables,
    varlen,
    weights,
    weights_in_4_bits,
)
from .registry import Mutant, found

MODULES = (
    *(
        activations,
        attention_holes,
        attention_in_8_bits,
        attention_sources,
        attentions,
        caches,
        caches_in_8_bits,
        calls,
        gradients,
        holes,
    ),
    *(
        dequantisers,
        four_bit_products,
        four_bits,
        gated_products,
        int8_by_int4_products,
        integer_products,
        integers,
        losses,
        means,
        microscales,
        norms,
        optimizers,
        weights,
        weights_in_4_bits,
        codes_in_registers,
        varlen,
        pages,
        products,
        quantised_gates,
        quantised_norms,
        quantisers,
        quantisers_to_4_bits,
        ropes,
    ),
    *(samples, scaled_groups, scaled_products, softmaxes, sources),
    *(sparse_scaled_products, sparse_weights, tables),
)
"""Whose mutants these are."""

SURVIVORS: dict[str, str] = {}
"""Mutants that no case rejects, and why: what the suite does not see yet."""

CRASHES = {
    "attention_paged: the page behind the last looked up",
    "matmul: leading dimensions of size 1 squeezed away",
    "matmul: out= filled but another tensor returned",
    "softmax: gradient cut off",
    "swiglu: up read with gate's strides",
    "swiglu_backward: one output missing",
}
"""Mutants in Python whose fault is seen as an exception; of any other it is the mutant's own error."""

SLOW = {
    "attention: blocks of keys depend on the batch",
    "attention: offsets in 32 bits",
    "matmul: tiles beyond row and column 258 are zero",
    "matmul: K beyond 258 dropped where M and N exceed 3",
    "matmul: K beyond 1,024 dropped for one row",
    "matmul: the first of a batch for all beside one matrix",
    "linear: gelu left out beyond row 16",
    "linear: relu before the bias",
    "softmax: the last column left out of rows of 1,001 to 4,095",
    "rms_norm: the default's eps instead of the argument",
    "layer_norm: the default's eps instead of the argument",
    "rms_norm: rows of 2,048 end at 2,047",
    "activation_backward: an unknown activation taken for silu",
    "linear: mixed dtypes converted, not refused",
    "linear: offsets in 32 bits",
    "matmul: K taken modulo 65,536",
    "matmul: of two lengths of K the shorter, no error",
    "matmul: overflow saturates",
    "matmul: offsets in 32 bits",
    "softmax: last column left out of the maximum",
    "softmax: offsets in 32 bits",
    "softmax: one thread in two sees the other's result",
    "softmax: order of summation depends on the number of rows",
    "softmax: sum cut towards zero after each step",
    "quantize_fp8: a power of two rounded up to the next",
    "quantize_fp8: columns beyond 65,536 left out of the maximum",
    "quantize_fp8_static: a subnormal scale taken for 0",
    "quantize_int8_asymmetric: the difference overflows",
    "quantize_int8_static: a subnormal scale taken for 0",
    "rms_norm_quant: columns beyond 65,536 left out of the maximum",
    "silu_and_mul_quant: columns beyond 65,536 left out of the maximum",
    "swiglu: products in another order where up is large",
    *SURVIVORS,
}
"""Fast mutants that run most of the suite: left out of the sample."""


def every() -> list[Mutant]:
    """The fast ones first, then those that run on an emulated GPU."""
    assert all(MODULES)
    return sorted(found, key=lambda each: each.kind == "source")


def sample() -> list[Mutant]:
    """Every third of the fast ones, every ninth of those of varlen and paged attention, and two on emulated
    GPUs."""
    fast = [each for each in every() if not each.arch and each.id not in SLOW and not _is_hole(each)]
    varlen_paged = [each for each in fast if each.op.startswith(("attention_paged", "attention_varlen"))]
    emulated = [each for each in every() if each.arch and "one row past the end written" in each.name]
    return [each for each in fast if each not in varlen_paged][::3] + varlen_paged[::9] + emulated[:2]


def _is_hole(mutant: Mutant) -> bool:
    """Those run most of the suite: the cases that reject them are its last ones."""
    return type(mutant.function).__module__ == attention_holes.__name__
