"""The prefix index: keys are equal exactly for equal prefixes under equal salts."""

from __future__ import annotations

from array import array

import pytest

from penstock.scheduler.prefix_index import PrefixIndex


def tokens(*ids: int) -> array[int]:
    return array("i", ids)


def test_a_key_depends_on_parent_tokens_salt_adapter_and_secret() -> None:
    index = PrefixIndex(4, b"secret")
    root = index.root(b"")
    key = index.child(root, tokens(1, 2))
    assert key == PrefixIndex(4, b"secret").child(root, tokens(1, 2))
    others = [
        index.child(root, tokens(2, 1)),
        index.child(root, tokens(1, 2, 0)),
        index.child(root, tokens(1, 2), b"media"),
        index.child(root, tokens(1, 2), generated=1),
        index.child(root, tokens(1, 2), generated=2),
        index.child(key, tokens(1, 2)),
        index.child(index.root(b"tenant"), tokens(1, 2)),
        index.child(index.root(b"", "tenant"), tokens(1, 2)),
        index.child(index.root(b"ant", "ten"), tokens(1, 2)),
        PrefixIndex(4, b"other").child(root, tokens(1, 2)),
    ]
    assert len({key, *others}) == 11


def test_two_indexes_do_not_share_a_secret() -> None:
    assert PrefixIndex(1).root(b"") != PrefixIndex(1).root(b"")


def test_the_first_published_block_keeps_the_key() -> None:
    index = PrefixIndex(4)
    key = index.root(b"")
    index.publish(key, 2)
    index.publish(key, 3)
    assert index.find(key) == 2
    assert (index.holds(2), index.holds(3)) == (True, False)


def test_an_evicted_block_is_no_longer_found_and_counted_once() -> None:
    index = PrefixIndex(4)
    key = index.root(b"")
    index.publish(key, 1)
    index.evict(1)
    index.evict(1)
    assert index.find(key) is None
    assert (len(index), index.evictions) == (0, 1)


def test_a_withdrawn_block_is_no_longer_found_and_not_counted() -> None:
    index = PrefixIndex(4)
    key = index.root(b"")
    index.publish(key, 1)
    index.withdraw(1)
    assert (index.find(key), index.evictions) == (None, 0)


def test_a_published_block_cannot_get_another_key() -> None:
    index = PrefixIndex(4)
    index.publish(index.root(b"a"), 1)
    with pytest.raises(AssertionError):
        index.publish(index.root(b"b"), 1)
