"""Stored chats: trees of messages, searches, running answers, attachments."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base.errors import NotFound
from penstock.config import StoreSettings
from penstock.store import Store
from penstock.store.chat_attachments import UNUSED_EXPIRY_S
from penstock.store.chat_records import StoredChat, StoredMessage
from penstock.store.errors import StorageFull
from tests.support.stores import MovableClock, opened


def chat(id: str = "c", title: str = "A chat", updated_at: int = 10) -> StoredChat:
    return StoredChat(id=id, title=title, created_at=1, updated_at=updated_at, settings=b"{}")


def message(id: str, parent: str | None = None, *, chat_id: str = "c") -> StoredMessage:
    return StoredMessage(
        id=id,
        chat_id=chat_id,
        parent=parent,
        role="user",
        created_at=2,
        status="done",
        blocks=b"[]",
    )


def answer(id: str, parent: str) -> StoredMessage:
    running = msgspec.structs.replace(message(id, parent), role="assistant", status="running")
    return msgspec.structs.replace(running, owner="api_1", heartbeat_at=5)


async def test_a_tree_of_messages_comes_back_in_order(store: Store) -> None:
    await store.chats.create(chat(), [])
    first, second = message("a"), message("b", "a")
    await store.chats.add_messages("c", [(first, "hello"), (second, "hi")])
    branch = message("d")
    await store.chats.add_messages("c", [(branch, "hello again")])
    assert await store.chats.messages("c") == [first, second, branch]
    assert (await store.chats.get("c")).tail == "d"


async def test_unknown_chats_parents_and_tails_are_not_found(store: Store) -> None:
    await store.chats.create(chat(), [])
    await store.chats.create(chat("other"), [(message("x", chat_id="other"), "")])
    with pytest.raises(NotFound, match="'nope'"):
        await store.chats.get("nope")
    with pytest.raises(NotFound):
        await store.chats.add_messages("nope", [(message("a", chat_id="nope"), "")])
    with pytest.raises(NotFound):  # a message of another chat is no parent
        await store.chats.add_messages("c", [(message("a", "x"), "")])
    with pytest.raises(NotFound):
        await store.chats.update("c", {"tail": "x"})
    assert await store.chats.messages("c") == []


async def test_search_finds_titles_and_texts_in_any_case(store: Store) -> None:
    await store.chats.create(chat("a", "Straße", 3), [(message("1", chat_id="a"), "Nothing")])
    text = "long before " * 20 + "The Needle is here"
    await store.chats.create(chat("b", "Other", 4), [(message("2", chat_id="b"), text)])
    found, more = await store.chats.search("needle", limit=5)
    assert [hit.id for hit in found] == ["b"] and "The Needle is here" in found[0].snippet
    assert not more
    found, _ = await store.chats.search("STRASSE", limit=5)
    assert [hit.id for hit in found] == ["a"]
    assert (await store.chats.search("100%_", limit=5))[0] == []


async def test_pages_of_chats_have_no_gaps(store: Store) -> None:
    for number in range(7):
        await store.chats.create(chat(f"c{number}", updated_at=number // 3), [])
    seen: list[str] = []
    before = None
    while True:
        page, more = await store.chats.search(limit=2, before=before)
        seen += [hit.id for hit in page]
        if not more:
            break
        before = seen[-1]
    assert seen == ["c6", "c5", "c4", "c3", "c2", "c1", "c0"]


async def test_only_a_running_answer_is_saved_and_a_stop_is_reported(
    store: Store, clock: MovableClock
) -> None:
    await store.chats.create(chat(), [])
    written = answer("b", "a")
    await store.chats.add_messages("c", [(message("a"), "q"), (written, "")])
    half = msgspec.structs.replace(written, blocks=b'[{"type":"text","text":"half"}]')
    assert await store.chats.save(half, "half")
    assert (await store.chats.message("c", "b")).heartbeat_at == clock()
    assert (await store.chats.request_stop("c", "b")).stop_requested
    assert not await store.chats.save(half, "half")
    stopped = msgspec.structs.replace(half, status="stopped")
    await store.chats.save(stopped, "half")
    assert (await store.chats.message("c", "b")).status == "stopped"
    assert not await store.chats.save(msgspec.structs.replace(half, status="done"), "late")
    assert (await store.chats.message("c", "b")).blocks == half.blocks


async def test_dead_answer_fails_only_with_the_seen_heartbeat(store: Store) -> None:
    await store.chats.create(chat(), [])
    await store.chats.add_messages("c", [(message("a"), "q"), (answer("b", "a"), "")])
    await store.chats.fail("b", 4, b"{}")
    assert (await store.chats.message("c", "b")).status == "running"
    await store.chats.fail("b", 5, b'{"error":1}')
    failed = await store.chats.message("c", "b")
    assert (failed.status, failed.info) == ("failed", b'{"error":1}')
    again = await store.chats.restart("c", "b", "api_2")
    assert (again.status, again.owner) == ("running", "api_2")


async def test_attachments_live_as_long_as_their_chat(store: Store) -> None:
    await store.chats.create(chat(), [])
    kept = await store.chat_attachments.create("../a.png", "image/png", b"\x89PNG")
    assert kept.name == "a.png"
    await store.chats.add_messages("c", [(message("a"), "look")], [kept.id])
    assert await store.chat_attachments.read(kept.id) == b"\x89PNG"
    await store.chats.create(chat("other"), [])
    with pytest.raises(NotFound):  # it belongs to the first chat
        late = message("z", chat_id="other")
        await store.chats.add_messages("other", [(late, "mine")], [kept.id])
    bodies = await store.chats.delete("c")
    assert bodies is not None and len(bodies) == 1
    await store.chat_attachments.delete_bodies(bodies)
    with pytest.raises(NotFound):
        await store.chat_attachments.read(kept.id)
    assert await store.chats.delete("c") is None


async def test_unused_attachments_expire(store: Store, clock: MovableClock) -> None:
    await store.chats.create(chat(), [])
    used = await store.chat_attachments.create("a", "text/plain", b"1")
    unused = await store.chat_attachments.create("b", "text/plain", b"2")
    await store.chats.add_messages("c", [(message("a"), "")], [used.id])
    clock.now += UNUSED_EXPIRY_S + 1
    await store.chat_attachments.delete_unused()
    assert await store.chat_attachments.read(used.id) == b"1"
    with pytest.raises(NotFound):
        await store.chat_attachments.get(unused.id)


async def test_chats_beyond_their_quota_are_refused(
    settings: StoreSettings, clock: MovableClock
) -> None:
    async with opened(msgspec.structs.replace(settings, max_chats_bytes=4), clock) as store:
        await store.chats.create(chat(), [])
        await store.chat_attachments.create("a", "text/plain", b"1234")
        with pytest.raises(StorageFull):
            await store.chats.add_messages("c", [(message("a"), "")])
        await store.chats.delete("c")
