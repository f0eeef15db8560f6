"""Finding the text of a breaker in the tokens of a vocabulary."""

from __future__ import annotations

import random
import string

import msgspec
import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import Sampling
from penstock.generation.dry_breakers import DryBreakers
from penstock.generation.sampling import DRY_BREAKERS, resolve_sampling
from penstock.text import Tokenizer
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer
from tests.support.dry_sequence_breakers import sequences_of

TH, THE, HE, IN, ING = range(259, 264)


@pytest.fixture
def breakers() -> DryBreakers:
    return DryBreakers(tiny_tokenizer())


def test_a_single_character_breaks_in_every_token_that_has_it(breakers: DryBreakers) -> None:
    found = sequences_of(breakers.sequences(("h",)))
    assert found == [(ord("h"),), (TH,), (THE,), (HE,)]


def test_a_longer_text_also_breaks_where_tokens_cut_it(breakers: DryBreakers) -> None:
    found = sequences_of(breakers.sequences(("the",)))
    assert set(found) == {(THE,), (ord("t"), HE), (TH, ord("e"))}


def test_a_character_is_not_cut_into_text(breakers: DryBreakers) -> None:
    """The first byte of é ends a token, but no text begins with its second."""
    assert breakers.sequences(("é",)) == ()
    assert sequences_of(breakers.sequences(("xé",))) == [(ord("x"), *"é".encode())]


def test_control_tokens_are_no_text(breakers: DryBreakers) -> None:
    assert breakers.sequences(("im_start",)) != ()
    found = sequences_of(breakers.sequences(("<",)))
    assert found and all(token < 256 or token >= TH for each in found for token in each)


def test_texts_that_share_a_sequence_give_it_once(breakers: DryBreakers) -> None:
    assert sequences_of(breakers.sequences(("ing", "in"))).count((ING,)) == 1


def test_what_an_engine_is_told_does_not_grow_with_the_length_of_a_string() -> None:
    """A request tells it once for each of its answers, and each answer's row remembers it."""
    plain = tiny_data()
    words = [f"{letter}{number}x" for letter in string.ascii_letters for number in range(40)]
    tokenizer = tiny_tokenizer(
        tokens=[*plain.tokens, *words], token_types=[*plain.token_types, *[1] * len(words)]
    )
    found = DryBreakers(tokenizer).sequences(("x" + "y" * 39,))
    assert len(sequences_of(found)) > len(words)
    assert len(msgspec.msgpack.encode(found)) < 5 * len(words)


def test_as_many_as_there_are_in_a_large_vocabulary_by_plain_search() -> None:
    draw = random.Random(5)
    words = sorted({"".join(draw.choices("aab ", k=draw.randint(2, 7))) for _ in range(3000)})
    plain = tiny_data()
    tokenizer = tiny_tokenizer(
        tokens=[*plain.tokens, *(word.replace(" ", "Ġ") for word in words)],
        token_types=[*plain.token_types, *[1] * len(words)],
    )
    breakers = DryBreakers(tokenizer)
    texts = {
        token: tokenizer.token_bytes(token)
        for token in range(tokenizer.vocab_size)
        if token not in tokenizer.control_ids
    }
    for text in ("a", "ab", " b", "aa aab", "baab ba ab"):
        wanted = text.encode()
        whole = {(token,) for token, has in texts.items() if wanted in has}
        cut = {
            (token, *tokenizer.encode(text[length:]))
            for token, has in texts.items()
            for length in range(1, len(text))
            if has.endswith(wanted[:length]) and (token,) not in whole
        }
        assert set(sequences_of(breakers.sequences((text,)))) == whole | cut


def test_more_than_an_engine_should_look_for_are_refused(
    breakers: DryBreakers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.generation.dry_breakers.MAX_SEQUENCES", 5)
    assert len(sequences_of(breakers.sequences(("h",)))) == 4
    with pytest.raises(InvalidRequest, match="too many ways") as refusal:
        breakers.sequences(("h", "the"))
    assert refusal.value.field == "dry_sequence_breakers"


def test_a_long_string_costs_no_search_for_each_of_its_beginnings(
    breakers: DryBreakers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None longer than the longest token is looked for."""
    looked: list[bytes] = []
    monkeypatch.setattr(
        "penstock.generation.dry_breakers._Vocabulary.ending_with",
        lambda _, wanted: looked.append(wanted) or range(0),
    )
    breakers.sequences(("x" * 40,))
    assert looked == [b"x", b"xx", b"xxx"]


def spaced() -> Tokenizer:
    """SentencePiece: a text begins with a space of its own."""
    pieces = ["<unk>", "▁", "\n", "a", "b", "▁a", "▁b", "ab", "▁ab"]
    return tiny_tokenizer(
        model="llama",
        pre=None,
        tokens=[*pieces, *(f"<0x{byte:02X}>" for byte in range(256))],
        token_types=[2] + [1] * (len(pieces) - 1) + [6] * 256,
        scores=[-float(index) for index in range(len(pieces) + 256)],
        merges=[],
        bos_id=None,
        eos_id=None,
    )


def test_the_rest_of_a_cut_text_has_no_space_of_its_own() -> None:
    tokenizer = spaced()
    assert tokenizer.space_prefix
    found = sequences_of(DryBreakers(tokenizer).sequences(("\nab",)))
    assert (2, 7) in found
    assert not any(token in (1, 5, 8) for each in found for token in each[1:])


def test_dry_has_its_usual_numbers_where_nobody_says(breakers: DryBreakers) -> None:
    resolved = resolve_sampling(Sampling(dry_multiplier=0.5), Sampling(), breakers)
    assert (resolved.dry_base, resolved.dry_allowed_length) == (1.75, 2)
    assert resolved.dry_breakers == breakers.sequences(DRY_BREAKERS)
    none = Sampling(dry_multiplier=0.5, dry_sequence_breakers=())
    assert resolve_sampling(none, Sampling(), breakers).dry_breakers == ()


def test_without_a_multiplier_nothing_of_dry_is_sent(breakers: DryBreakers) -> None:
    wanted = Sampling(dry_base=2.0, dry_allowed_length=1, dry_sequence_breakers=("the",))
    assert resolve_sampling(wanted, Sampling(), breakers) == Sampling(temperature=1.0)


def test_the_model_says_what_repetition_costs_unless_the_request_does(
    breakers: DryBreakers,
) -> None:
    model = Sampling(repetition_penalty=1.1)
    assert resolve_sampling(Sampling(), model, breakers).repetition_penalty == 1.1
    for asked, sent in ((1.3, 1.3), (1.0, None)):
        wanted = Sampling(repetition_penalty=asked)
        assert resolve_sampling(wanted, model, breakers).repetition_penalty == sent
