"""The time limit of a template counts CPU time, so that a busy machine does not fail requests."""

import pytest

from penstock.text.chat_templates import render_budget as budget
from penstock.text.chat_templates.render_budget import Budget, TemplateLimit


def test_wall_clock_time_does_not_exceed_the_limit(monkeypatch: pytest.MonkeyPatch):
    spent = Budget(0)
    monkeypatch.setattr(budget.time, "monotonic", lambda: 1e12)
    assert spent.charge_steps()


def test_cpu_time_exceeds_the_limit(monkeypatch: pytest.MonkeyPatch):
    spent = Budget(0)
    monkeypatch.setattr(budget.time, "monotonic", lambda: 1e12)
    monkeypatch.setattr(budget.time, "thread_time", lambda: 1e12)
    with pytest.raises(TemplateLimit, match="time"):
        spent.charge_steps()
