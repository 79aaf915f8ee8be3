"""The gradient of linear's activation as a native kernel."""

from __future__ import annotations

from pathlib import Path

from portable.kernels._common.elementwise_plan import elementwise_plan
from portable.plan import Call, Plan, Rejected

SOURCE = Path(__file__).with_name("activation.cu")


def native(call: Call) -> Plan | Rejected:
    """dz from dy and z: one launch."""
    activation = f"ACTIVATION_{call.params['activation'].upper()}"
    return elementwise_plan(
        call, ("dy", "z", "dz"), SOURCE, "activation_backward", ("ACTIVATION", activation)
    )
