"""x"""
from portable.dispatch import dispatcher
_op = dispatcher.op("scaled_mm")
def scaled_mm(*args, **kwargs):
    """x"""
    return _op(*args, **kwargs)
