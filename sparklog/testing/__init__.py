"""For tests of programs that use sparklog: a root, and a real broker. docs/testing.md.

With the extra `testing` installed, pytest finds the fixtures `sparklog_root` and `sparklog_broker` by itself.
"""

from sparklog.testing.broker import Broker
from sparklog.testing.root import Root

__all__ = ["Broker", "Root"]
