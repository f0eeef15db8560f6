"""Which cache block holds which prefix: blocks found by the content of all tokens up to them.

A block's key is a keyed hash of its parent's key and its own token ids; the root's key is a hash
of the salt and of the adapter's revision. So equal keys mean equal prefixes, computed by the same
weights, under equal salts, and without the index's secret nobody can make two prefixes collide. It
knows nothing of who holds a block.
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import blake2b

Key = bytes
_KEY_BYTES = 16


class PrefixIndex:
    """Published blocks by key, at most one block a key and one key a block.

    `secret`: up to 64 bytes that key the hash; None makes one for this index.
    """

    def __init__(self, num_blocks: int, secret: bytes | None = None) -> None:
        self._block_of: dict[Key, int] = {}
        self._key_of: list[Key | None] = [None] * num_blocks
        self._secret = secret if secret is not None else secrets.token_bytes(32)
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, salt: bytes, adapter: str = "") -> Key:
        """The parent of a sequence's first block. `adapter`: what computes it, "" the base."""
        revision = adapter.encode()
        content = len(revision).to_bytes(4, "little") + revision + salt
        return blake2b(content, key=self._secret, digest_size=_KEY_BYTES, person=b"root").digest()

    def child(self, parent: Key, token_ids: array[int]) -> Key:
        """The key of a full block of `token_ids` (typecode "i") that follows `parent`."""
        content = parent + token_ids.tobytes()
        return blake2b(content, key=self._secret, digest_size=_KEY_BYTES).digest()

    def find(self, key: Key) -> int | None:
        """The block that holds the prefix `key`, or None."""
        return self._block_of.get(key)

    def holds(self, block: int) -> bool:
        """Is `block` published, so that its content is worth keeping?"""
        return self._key_of[block] is not None

    def publish(self, key: Key, block: int) -> None:
        """`block` is full and computed. Where another block has the key already, that one stays
        and this one remains unpublished."""
        assert self._key_of[block] is None, "a published block does not change its content"
        if key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def evict(self, block: int) -> Key | None:
        """`block` is about to be overwritten: nobody finds it any more. Returns the prefix that it
        holds, None if it was not published."""
        key = self._withdraw(block)
        self.evictions += key is not None
        return key

    def withdraw(self, block: int) -> None:
        """`block` turned out to be worthless: nobody finds it any more; no eviction is counted."""
        self._withdraw(block)

    def _withdraw(self, block: int) -> Key | None:
        key = self._key_of[block]
        if key is not None:
            self._key_of[block] = None
            del self._block_of[key]
        return key
