"""Is this attention right, and if not, what exactly is wrong with it?"""

from clearhead.checker.calls import Local
from clearhead.checker.diagnosing import diagnose_attention
from clearhead.checker.told import Told


def check(fn, **told):
    s = Local(fn)
    from clearhead.checker.signature import kind_of
    t = Told(**told)
    return diagnose_attention(s, t.kind or kind_of(s.about), t)
