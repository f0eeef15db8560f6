"""The index of the prefix cache: finds KV blocks by the content of all tokens up to their end.

The key of a block is a keyed hash of the key of the block before it, of its own token ids, of the
media that its tokens belong to and, if prompt tokens are computed in another way than generated
ones, of the number of its generated tokens, which are its last ones. The root key is a hash of the
salt, the adapter revision and the number of changes of the weights. So equal keys imply equal
prefixes, equal media, equal weights of model and adapter, and equal salts. An attacker who does not
know the secret of the index cannot make two prefixes collide. The index does not know which
sequences hold a block.
"""

from __future__ import annotations

import secrets
from array import array
from hashlib import blake2b

Key = bytes
_KEY_BYTES = 16


class PrefixIndex:
    """Maps keys to published KV blocks: at most one block per key and one key per block. `secret`:
    the hash key, up to 64 bytes; None generates one.

    `weights`: the number of changes of the model's weights, which is part of all root keys.
    """

    def __init__(self, num_blocks: int, secret: bytes | None = None) -> None:
        self._block_of: dict[Key, int] = {}
        self._key_of: list[Key | None] = [None] * num_blocks
        self._secret = secret if secret is not None else secrets.token_bytes(32)
        self.evictions = 0
        self.weights = 0

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, salt: bytes, adapter: str = "") -> Key:
        """Return the key that precedes the first block of a sequence. `salt`: separates the blocks
        of different tenants. `adapter`: the adapter revision, "" for the base model."""
        revision = adapter.encode()
        weights = self.weights.to_bytes(4, "little")
        content = weights + len(revision).to_bytes(4, "little") + revision + salt
        return blake2b(content, key=self._secret, digest_size=_KEY_BYTES, person=b"root").digest()

    def child(
        self, parent: Key, token_ids: array[int], media: bytes = b"", generated: int = 0
    ) -> Key:
        """Return the key of a full block of `token_ids` (typecode "i") that follows the block with
        the key `parent`. `media`: identifies the media in the block. `generated`: the number of its
        last tokens that were computed as generated tokens."""
        content = parent + token_ids.tobytes() + media
        person = b"generated" + generated.to_bytes(4, "little") if generated else b""
        return blake2b(content, key=self._secret, digest_size=_KEY_BYTES, person=person).digest()

    def find(self, key: Key) -> int | None:
        """Return the block that holds the prefix `key`, or None."""
        return self._block_of.get(key)

    def holds(self, block: int) -> bool:
        """Return whether `block` is published, so that its content is worth keeping."""
        return self._key_of[block] is not None

    def publish(self, key: Key, block: int) -> None:
        """Publish `block`, which is full and computed, under `key`. If another block has this key
        already, `block` stays unpublished."""
        assert self._key_of[block] is None, "a published block does not change its content"
        if key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def evict(self, block: int) -> Key | None:
        """Unpublish `block` because it is about to be overwritten. Return its key, or None if it
        was not published."""
        key = self._withdraw(block)
        self.evictions += key is not None
        return key

    def withdraw(self, block: int) -> None:
        """Unpublish `block` because its content is wrong. This does not count as an eviction."""
        self._withdraw(block)

    def _withdraw(self, block: int) -> Key | None:
        key = self._key_of[block]
        if key is not None:
            self._key_of[block] = None
            del self._block_of[key]
        return key
