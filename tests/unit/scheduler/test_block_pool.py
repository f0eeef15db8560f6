"""The block pool: reference counts and the order in which free blocks are reused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.block_pool import BlockPool


def test_blocks_worth_keeping_are_reused_last_and_oldest_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.take() for _ in range(4)]
    for block in (blocks[2], blocks[0], blocks[1]):
        pool.release(block, worth_keeping=True)
    pool.release(blocks[3], worth_keeping=False)
    assert pool.free_blocks() == [blocks[3], blocks[2], blocks[0], blocks[1]]


def test_a_free_block_can_be_taken_out_of_the_middle_of_the_queue() -> None:
    pool = BlockPool(3)
    a, b, c = (pool.take() for _ in range(3))
    for block in (a, b, c):
        pool.release(block, worth_keeping=True)
    pool.acquire(b)
    assert (pool.holders(b), pool.num_free, pool.free_blocks()) == (1, 2, [a, c])


def test_a_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(1)
    block = pool.take()
    pool.acquire(block)
    pool.release(block, worth_keeping=True)
    assert pool.num_free == 0
    pool.release(block, worth_keeping=True)
    assert pool.num_free == 1


def test_misuse_of_an_empty_pool_or_a_free_block_is_an_assertion_error() -> None:
    pool = BlockPool(1)
    block = pool.take()
    with pytest.raises(AssertionError):
        pool.take()
    pool.release(block, worth_keeping=True)
    with pytest.raises(AssertionError):
        pool.release(block, worth_keeping=True)


@given(st.lists(st.tuples(st.sampled_from("thr"), st.integers(0, 5), st.booleans())))
def test_the_pool_is_an_ordered_list_of_free_blocks(
    operations: list[tuple[str, int, bool]],
) -> None:
    pool, free, holders = BlockPool(6), list(range(6)), [0] * 6
    for operation, block, keep in operations:
        if operation == "t" and free:
            assert pool.take() == free[0]
            holders[free.pop(0)] = 1
        elif operation == "h":
            pool.acquire(block)
            if holders[block] == 0:
                free.remove(block)
            holders[block] += 1
        elif operation == "r" and holders[block]:
            pool.release(block, worth_keeping=keep)
            holders[block] -= 1
            if holders[block] == 0:
                free.insert(len(free) if keep else 0, block)
        assert pool.free_blocks() == free
        assert pool.num_used == 6 - len(free)
