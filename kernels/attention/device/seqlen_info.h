// Which queries and keys a block works on: of a dense call all of a batch; of varlen a sequence, a slice of all tokens.
#pragma once

#include "prelude.h"

#include "params.h"
#include "varlen.h"

// `m` queries and `n` keys, from token `first_query` and `first_key` on. Of tokens that no sequence has, `outside`, n is 0.
template <bool Varlen> struct SeqlenInfo {
    int m, n;
    static constexpr int first_query = 0, first_key = 0;
    static constexpr bool outside = false;
};
template <> struct SeqlenInfo<true> {
    int m, n, first_query, first_key;
    bool outside;
};

DEVICE SeqlenInfo<true> seqlen_of(const Sequence& own) {
    return {own.queries, own.outside ? 0 : own.keys, own.first_query, own.first_key, own.outside};
}
