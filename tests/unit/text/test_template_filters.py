"""Filters of chat templates work like Jinja's, within the limits of a rendering."""

from __future__ import annotations

import jinja2
import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Message, Text
from penstock.text import ChatTemplate

ITEMS = "[{'a': 'x y', 'n': 2}, {'a': 'x y', 'n': 3}, {'a': 'Z', 'n': 4}]"
EXAMPLES = {
    "e": "{{ '<a href=\"x\">&amp;' | e }}",
    "escape": '{{ ("it\'s <b>" | escape) | e }} {{ 3 | escape }}',
    "groupby": f"{{% for k, v in {ITEMS} | groupby('a') %}}{{{{ k }}}} {{{{ v | length }}}};"
    "{% endfor %}"
    f"{{% for g in {ITEMS} | groupby('b', default='none') %}}{{{{ g.grouper }}}}{{% endfor %}}",
    "slice": "{{ range(10) | slice(3) | list }} {{ [1, 2] | slice(2, 0) | list }}",
    "wordwrap": "{{ 'a long-winded text that goes on' | wordwrap(8) }}"
    "{{ 'abcdefghij klm' | wordwrap(width=4, wrapstring='|') }}",
    "pprint": f"{{{{ {ITEMS} | pprint }}}} {{{{ ('w ' * 60) | pprint }}}}",
    "filesizeformat": "{{ 1500 | filesizeformat }} {{ 1500 | filesizeformat(true) }}",
    "urlencode": "{{ 'a b/ü&' | urlencode }} {{ {'q': 'a b'} | urlencode }}",
}
HOSTILE = {
    "escape": "{% set t = '<' * 400000 %}{{ t | e }}{{ t | escape }}",
    "urlencode": "{{ ('\u00fc' * 300000) | urlencode }}",
    "wrap blanks": "{{ ('\u00a0' * 500000) | wordwrap(1) }}",
    "wrap string": "{{ ('a ' * 5000) | wordwrap(1, wrapstring='x' * 5000) }}",
    "deep print": "{{ {'k' * 90000: range(90000) | list} | pprint }}",
    "printed words": "{{ {'k' * 90000: 'w ' * 90000} | pprint }}",
    "many slices": "{{ [1] | slice(10 ** 12) | list | length }}",
}
MESSAGES = [Message("user", (Text("hi"),))]


@pytest.mark.parametrize("name", EXAMPLES)
def test_filter_equals_jinjas_filter(name: str) -> None:
    source = EXAMPLES[name]
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    assert ChatTemplate(source).render(MESSAGES) == plain.from_string(source).render()


@pytest.mark.parametrize("name", HOSTILE)
def test_filter_with_too_much_output_is_stopped(name: str) -> None:
    template = ChatTemplate(HOSTILE[name])
    with pytest.raises(InvalidRequest) as caught:
        template.render(MESSAGES)
    assert caught.value.code == "chat_template_limit"


def test_wordwrap_of_a_hostile_message_is_stopped() -> None:
    template = ChatTemplate("{{ messages[0].content | wordwrap(20) }}")
    assert template.render([Message("user", (Text("a few words " * 20_000),))])
    with pytest.raises(InvalidRequest) as caught:
        template.render([Message("user", (Text("\u00a0" * 1_000_000),))])
    assert caught.value.code == "chat_template_limit"


def test_filter_on_a_wrong_type_is_a_template_error() -> None:
    with pytest.raises(InvalidRequest, match="cannot render these messages"):
        ChatTemplate("{{ messages | wordwrap }}").render(MESSAGES)
