// cap * tanh(x / cap), which keeps a value within the cap, and its derivative.
#pragma once

#include "prelude.h"

struct Softcapped {
    float value;
    float slope;
};

DEVICE Softcapped softcapped(float x, float cap) {
    const float curve = math_tanh(x / cap);
    return {cap * curve, (1.0f - curve) * (1.0f + curve)};
}
