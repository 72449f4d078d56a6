"""What an access to memory does, as the log and its checks tell accesses apart.

Strong: atomic, volatile, relaxed or stronger: two of them never race. Async: in the async proxy, by
an agent of its own. Copy: by cp.async.
"""

from __future__ import annotations

READ, WRITE, STRONG_READ, STRONG_WRITE, COPY_WRITE, ASYNC_READ, ASYNC_WRITE = range(7)
READS = (READ, STRONG_READ, ASYNC_READ)
ASYNC = (ASYNC_READ, ASYNC_WRITE)
