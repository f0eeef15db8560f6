"""A template's time is the processor's: what else a machine does is not held against it."""

import pytest

from penstock.text.chat_templates import render_budget as budget
from penstock.text.chat_templates.render_budget import Budget, TemplateLimit


def test_a_clock_that_ran_on_is_no_reason(monkeypatch: pytest.MonkeyPatch):
    spent = Budget(0)
    monkeypatch.setattr(budget.time, "monotonic", lambda: 1e12)
    assert spent.spend()


def test_time_of_the_processor_is(monkeypatch: pytest.MonkeyPatch):
    spent = Budget(0)
    monkeypatch.setattr(budget.time, "monotonic", lambda: 1e12)
    monkeypatch.setattr(budget.time, "thread_time", lambda: 1e12)
    with pytest.raises(TemplateLimit, match="time"):
        spent.spend()
