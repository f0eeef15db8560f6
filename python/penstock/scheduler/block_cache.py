"""Allocates the KV blocks of sequences (`BlockPool`) and finds them again by prefix
(`PrefixIndex`).

Each sequence holds one reference to each of its blocks. A block that is full and computed is
published, so that other sequences find it. A block that is being computed is promised, so that
other sequences can wait for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from penstock.scheduler.block_pool import BlockPool
from penstock.scheduler.cpu_kv_cache import CpuKvCacheIndex
from penstock.scheduler.prefix_index import Key, PrefixIndex
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.state_snapshots import StateSnapshots
from penstock.scheduler.types import Chunk, MediaSpan


class BlockCache:
    """Allocates KV blocks and finds cached prefixes.

    `prefix_caching`: False only allocates blocks and never finds one again.
    `secret`: see `PrefixIndex`.
    `cpu_cache`: the CPU KV cache, which saves blocks before they are overwritten and restores them
    later.
    `snapshots`: the snapshots of recurrent states. With them, a prefix is found only up to a
    position that has a snapshot. None if the model has no recurrent layers.
    `tells_prompts_apart`: blocks of prompt tokens and of generated tokens have different contents.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool,
        secret: bytes | None = None,
        cpu_cache: CpuKvCacheIndex | None = None,
        snapshots: StateSnapshots | None = None,
        tells_prompts_apart: bool = False,
    ) -> None:
        self._tells_prompts_apart = tells_prompts_apart
        self.cpu_cache = cpu_cache or CpuKvCacheIndex()
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(num_blocks, secret)
        self.snapshots = snapshots
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.lookups = 0
        self.hits = 0
        self._promised: dict[Key, Sequence] = {}

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens that all blocks together hold."""
        return self.pool.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, sequence: Sequence) -> list[int]:
        """Return the blocks of the longest cached prefix of `sequence`, without acquiring them."""
        if not self.prefix_caching:
            return []
        limit = self._most_found(sequence)
        self._hash(sequence, limit)
        found: list[int] = []
        while len(found) < limit:
            block = self.index.find(sequence.keys[len(found) + 1])
            if block is None:
                break
            found.append(block)
        if self.snapshots is not None:
            del found[self.snapshots.longest(sequence.keys, len(found)) :]
        return found

    def key_at(self, sequence: Sequence, position: int) -> Key:
        """Return the key of the prefix that ends at `position`, the end of a block of known
        tokens."""
        self._hash(sequence, position // self.block_size)
        return sequence.keys[position // self.block_size]

    def awaits_prefix(self, sequence: Sequence) -> bool:
        """Return whether a waiting `sequence` should wait longer for its prefix: other sequences
        are computing at least half of its missing tokens.

        If so, the sequence waits for the one that computes its next missing block, and its prefix
        is not looked up again until that sequence has published enough blocks to change the answer.
        """
        other = sequence.awaits
        if other is not None and other.row >= 0 and other.published < sequence.awaits_blocks:
            return True
        sequence.awaits = None
        num_found = len(self.find_prefix(sequence))
        missing = len(sequence.tokens) - num_found * self.block_size
        if self.snapshots is not None:
            least = num_found + -(-missing // (2 * self.block_size))
            return self._awaits_snapshot(self.snapshots, sequence, num_found, least)
        promised = self.promised_tokens(sequence, num_found)
        if 2 * promised < missing:
            return False
        sequence.awaits = other = self._promised[sequence.keys[num_found + 1]]
        sequence.awaits_blocks = other.published + (2 * promised - missing) // self.block_size + 1
        return True

    def promised_tokens(self, sequence: Sequence, num_found: int) -> int:
        """Return the number of tokens after the first `num_found` blocks of `sequence` that other
        sequences are computing now. Call `find_prefix` first."""
        if not self.prefix_caching or not self._promised:
            return 0
        if self.snapshots is not None:
            keys = sequence.keys[: self._most_found(sequence) + 1]
            count, _ = self.snapshots.promised(keys, num_found)
            return (count - num_found) * self.block_size
        count = 0
        for key in sequence.keys[num_found + 1 :]:
            if key not in self._promised:
                break
            count += 1
        return count * self.block_size

    def count_missing(self, sequence: Sequence, found: list[int]) -> int:
        """Return the number of tokens to compute if a waiting `sequence` is admitted now. `found`:
        the result of `find_prefix`."""
        first = len(found)
        saved = 0
        if self.prefix_caching:
            keys = sequence.keys[first + 1 : self._most_found(sequence) + 1]
            saved = self.cpu_cache.count_known(keys)
        return len(sequence.tokens) - (first + saved) * self.block_size

    def count_needed(self, sequence: Sequence) -> int:
        """Return the number of free blocks that a waiting `sequence` will need once other sequences
        have computed the promised part of its prefix."""
        found = self.find_prefix(sequence)
        held = sum(1 for block in found if self.pool.holders(block) > 0)
        promised = self.promised_tokens(sequence, len(found)) // self.block_size
        return self.blocks_for(len(sequence.tokens)) - held - promised

    def try_admit(self, sequence: Sequence, found: list[int], reserve: int) -> bool:
        """Give a waiting `sequence` blocks for all its known tokens, starting with the blocks
        `found`, and restore further blocks from the CPU KV cache.

        `found`: the result of `find_prefix`. Return False and change nothing unless `reserve`
        blocks stay free.
        """
        needed = self.blocks_for(len(sequence.tokens)) - len(found)
        newly_held = sum(1 for block in found if self.pool.holders(block) == 0)
        if needed + newly_held + reserve > self.pool.num_free:
            return False
        for block in found:
            self.pool.acquire(block)
        saved = self._find_saved(sequence, len(found))
        sequence.blocks = found + [self._take() for _ in range(needed)]
        sequence.published = len(found)
        cached = len(found) + len(saved)
        sequence.computed = cached * self.block_size
        if saved:
            sequence.restored_by = self.cpu_cache.restore(
                saved, sequence.blocks[len(found) : cached]
            )
        if self.prefix_caching:
            self.lookups += 1
            self.hits += bool(cached)
            for key in sequence.keys[len(found) + 1 :]:
                self._promised.setdefault(key, sequence)
        if self.snapshots is not None:
            self._admit_state(self.snapshots, sequence, len(found))
        return True

    def extend(self, sequence: Sequence) -> int:
        """Append one block to `sequence`. The pool must have a free block."""
        block = self._take()
        sequence.blocks.append(block)
        return block

    def publish(self, sequence: Sequence) -> None:
        """Publish the blocks of `sequence` that are full and computed."""
        full = (sequence.computed - sequence.in_flight_tokens) // self.block_size
        if not self.prefix_caching or full <= sequence.published:
            return
        self._hash(sequence, full)
        for position in range(sequence.published, full):
            key = sequence.keys[position + 1]
            self._promised.pop(key, None)
            if self.snapshots is not None:
                self.snapshots.end_promise(key, sequence)
            self.index.publish(key, sequence.blocks[position])
        sequence.published = full

    def publish_state(self, sequence: Sequence, chunk: Chunk) -> None:
        """Publish the snapshot that `chunk` saved, if it saved one."""
        if self.snapshots is not None and chunk.state.save is not None:
            key = self.key_at(sequence, chunk.start + chunk.state.save_after)
            self.snapshots.publish(chunk.state.save, key)

    def finish_state(self, chunk: Chunk) -> None:
        """End the use of snapshots by `chunk`, whose step is complete."""
        if self.snapshots is None:
            return
        if chunk.state.restore is not None:
            self.snapshots.release(chunk.state.restore)
        if chunk.state.save is not None:
            self.snapshots.drop(chunk.state.save)

    def free(self, sequence: Sequence) -> None:
        """Release all blocks of `sequence`, the last block first, so that the last blocks are
        reused first: a block can be found only through the blocks before it."""
        self._break_promises(sequence)
        if self.snapshots is not None and sequence.snapshot is not None:
            self.snapshots.release(sequence.snapshot)
            sequence.snapshot = None
        # The next owner of these blocks writes to them, so pending restores must finish first.
        self.cpu_cache.await_restores(sequence.restored_by)
        sequence.restored_by = 0
        for block in reversed(sequence.blocks):
            self.pool.release(block, worth_keeping=self.index.holds(block))
        sequence.blocks = []
        sequence.published = 0
        sequence.computed = 0

    def withdraw(self, sequence: Sequence) -> None:
        """Remove the blocks and the recurrent states of `sequence` from the prefix cache and the
        CPU KV cache, because their content is wrong."""
        for block in sequence.blocks:
            self.index.withdraw(block)
        for key in sequence.keys[1:]:
            self.cpu_cache.forget(key)
            if self.snapshots is not None:
                self.snapshots.forget(key)

    def change_weights(self, running: Iterable[Sequence], waiting: Iterable[Sequence]) -> None:
        """Find no block again that was computed with the old weights of the model. `running`
        sequences keep their blocks, which only they use. `waiting` sequences get new keys."""
        for sequence in running:
            if self.prefix_caching:
                self._hash(sequence, 0)
        self.index.weights += 1
        for sequence in waiting:
            sequence.keys.clear()
            sequence.awaits = None

    def has_arrived(self, sequence: Sequence) -> bool:
        """Return whether all blocks of `sequence` that come from the CPU KV cache have been
        restored."""
        return sequence.restored_by <= self.cpu_cache.last_restored

    def _take(self) -> int:
        block = self.pool.take()
        key = self.index.evict(block)
        if key is not None:
            self.cpu_cache.save(key, block)
            if self.snapshots is not None:
                self.snapshots.evict(key)
        return block

    def _awaits_snapshot(
        self, snapshots: StateSnapshots, sequence: Sequence, num_found: int, least: int
    ) -> bool:
        """Return whether a running sequence will save a snapshot after at least the first `least`
        blocks of a waiting `sequence`. If so, `sequence` waits for it. The longest prefix that a
        running sequence is still to compute gets a snapshot if none is promised after it."""
        keys, count = sequence.keys[: self._most_found(sequence) + 1], num_found
        for key in keys[num_found + 1 :]:
            if key not in self._promised and self.index.find(key) is None:
                break
            count += 1
        position = count * self.block_size
        other = self._promised.get(keys[count])
        if other is not None and count >= least and other.branch <= other.computed < position:
            other.branch = position
            snapshots.promise(keys[count], other)
        promised, sequence.awaits = snapshots.promised(keys, least - 1)
        sequence.awaits_blocks = promised
        return sequence.awaits is not None

    def _admit_state(self, snapshots: StateSnapshots, sequence: Sequence, num_found: int) -> None:
        """Start an admitted `sequence` with the snapshot after its first `num_found` blocks. Note
        where it leaves the published blocks, and promise the snapshots that it will save."""
        sequence.saved = num_found * self.block_size
        sequence.snapshot = snapshots.acquire(sequence.keys[num_found]) if num_found else None
        last = (len(sequence.tokens) - 1) // self.block_size
        self._hash(sequence, last)
        count = num_found
        while count < last and self.index.find(sequence.keys[count + 1]) is not None:
            count += 1
        sequence.branch = count * self.block_size if count > num_found else 0
        for saved in {count, last} - {num_found}:
            snapshots.promise(sequence.keys[saved], sequence)

    def _find_saved(self, sequence: Sequence, num_found: int) -> list[int]:
        """Return the CPU blocks that continue the first `num_found` blocks of a sequence. Call
        `find_prefix` first."""
        if not self.prefix_caching:
            return []
        keys = sequence.keys[num_found + 1 : self._most_found(sequence) + 1]
        return self.cpu_cache.read(keys[: self.cpu_cache.count_known(keys)])

    def _most_found(self, sequence: Sequence) -> int:
        """Return the largest number of leading blocks of a sequence that may come from a cache. At
        least one token must be computed to get logits, and so must every token whose logits are
        needed for prompt log-probabilities."""
        most = sequence.next_score if sequence.unscored else len(sequence.tokens) - 1
        return most // self.block_size

    def _hash(self, sequence: Sequence, count: int) -> None:
        """Compute the keys of the first `count` blocks of a sequence, which must be full. `keys[0]`
        is the root key and `keys[i + 1]` the key of block i. Each block is hashed once per
        sequence."""
        keys, size = sequence.keys, self.block_size
        if not keys:
            keys.append(self.index.root(sequence.salt, sequence.adapter))
        for position in range(len(keys) - 1, count):
            content = sequence.tokens[position * size : (position + 1) * size]
            media = media_key(sequence.media, position * size, size) if sequence.media else b""
            generated = self._count_generated(sequence, position)
            keys.append(self.index.child(keys[position], content, media, generated))

    def _count_generated(self, sequence: Sequence, position: int) -> int:
        """Return the number of tokens in block `position` of a sequence that are computed as
        generated tokens; 0 if all tokens are computed alike."""
        if not self._tells_prompts_apart:
            return 0
        prompt = sequence.prompt_tokens - position * self.block_size
        return self.block_size - min(max(prompt, 0), self.block_size)

    def _break_promises(self, sequence: Sequence) -> None:
        for key in sequence.keys[sequence.published + 1 :]:
            if self._promised.get(key) is sequence:
                del self._promised[key]
            if self.snapshots is not None:
                self.snapshots.end_promise(key, sequence)


def media_key(spans: Iterable[MediaSpan], first: int, count: int) -> bytes:
    """Return bytes that identify the media of the tokens [first, first + count) of a prompt: for
    each span that touches them, its digest, its length and its start relative to `first`. Return no
    bytes without media."""
    key = b""
    for span in spans:
        if span.start < first + count and first < span.start + span.length:
            place = struct.pack("<Iqq", len(span.digest), span.start - first, span.length)
            key += place + span.digest
    return key
