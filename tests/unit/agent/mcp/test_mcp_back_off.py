"""Pauses between attempts to connect to an MCP server."""

from __future__ import annotations

from penstock.agent.mcp.connection import BackOff


def test_pauses_double_up_to_the_last_and_vary_by_half() -> None:
    back_off = BackOff(first_s=1.0, last_s=60.0)
    for failures, longest_s in ((1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (10_000, 60.0)):
        delays = [back_off.delay_s(failures) for _ in range(100)]
        assert all(longest_s / 2 <= delay <= longest_s for delay in delays)
        assert len(set(delays)) > 1
