"""The floating point operations of attention and of its gradients: products over the visible keys alone."""

from __future__ import annotations


def visible_pairs(M: int, N: int, causal: bool, window_left: int | None) -> float:
    """How many pairs of a query and a key are not masked; a window that is not causal counts as none."""
    if causal and window_left is not None:
        return M * min(N, window_left + 1)
    if causal and M <= N:
        return M * N - M * (M - 1) / 2
    return M * N


def forward(B: int, H: int, M: int, N: int, D: int, E: int, causal: bool, window_left: int | None) -> float:
    """Two products per visible pair: q k^T over D and P v over E."""
    return 2 * B * H * (D + E) * visible_pairs(M, N, causal, window_left)


def backward(B: int, H: int, M: int, N: int, D: int, E: int, causal: bool, window_left: int | None) -> float:
    """Five products per visible pair: q k^T, dq and dk over D, dP and dv over E."""
    return 2 * B * H * (3 * D + 2 * E) * visible_pairs(M, N, causal, window_left)
