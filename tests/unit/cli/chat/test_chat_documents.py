"""Chats that are saved and loaded."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.api.chats.portable import check_tree
from penstock.api.schema.portable_chats import PortableChat
from penstock.dialog import Image, Text
from tests.support.media.small_processor import png
from tests.support.servers.http_server import spoken
from tests.support.terminal_chats import ChatBench


@pytest.fixture
def bench():
    return ChatBench(spoken("Hi."))


def loaded(path):
    bench = ChatBench(spoken("Back."))
    return bench, bench.command(f"/load {path}")


def test_a_saved_chat_continues_where_it_ended(bench, tmp_path):
    (tmp_path / "photo.png").write_bytes(png(8, 8))
    bench.command("/system Be brief.")
    bench.command("/set top_p 0.5")
    bench.command(f"/image {tmp_path / 'photo.png'}")
    bench.ask("What is it?")
    assert bench.command(f"/save {tmp_path / 'chat'}") == f"Saved the chat as {tmp_path}/chat.json."

    other, told = loaded(tmp_path / "chat.json")
    assert told == "Loaded 'What is it?' with 2 messages."
    other.ask("Sure?")
    (request,) = other.requests
    system, asked, said, again = (message.parts for message in request.messages)
    assert system == (Text("Be brief."),) and request.sampling.top_p == 0.5
    assert asked == (Image(data=png(8, 8), mime_type="image/png"), Text("What is it?"))
    assert said == (Text("Hi."),) and again == (Text("Sure?"),)


def test_a_saved_chat_is_a_document_of_the_web_page(bench, tmp_path):
    bench.ask("one")
    bench.command("/retry")
    bench.ask("one, again")
    bench.command(f"/save {tmp_path / 'chat.json'}")
    chat = msgspec.json.decode((tmp_path / "chat.json").read_bytes(), type=PortableChat)
    check_tree(chat)
    assert chat.format == "penstock-chat-1" and chat.tail == chat.messages[-1].id
    assert chat.messages[-1].info.completion_tokens == 4


def test_a_chat_is_saved_again_but_another_file_is_not_replaced(bench, tmp_path):
    bench.ask("one")
    bench.command(f"/save {tmp_path / 'chat.json'}")
    bench.ask("two")
    assert "Saved" in bench.command(f"/save {tmp_path / 'chat.json'}")
    assert len(json.loads((tmp_path / "chat.json").read_text())["messages"]) == 4
    (tmp_path / "notes.json").write_text("{}")
    refused = bench.command(f"/save {tmp_path / 'notes.json'}")
    assert refused == "notes.json exists and is not a chat; choose another name"
    assert (tmp_path / "notes.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chat.json", "notes.json"]


def test_a_name_that_is_neither_a_tools_file_nor_a_chat_is_refused(bench):
    refused = bench.command("/save figure.png")
    assert refused == "no tool made a file 'figure.png', and a chat is saved as *.json"
    assert "name a file" in bench.command("/save") and "name a file" in bench.command("/load")


def document(**changed):
    message = {"id": "m1", "parent": None, "role": "user", "created_at": 1, "info": {}}
    message["blocks"] = [{"type": "text", "text": "hi"}]
    whole = {"format": "penstock-chat-1", "title": "hi", "settings": {}, "tail": "m1"}
    return {**whole, "messages": [message], **changed}


MISSING = {"id": "a", "name": "x.png", "mime_type": "image/png", "bytes": 1, "url": ""}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"format": "other"}, "is not a saved chat"),
        ({"tail": "m2"}, "`tail` must be the id of a message"),
        ({"settings": {"temperature": 9}}, "temperature"),
        ({"settings": {"system": 5}}, "`system` must be a text"),
        (
            {
                "messages": [
                    document()["messages"][0]
                    | {"blocks": [{"type": "attachment", "attachment": MISSING}]}
                ]
            },
            "lacks the content of 'x.png'",
        ),
    ],
)
def test_a_wrong_document_is_refused_and_changes_nothing(tmp_path, changed, told):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(document(**changed)))
    bench = ChatBench(spoken("Hi."))
    bench.ask("one")
    before = list(bench.conversation.messages)
    assert told in bench.command(f"/load {path}")
    assert list(bench.conversation.messages) == before


def test_a_chat_of_another_model_names_it(tmp_path):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(document(settings={"model": "large"})))
    _, told = loaded(path)
    assert told.endswith("Its model was large; /model switches.")
