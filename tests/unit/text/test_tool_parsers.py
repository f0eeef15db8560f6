"""Tool and reasoning parsers: every family, every split of a text, malformed calls."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.text.tool_parsers import (
    TOOL_SYNTAXES,
    AnswerParser,
    AnswerSyntax,
    CallEnd,
    CallStart,
    Harmony,
    ParsedArguments,
    ParsedReasoning,
    ParsedText,
    ParserOutput,
    ReasoningSyntax,
    detect_answer_syntax,
)
from tests.support.model_output_examples import EXAMPLES, TOOLS

THINK = ReasoningSyntax("<think>", "</think>")
ANSWERED = ReasoningSyntax("<think>", "</think>", ("<answer>", "</answer>"))
RESPONDED = ReasoningSyntax("<think>", "</think>", ("<response>", "</response>"))
CASES = [(name, text, calls) for name, cases in EXAMPLES.items() for text, calls in cases]
FAMILIES = sorted(EXAMPLES)


def pieces_of(
    name: str, texts: Iterable[str], *, thinking: bool = False, tools: Any = TOOLS
) -> list[ParserOutput]:
    parser = AnswerParser(AnswerSyntax(TOOL_SYNTAXES[name], THINK), tools, thinking=thinking)
    found: list[ParserOutput] = []
    for text in texts:
        found += parser.push(text)
    return found + parser.finish()


def joined(pieces: Iterable[ParserOutput]) -> list[tuple[str, str]]:
    """Join adjacent parts of a kind; the result must not depend on how the text was split."""
    found: list[tuple[str, str]] = []
    for piece in pieces:
        kind = type(piece).__name__
        match piece:
            case ParsedText() | ParsedReasoning() | ParsedArguments():
                if found and found[-1][0] == kind:
                    found[-1] = (kind, found[-1][1] + piece.text)
                else:
                    found.append((kind, piece.text))
            case CallStart():
                found.append((kind, f"{piece.name} {piece.call_id}"))
            case CallEnd():
                found.append((kind, ""))
    return found


def calls_in(pieces: Iterable[ParserOutput]) -> list[tuple[str, Any]]:
    calls: list[tuple[str, Any]] = []
    written = ""
    for piece in pieces:
        match piece:
            case CallStart():
                calls.append((piece.name, None))
                written = ""
            case ParsedArguments():
                written += piece.text
            case CallEnd():
                calls[-1] = (calls[-1][0], json.loads(written))
    return calls


def text_in(pieces: Iterable[ParserOutput]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, ParsedText))


def cut(text: str, places: Iterable[int]) -> list[str]:
    bounds = [0, *sorted({p % (len(text) + 1) for p in places}), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def test_every_family_has_examples() -> None:
    assert set(EXAMPLES) == set(TOOL_SYNTAXES)


@pytest.mark.parametrize(("name", "text", "calls"), CASES)
def test_calls_are_found_and_no_text_remains(name: str, text: str, calls: Any) -> None:
    pieces = pieces_of(name, [text])
    assert calls_in(pieces) == calls
    assert text_in(pieces) == ""


@pytest.mark.parametrize(("name", "text", "calls"), CASES)
def test_every_split_in_two_gives_the_same_output(name: str, text: str, calls: Any) -> None:
    whole = joined(pieces_of(name, [text]))
    assert joined(pieces_of(name, list(text))) == whole
    for place in range(len(text)):
        assert joined(pieces_of(name, [text[:place], text[place:]])) == whole


@pytest.mark.parametrize(("name", "text", "calls"), CASES)
def test_arguments_stream_before_their_call_ends(name: str, text: str, calls: Any) -> None:
    if not calls[0][1]:
        return
    parser = AnswerParser(AnswerSyntax(TOOL_SYNTAXES[name], None), TOOLS)
    deltas = 0
    for char in text:
        for piece in parser.push(char):
            deltas += isinstance(piece, ParsedArguments)
            if isinstance(piece, CallEnd):
                assert deltas > 1 or name == "hermes"  # hermes: arguments before the name wait
                return


@pytest.mark.parametrize(("name", "text", "calls"), CASES)
def test_text_around_calls_is_kept(name: str, text: str, calls: Any) -> None:
    syntax = TOOL_SYNTAXES[name]
    if isinstance(syntax, Harmony) or not text.startswith(tuple(s.open for s in syntax.sections)):
        return
    pieces = pieces_of(name, ["Let me see. \n", text, "\n Done."])
    assert calls_in(pieces) == calls
    assert text_in(pieces) == "Let me see.Done."


def corrupted(rng: random.Random, text: str) -> str:
    """Return the text with random parts removed, doubled, inserted or replaced."""
    chars = list(text)
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(chars) + 1)
        match rng.randrange(4):
            case 0:
                del chars[at : at + rng.randint(1, 12)]
            case 1:
                chars[at:at] = chars[at : at + rng.randint(1, 12)]
            case 2:
                chars.insert(at, rng.choice('"\\{}[](),:<>=|\n é😀\x00'))
            case _:
                chars[at : at + 1] = rng.choice(["</", "<|", "null", "'", "\\u12", "1e"])
    return "".join(chars)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    places=st.lists(st.integers(0, 2**16), max_size=30),
    before=st.sampled_from(["", "Hm. ", "\n", "<think>a b</think>\n", "<think>", "<tool_call>"]),
    thinking=st.booleans(),
)
def test_streamed_output_equals_unstreamed_output(
    name: str, seed: int, places: list[int], before: str, thinking: bool
) -> None:
    rng = random.Random(seed)
    examples = [text for text, _ in EXAMPLES[name]]
    text = before + corrupted(rng, "\n".join(rng.choices(examples, k=rng.randint(1, 2))))
    whole = pieces_of(name, [text], thinking=thinking)
    assert joined(pieces_of(name, cut(text, places), thinking=thinking)) == joined(whole)
    assert joined(pieces_of(name, list(text), thinking=thinking)) == joined(whole)
    starts = sum(isinstance(p, CallStart) for p in whole)
    assert starts == sum(isinstance(p, CallEnd) for p in whole)
    for piece in whole:
        if isinstance(piece, ParsedText):
            assert text[piece.at : piece.at + len(piece.text)] == piece.text


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"harmony"}))
@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_text_without_calls_is_returned_unchanged(name: str, seed: int) -> None:
    rng = random.Random(seed)
    text = corrupted(rng, rng.choice(EXAMPLES[name])[0])
    pieces = pieces_of(name, [text])
    if not any(isinstance(p, CallStart) for p in pieces):
        assert text_in(pieces) == text


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"harmony"}))
def test_call_of_an_unknown_function_is_text(name: str) -> None:
    for text, _ in EXAMPLES[name]:
        renamed = text.replace("get_weather", "zzz").replace("ping", "zzz").replace("hypot", "z")
        pieces = pieces_of(name, [renamed])
        assert (calls_in(pieces), text_in(pieces)) == ([], renamed)


@pytest.mark.parametrize("name", FAMILIES)
def test_without_tools_calls_are_text(name: str) -> None:
    for text, _ in EXAMPLES[name]:
        assert calls_in(pieces_of(name, [text], tools=())) == []


def test_rest_of_a_malformed_call_is_text() -> None:
    text = '<tool_call>{"name": "ping", "arguments": {"a": ]}} and more'
    assert joined(pieces_of("hermes", [text])) == [
        ("CallStart", "ping None"),
        ("ParsedArguments", '{"a": '),
        ("CallEnd", ""),
        ("ParsedText", "]}} and more"),
    ]


def test_call_cut_off_at_the_end_keeps_its_arguments() -> None:
    pieces = pieces_of("hermes", ['<tool_call>{"name": "get_weather", "arguments": {"city": "Pa'])
    assert [p.text for p in pieces if isinstance(p, ParsedArguments)] == ['{"city": "Pa']
    pieces = pieces_of("qwen3_coder", ["<function=get_weather>\n<parameter=city>\nPa"])
    assert "".join(p.text for p in pieces if isinstance(p, ParsedArguments)) == '{"city": "Pa'


def test_json_that_is_not_a_call_is_streamed_as_text() -> None:
    parser = AnswerParser(AnswerSyntax(TOOL_SYNTAXES["hermes"]), TOOLS)
    assert text_in(parser.push('{"joke": ')) == '{"joke":'
    assert text_in(parser.push('"long')) == ' "long'


@pytest.mark.parametrize("arguments", ['{"a": "\\ud83d"}', "[" * 5000])
def test_call_with_invalid_encoded_arguments_is_text(arguments: str) -> None:
    inner = arguments.replace('"', '\\"')
    text = f'<tool_call>{{"name": "ping", "arguments": "{inner}"}}</tool_call>'
    pieces = pieces_of("hermes", [text])
    assert (calls_in(pieces), text_in(pieces)) == ([], text)


def test_extra_brace_is_skipped() -> None:
    text = '<tool_call>\n{"name": "ping", "arguments": {}}}\n</tool_call>'
    pieces = pieces_of("hermes", list(text))
    assert (calls_in(pieces), text_in(pieces)) == ([("ping", {})], "")


@pytest.mark.parametrize(
    ("written", "value"), [("1_000", 1000), (r'"\ud83d\ude00"', "\U0001f600"), ("1_0.5", 10.5)]
)
def test_python_values_are_read_like_in_python(written: str, value: Any) -> None:
    tool = TOOLS[0].__class__("f", None, {"type": "object"})
    ((_, arguments),) = calls_in(pieces_of("pythonic", [f"[f(a={written})]"], tools=[tool]))
    assert (arguments["a"], type(arguments["a"])) == (value, type(value))


def test_lone_surrogate_in_a_python_string_breaks_off_the_call() -> None:
    text = text_in(pieces_of("pythonic", [r'[get_weather(city="\ud83d\ud83d")]']))
    assert text.endswith('")]')


def test_call_ids_of_the_model_are_kept() -> None:
    ((text, _),) = EXAMPLES["kimi"]
    ids = [p.call_id for p in pieces_of("kimi", [text]) if isinstance(p, CallStart)]
    assert ids == ["functions.get_weather:0", "functions.ping:1"]


class TestValues:
    """Values between tags get the types that the schema allows."""

    def value(self, schema: Any, written: str) -> Any:
        tool = TOOLS[0].__class__("f", None, {"type": "object", "properties": {"a": schema}})
        text = f"<function=f>\n<parameter=a>\n{written}\n</parameter>\n</function>"
        ((_, arguments),) = calls_in(pieces_of("qwen3_coder", [text], tools=[tool]))
        return arguments["a"]

    @pytest.mark.parametrize(
        ("schema", "written", "value"),
        [
            ({"type": "string"}, "12", "12"),
            ({"type": "string"}, ' "q"\\ ', ' "q"\\ '),
            ({"type": "integer"}, "12", 12),
            ({"type": "number"}, "12", 12),
            ({"type": "boolean"}, "True", True),
            ({"type": ["string", "null"]}, "null", None),
            ({"type": ["string", "integer"]}, "1.5", "1.5"),
            ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "7", 7),
            ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "seven", "seven"),
            ({"enum": ["1", "2"]}, "1", "1"),
            ({"enum": [1, 2]}, "1", 1),
            ({"type": "array"}, '[1, "a"]', [1, "a"]),
            ({"type": "object"}, "{'a': (1, None)}", {"a": [1, None]}),
            ({}, "12", 12),
            ({}, "twelve", "twelve"),
            ({"type": "integer"}, "many", "many"),
            ({"type": "object"}, r"{'a': '\ud800'}", r"{'a': '\ud800'}"),
            ({"type": "number"}, "NaN", "NaN"),
            ({"type": "string"}, "line\nline\t\x01", "line\nline\t\x01"),
        ],
    )
    def test_types(self, schema: Any, written: str, value: Any) -> None:
        found = self.value(schema, written)
        assert (found, type(found)) == (value, type(value))

    def test_references_are_followed(self) -> None:
        parameters = {
            "$defs": {"S": {"type": "string"}},
            "properties": {"a": {"$ref": "#/$defs/S"}},
        }
        tool = TOOLS[0].__class__("f", None, parameters)
        text = "<function=f><parameter=a>5</parameter></function>"
        assert calls_in(pieces_of("seed_oss", [f"<seed:tool_call>{text}"], tools=[tool])) == [
            ("f", {"a": "5"})
        ]

    def test_types_are_found_below_the_top_of_the_schema(self) -> None:
        parameters = {
            "$ref": "#/$defs/F",
            "$defs": {"F": {"anyOf": [{"properties": {"a": {"type": "string"}}}]}},
        }
        tool = TOOLS[0].__class__("f", None, parameters)
        text = "<function=f><parameter=a>5</parameter></function>"
        assert calls_in(pieces_of("qwen3_coder", [text], tools=[tool])) == [("f", {"a": "5"})]


class TestReasoning:
    def test_reasoning_is_separated_from_the_answer(self) -> None:
        pieces = pieces_of("hermes", ["<think>\nhm, <b>\n</think>\n\nYes.\n"])
        assert joined(pieces) == [("ParsedReasoning", "hm, <b>"), ("ParsedText", "Yes.\n")]

    def test_prompt_may_have_opened_the_reasoning(self) -> None:
        pieces = pieces_of("hermes", ["hm</think>Yes."], thinking=True)
        assert joined(pieces) == [("ParsedReasoning", "hm"), ("ParsedText", "Yes.")]

    def test_unclosed_reasoning_stays_reasoning(self) -> None:
        assert joined(pieces_of("hermes", ["<think>hm </th"])) == [("ParsedReasoning", "hm </th")]

    def test_empty_reasoning_is_dropped(self) -> None:
        assert joined(pieces_of("hermes", ["<think>\n\n</think>\n\nA"])) == [("ParsedText", "A")]

    def test_reasoning_tags_inside_the_answer_are_text(self) -> None:
        text = "Write <think>x</think>."
        assert joined(pieces_of("hermes", [text])) == [("ParsedText", text)]

    def test_calls_may_follow_reasoning(self) -> None:
        ((text, calls), *_) = EXAMPLES["qwen3_coder"]
        pieces = pieces_of("qwen3_coder", ["a</think>\n", text], thinking=True)
        assert calls_in(pieces) == calls and text_in(pieces) == ""

    @pytest.mark.parametrize("thinking", [True, False])
    def test_tags_around_the_answer_are_dropped(self, thinking: bool) -> None:
        ((call, calls), *_) = EXAMPLES["hunyuan"]
        before = "hm\n</think>\n" if thinking else ""
        for answer, found, text in (
            ("<answer>\nYes <b>.\n</answer>", [], "Yes <b>.\n"),
            (f"<answer>\nWait.\n{call}\n</answer>", calls, "Wait."),
            ("Yes.</answer>", [], "Yes.</answer>"),
        ):
            pieces = []
            for texts in ([before + answer], list(before + answer)):
                syntax = AnswerSyntax(TOOL_SYNTAXES["hunyuan"], ANSWERED)
                parser = AnswerParser(syntax, TOOLS, thinking=thinking)
                pieces = [piece for one in texts for piece in parser.push(one)] + parser.finish()
                assert (calls_in(pieces), text_in(pieces)) == (found, text)
            reasoning = [piece.text for piece in pieces if isinstance(piece, ParsedReasoning)]
            assert "".join(reasoning) == ("hm" if thinking else "")

    def test_thought_channel_of_gemma4_is_reasoning(self) -> None:
        ((call, calls), *_) = EXAMPLES["gemma4"]
        syntax = detect_answer_syntax("<|tool_call>call: <|channel>thought\n<channel|>", ())
        parser = AnswerParser(syntax, TOOLS)
        pieces = parser.push(f"<|channel>thought\nHm.<channel|>{call}") + parser.finish()
        assert joined(pieces)[0] == ("ParsedReasoning", "Hm.")
        assert (calls_in(pieces), text_in(pieces)) == (calls, "")

    def test_harmony_channels_are_separated(self) -> None:
        text = (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary"
            "<|message|>One moment.<|end|><|start|>assistant<|channel|>final<|message|>Yes.\n"
        )
        assert joined(pieces_of("harmony", [text])) == [
            ("ParsedReasoning", "hm"),
            ("ParsedText", "One moment.Yes.\n"),
        ]

    def test_reasoning_property_is_true_while_reasoning_is_read(self) -> None:
        parser = AnswerParser(AnswerSyntax(None, THINK))
        states = []
        for char in "<think>ab</think>c":
            parser.push(char)
            states.append(parser.reasoning)
        assert states == [False] * 6 + [True] * 10 + [False] * 2


class TestDetection:
    @pytest.mark.parametrize(
        ("template", "calls"),
        [
            ('... <tool_call>\\n{"name": <function-name>', "hermes"),
            ("<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder"),
            ("<tool_call>{name}<arg_key>", "glm"),
            ("[TOOL_CALLS] [AVAILABLE_TOOLS]", "mistral_json"),
            ("[TOOL_CALLS] ... [ARGS]", "mistral"),
            ("<｜tool▁calls▁begin｜>...```json", "deepseek_v3"),
            ("<｜tool▁calls▁begin｜>", "deepseek_v31"),
            ("<|start|>assistant<|channel|>final<|message|>", "harmony"),
            ("<|start_header_id|>{{ tool.parameters }}", "llama3"),
            ("<|start_of_role|> <|tool_call|>", "granite"),
            ("<|tool_call|>", "phi"),
            ("{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", "phi"),
            ("<|observation|>[gMASK]<sop>{{ meta }}\n{{ content }}", "glm4"),
            ("List of tools: <|tool_list_start|>[", "lfm2"),
            ('<|START_ACTION|>[{"tool_call_id": "0", "tool_name":', "cohere"),
            ('<tool_calls>[{"name": "func_name1", "arguments": {}}]</tool_calls>', "hunyuan"),
            ('<tool_calls>\n{"name": <tool-name-1>', "minimax_m1"),
            ("<tools> <function_calls></function_calls>", "olmo"),
            ("<|tool_call>call:", "gemma4"),
            ("none of the marks", "hermes"),
        ],
    )
    def test_syntax_is_detected_from_the_template(self, template: str, calls: str) -> None:
        found = detect_answer_syntax(template, ()).calls
        assert found is not None and found.name == calls

    def test_syntax_is_detected_from_tokens_without_a_template(self) -> None:
        found = detect_answer_syntax(None, {"<|tool_calls_section_begin|>": 1, "</think>": 2})
        assert found.calls is TOOL_SYNTAXES["kimi"] and found.reasoning == THINK

    def test_syntax_is_detected_from_tokens_if_the_template_has_no_sign(self) -> None:
        found = detect_answer_syntax("List of tools: [", {"<|tool_call_start|>", "<|im_end|>"})
        assert found.calls is TOOL_SYNTAXES["lfm2"]

    @pytest.mark.parametrize(("template", "found"), [
        ("<think> content.split('<answer>')[-1].split('</answer>')[0]", ANSWERED),
        ("<think></think> <response></response>", RESPONDED),
        ("<think></think> <answer>", THINK),
        ("<think></think> '<response>' + message.content + '</response>'", THINK),
    ])  # fmt: skip
    def test_tags_around_the_answer_are_detected(
        self, template: str, found: ReasoningSyntax
    ) -> None:
        assert detect_answer_syntax(template, ()).reasoning == found

    def test_reasoning_is_detected_from_an_opening_tag(self) -> None:
        template = "{{ messages[0].content }}<|im_start|>assistant\n<think>\n"
        assert detect_answer_syntax(template, ()).reasoning == THINK

    def test_operator_can_choose_the_syntax(self) -> None:
        assert detect_answer_syntax("<tool_call>", (), "lfm2").calls is TOOL_SYNTAXES["lfm2"]
        assert detect_answer_syntax("<tool_call>", (), "none").calls is None
