"""The pool of cache blocks: who holds a block, and which free block is reused next.

It owns reference counts and the order of the free blocks; it does not know what a block holds.
"""

from __future__ import annotations


class BlockPool:
    """`num_blocks` blocks, each with a count of its holders.

    A block is free when nobody holds it. Free blocks keep their content and stand in a queue, the
    one to be reused first at its head; a free block can be taken back out of the middle. All
    operations are O(1): the queue is a doubly linked list in two arrays, closed by a sentinel.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self._num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._sentinel = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]
        self._num_free = num_blocks

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def num_free(self) -> int:
        return self._num_free

    @property
    def num_used(self) -> int:
        return self._num_blocks - self._num_free

    def holders(self, block: int) -> int:
        """How many sequences hold `block`; 0: it is free."""
        return self._holders[block]

    def take(self) -> int:
        """The free block to be reused first, now with one holder. Its old content is void."""
        assert self._num_free > 0, "take() of an empty pool"
        block = self._next[self._sentinel]
        self._unlink(block)
        self._holders[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """One holder more for a block that has some, or that is free and still has its content."""
        if self._holders[block] == 0:
            self._unlink(block)
        self._holders[block] += 1

    def release(self, block: int, *, worth_keeping: bool) -> None:
        """One holder less. A block that becomes free is reused last if its content is worth
        keeping, and first if it is not."""
        assert self._holders[block] > 0, "release() of a free block"
        self._holders[block] -= 1
        if self._holders[block] == 0:
            after = self._previous[self._sentinel] if worth_keeping else self._sentinel
            self._link(block, after)

    def free_blocks(self) -> list[int]:
        """The free blocks, the one to be reused first at the head. O(blocks): for tests."""
        found, block = [], self._next[self._sentinel]
        while block != self._sentinel:
            found.append(block)
            block = self._next[block]
        return found

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._num_free -= 1

    def _link(self, block: int, before: int) -> None:
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._num_free += 1
