"""Function names of MCP tools."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.agent.mcp.names import function_name, sanitised


def test_a_plain_name_is_prefix_and_tool() -> None:
    assert function_name("web", "get_page", ()) == "web_get_page"
    assert function_name("web", "get.page/1", ()) == "web_get_page_1"


def test_a_name_that_is_taken_gets_a_hash() -> None:
    first = function_name("a_b", "c", ())
    second = function_name("a", "b_c", {first})
    assert first == "a_b_c" and re.fullmatch(r"a_b_c_[0-9a-f]{8}", second)
    assert function_name("a", "b_c", {first}) == second


def test_servers_names_are_sanitised() -> None:
    assert sanitised("My server (2)!") == "My_server_2"
    assert sanitised("日本") == ""


@given(
    st.lists(st.text(max_size=100), max_size=20),
    st.from_regex("[A-Za-z0-9_-]{1,32}", fullmatch=True),
)
def test_names_are_valid_and_distinct(tools: list[str], prefix: str) -> None:
    names: list[str] = []
    for tool in tools:
        names.append(function_name(prefix, tool, names))
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert len(set(names)) == len(names)
