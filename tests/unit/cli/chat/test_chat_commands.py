"""The commands of the terminal chat."""

from __future__ import annotations

import re
from base64 import b64encode

import pytest

from penstock.api.chats.answer_request import REQUEST_FIELDS
from penstock.cli.chat.chat_settings import FIELDS, range_of
from penstock.cli.chat.command_context import AnswerAgain, Leave
from penstock.cli.chat.commands import COMMANDS, help_text
from penstock.dialog import Audio, Image, Message, Sampling, Text
from tests.support.media.small_processor import png
from tests.support.media_files import sound_file, tone
from tests.support.servers.http_server import spoken
from tests.support.terminal_chats import ChatBench


@pytest.fixture
def bench():
    return ChatBench(spoken("Hi."))


def test_help_lists_every_command_with_its_argument():
    lines = help_text().splitlines()
    for command in COMMANDS:
        usage = f"{command.name} {command.argument}".strip()
        assert [line for line in lines if line.startswith(f"{usage}  ") and command.help in line]


def test_the_lists_fit_a_terminal_of_80_columns(bench):
    lines = [*help_text().splitlines(), *bench.command("/set").splitlines()]
    lines += bench.command("/tools").splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_names_of_commands_are_unique_and_start_with_a_slash():
    names = [command.name for command in COMMANDS]
    assert len(set(names)) == len(names) and all(re.fullmatch("/[a-z]+", name) for name in names)


def test_exit_leaves_and_an_unknown_command_names_the_help(bench):
    assert bench.command("/exit") == Leave()
    assert bench.command("/no such") == "There is no command /no; /help lists the commands."


def test_commands_set_parameters_of_the_next_request(bench):
    for line in ("/system Be brief.", "/temperature 0.3", "/topk 40", "/topp 0.9", "/adapter sql"):
        bench.command(line)
    bench.ask("hi")
    (request,) = bench.requests
    assert request.messages[0] == Message("system", (Text("Be brief."),))
    assert request.sampling == Sampling(temperature=0.3, top_k=40, top_p=0.9)
    assert request.adapter == "sql"
    for line in ("/clear", "/system", "/temperature", "/topk", "/topp", "/adapter"):
        bench.command(line)
    bench.ask("hi")
    request = bench.requests[1]
    assert len(request.messages) == 1
    assert request.sampling == Sampling() and request.adapter is None


def test_top_k_of_0_disables_the_models_default(bench):
    assert bench.command("/topk 0") == "top_k: 0"
    bench.ask("hi")
    assert bench.requests[0].sampling.top_k == 0


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/temperature x", "0 to 2"),
        ("/temperature 3", "0 to 2"),
        ("/topk -2", "an integer; 0: all tokens"),
        ("/topk 1.5", "an integer; 0: all tokens"),
        ("/topp nan", "0 to 1"),
        ("/set max_tokens 0", "an integer from 1"),
        ("/set repetition_penalty 0", "a number above 0"),
        ("/set seed x", "an integer"),
        ("/set agent_permission maybe", "ask, auto or deny"),
        ("/set enable_thinking perhaps", "on or off"),
        ("/set response_format {", "JSON"),
        ("/set min_tokens -1", "an integer from 0"),
        ("/set nothing 1", "there is no setting nothing"),
    ],
)
def test_a_wrong_value_is_reported_with_the_range_and_changes_nothing(bench, line, told):
    assert told in bench.command(line)
    assert bench.conversation.settings == {}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("/set seed 7", 7),
        ("/set stop END", "END"),
        ("/set stop 5", "5"),
        ('/set stop ["a", "b"]', ["a", "b"]),
        ("/set enable_thinking on", True),
        ("/set enable_thinking false", False),
        ("/set reasoning_effort low", "low"),
        ("/set dry_multiplier 0.8", 0.8),
        ('/set logit_bias {"5": -1}', {"5": -1}),
        ('/set grammar {"type": "regex", "value": "[0-9]+"}', {"type": "regex", "value": "[0-9]+"}),
    ],
)
def test_set_takes_the_values_of_a_chat_completion_request(bench, line, value):
    name = line.split()[1]
    assert str(bench.command(line)).startswith(f"{name}: ")
    assert bench.conversation.settings == {name: value}
    assert bench.command(f"/set {name} default").endswith(": default")
    assert bench.conversation.settings == {}


def test_set_alone_lists_every_setting_with_its_value_and_range(bench):
    bench.command("/set top_p 0.5")
    lines = {line.split()[0]: line for line in bench.command("/set").splitlines()}
    assert list(lines) == list(FIELDS)
    assert all(range_of(name) in line for name, line in lines.items())
    assert lines["top_p"].split() == ["top_p", "0.5", "0", "to", "1"]
    assert "default 0.7" in lines["temperature"]
    assert bench.command("/set top_p") == "top_p: 0.5  (0 to 1)"


def test_every_setting_is_one_that_a_chat_of_the_web_page_may_have():
    assert set(FIELDS) <= REQUEST_FIELDS


def test_retry_answers_the_last_question_again(bench):
    assert bench.command("/retry") == "There is no question yet."
    bench.ask("one")
    bench.ask("two")
    assert bench.command("/retry") == AnswerAgain()
    assert [m.role for m in bench.conversation.branch] == ["user", "assistant", "user"]


def test_undo_forgets_the_last_question_and_its_answer(bench):
    bench.ask("one")
    bench.ask("two")
    assert bench.command("/undo") == "Last question forgotten."
    bench.ask("three")
    texts = [message.parts[0].text for message in bench.requests[2].messages]
    assert texts == ["one", "Hi.", "three"]
    assert bench.command("/undo") and bench.command("/undo")
    assert bench.command("/undo") == "There is no question yet."


def test_stats_count_the_tokens_of_the_answers(bench):
    assert bench.command("/stats") == "There is no answer yet."
    bench.ask("one")
    bench.ask("two")
    last, chat = bench.command("/stats").splitlines()
    assert "7 prompt tokens (3 cached), 4 written" in last and "12.0 tokens/s" in last
    assert "2 answers, 14 prompt tokens, 8 written" in chat


def test_copy_sends_the_last_answer_to_the_clipboard_of_the_terminal():
    bench = ChatBench(spoken("Hi."), terminal=True)
    assert bench.command("/copy") == "There is no answer yet."
    bench.ask("one")
    bench.command("/copy")
    assert f"\x1b]52;c;{b64encode(b'Hi.').decode()}\x07" in bench.out


def test_model_lists_and_switches(bench):
    assert bench.command("/model").splitlines() == [
        "* scripted  loaded",
        "  other     not downloaded",
    ]
    assert bench.command("/model other") == "other answers from now on, in this process."
    assert bench.backend.model.name == "other"


def test_an_unknown_adapter_is_refused_with_the_known_ones(bench):
    assert bench.command("/adapter svg") == "there is no adapter svg, only sql"


def test_tools_are_switched_one_by_one(bench):
    shown = bench.command("/tools")
    assert "shell   off" in shown and "--enable-search" in shown
    assert bench.command("/tools shell on") == "shell: on"
    assert "shell   on" in bench.command("/tools")
    missing = bench.command("/tools code on")
    assert missing == ("code is not available; start penstock run with --enable-code-execution")
    assert "then on or off" in bench.command("/tools shell maybe")


def test_attached_files_go_with_the_next_line_and_stay_in_the_dialog(bench, tmp_path):
    photo = tmp_path / "photo.png"
    photo.write_bytes(png(8, 8))
    assert bench.command(f"/attach {photo}") == "photo.png goes with your next line."
    bench.ask("What?")
    bench.ask("Sure?")
    asked = Message("user", (Image(data=png(8, 8), mime_type="image/png"), Text("What?")))
    assert bench.requests[0].messages == (asked,)
    assert bench.requests[1].messages[0] == asked
    assert bench.requests[1].messages[2] == Message("user", (Text("Sure?"),))


def test_the_commands_of_media_say_what_a_file_is(bench, tmp_path):
    sound = sound_file(tone(16_000, 0.1), 16_000, "wav_s16")
    (tmp_path / "a.wav").write_bytes(sound)
    bench.command(f"/audio {tmp_path / 'a.wav'}")
    bench.ask("What?")
    (heard, _) = bench.requests[0].messages[0].parts
    assert isinstance(heard, Audio) and heard.data == sound
    (tmp_path / "b.txt").write_text("hi")
    refused = bench.command(f"/image {tmp_path / 'b.txt'}")
    assert refused == "b.txt is not an image in a known format"


def test_an_attached_text_is_quoted_in_the_question(bench, tmp_path):
    (tmp_path / "notes.txt").write_text("42")
    bench.command(f"/attach {tmp_path / 'notes.txt'}")
    bench.ask("What?")
    assert bench.requests[0].messages[0].parts[0] == Text("notes.txt:\n\n42\n\n")


def test_files_that_cannot_be_attached_are_explained(bench, tmp_path):
    assert "No such file" in bench.command(f"/attach {tmp_path / 'none.png'}")
    (tmp_path / "data").write_bytes(b"\xff\x00\x01")
    assert "is not an image, a recording, a video or a text" in bench.command(
        f"/attach {tmp_path / 'data'}"
    )
    assert "name a file" in bench.command("/attach")
