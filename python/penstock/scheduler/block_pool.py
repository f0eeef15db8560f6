"""The pool of KV blocks: reference counts, and the order in which free blocks are reused.

The pool does not know the content of the blocks.
"""

from __future__ import annotations


class BlockPool:
    """Counts the references to each of `num_blocks` KV blocks and queues the free ones.

    A block without references is free. Free blocks keep their content; the block at the head of the
    queue is reused first. A free block can also be taken out of the middle of the queue. All
    operations are O(1): the queue is a doubly linked list in two arrays with a sentinel.
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
        """Return the number of sequences that hold `block`; 0 if it is free."""
        return self._holders[block]

    def take(self) -> int:
        """Allocate the free block at the head of the queue. Its old content is lost."""
        assert self._num_free > 0, "take() of an empty pool"
        block = self._next[self._sentinel]
        self._unlink(block)
        self._holders[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """Add a reference to a block. The block may be free if it still has its content."""
        if self._holders[block] == 0:
            self._unlink(block)
        self._holders[block] += 1

    def release(self, block: int, *, worth_keeping: bool) -> None:
        """Remove a reference to a block. If the block becomes free, it joins the end of the queue
        if it is `worth_keeping`, else the head."""
        assert self._holders[block] > 0, "release() of a free block"
        self._holders[block] -= 1
        if self._holders[block] == 0:
            after = self._previous[self._sentinel] if worth_keeping else self._sentinel
            self._link(block, after)

    def free_blocks(self) -> list[int]:
        """Return the free blocks, starting with the head of the queue. O(blocks): for tests."""
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
