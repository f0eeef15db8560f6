"""The drafter that is an assistant: it reads the hidden states and the KV cache of its target.

After each step of the target, the assistant runs once for each draft token, over one token of each
row: the last known one, then its last draft token. It keeps nothing between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from penstock.config import EngineSettings
from penstock.models.configuration.family import AssistantFamily
from penstock.models.decoder.assistant_weights import AssistantWeights
from penstock.models.decoder.centroid_head import CentroidHead
from penstock.models.decoder.draft_head import HeadName
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.assistant_loader import load_assistant
from penstock.models.loader.model_loader import LoadedModel
from penstock.quant.weight_slices import size_bytes
from penstock.runtime.backend import Backend, Floats, Ints, MtpRunner
from penstock.runtime.drafts.draft_sampler import DraftSampler
from penstock.runtime.drafts.draft_vocabulary import DraftVocabulary, draft_head_bytes
from penstock.runtime.drafts.memory import DrafterMemory
from penstock.runtime.drafts.open_vocabulary import open_vocabulary
from penstock.runtime.drafts.row_inputs import row_inputs
from penstock.runtime.drafts.vocabulary import check_vocabulary
from penstock.runtime.memory import MemoryPlan
from penstock.runtime.row_table import RowTable
from penstock.runtime.weight_quantization import weight_form
from penstock.scheduler.types import Draft, DraftSource, SampledToken, StepPlan


@dataclass(frozen=True, slots=True)
class OpenedAssistant:
    """An assistant that fits its target.

    - `head`: its weights.
    - `vocabulary`: the tokens of its draft head; None without one.
    """

    head: AssistantWeights
    vocabulary: DraftVocabulary | None = None

    def memory(self, plan: MemoryPlan) -> DrafterMemory:
        """Return the memory that the assistant needs beside a target with the sizes of `plan`. Its
        activations use the memory of the target's."""
        return DrafterMemory(
            weight_bytes=self.head.packed_bytes(size_bytes) + draft_head_bytes(self.vocabulary),
            buffer_bytes=4 * plan.step_tokens * self.head.spec.target_width,
        )

    def start(self, plan: MemoryPlan, rows: RowTable, backend: Backend) -> AssistantDrafter:
        """Return the drafter. `backend` has packed the weights, except a head with centroids."""
        assert backend.mtp is not None
        vocab = self.head.spec.decoder.vocab_size
        sampler = DraftSampler(rows, backend, (vocab, vocab), self.vocabulary)
        return AssistantDrafter(rows, backend.mtp, sampler, self.head.centroid_head())


def open_assistant(
    draft_files: ModelFiles,
    family: AssistantFamily,
    files: ModelFiles,
    model: LoadedModel,
    settings: EngineSettings,
) -> OpenedAssistant:
    """Return the assistant in `draft_files` for the target `model`, whose files are `files`. Raises
    ModelError if it cannot be read or does not fit."""
    form = weight_form(settings)
    weights = load_assistant(draft_files, family, model.spec, settings.dtype, form)
    vocab = model.spec.vocab_size
    if draft_files.kind == "gguf" or (draft_files.path / "tokenizer.json").exists():
        check_vocabulary(files, vocab, draft_files, weights.spec.decoder.vocab_size)
    vocabulary = None
    if weights.spec.centroids is None:
        given = files, settings, model.weights, weights.decoder
        vocabulary = open_vocabulary(*given, weights.pass_bytes())
    return OpenedAssistant(weights, vocabulary)


@dataclass(slots=True)
class _Row:
    """A row that asks for drafts.

    - `last`: the position of its last known token, which the target has not computed.
    - `hidden`: the index of the hidden state of the token before.
    - `wanted`: the number of draft tokens asked for.
    - `tokens`: the draft tokens so far.
    """

    row: int
    last: int
    hidden: int
    wanted: int
    tokens: list[int] = field(default_factory=list)


class AssistantDrafter:
    """A `Drafter` that runs an assistant. `rows`: those of the target.
    `centroids`: the language-model head if the assistant has one with centroids."""

    source: DraftSource = "draft_model"
    reads_hidden = True

    def __init__(
        self,
        rows: RowTable,
        assistant: MtpRunner,
        sampler: DraftSampler,
        centroids: CentroidHead | None = None,
    ) -> None:
        self._rows = rows
        self._assistant = assistant
        self._sampler = sampler
        self._centroids = centroids

    def propose(
        self, plan: StepPlan, sampled: Sequence[SampledToken], hidden: Floats | None
    ) -> tuple[Draft, ...]:
        """Return the draft tokens that `plan` asks for; see `Drafter.propose`."""
        assert hidden is not None
        rows = self._asking(plan, sampled)
        states = hidden[[one.hidden for one in rows]]
        head = self._sampler.head([one.row for one in rows])
        left = rows
        while left:
            states = self._pass(left, states, head)
            going_on = [place for place, one in enumerate(left) if 0 < len(one.tokens) < one.wanted]
            states, left = states[going_on], [left[place] for place in going_on]
        drafts = (Draft(one.row, tuple(one.tokens)) for one in rows)
        return tuple(draft for draft in drafts if draft.token_ids)

    def close(self) -> None:
        """Do nothing: the backend of the target releases the assistant."""

    def _asking(self, plan: StepPlan, sampled: Sequence[SampledToken]) -> list[_Row]:
        """Return the rows of `plan` that ask for drafts."""
        failed = {one.row for one in sampled if one.failed}
        rows, first = [], 0
        for chunk in plan.chunks:
            if chunk.samples and chunk.num_drafts and chunk.row not in failed:
                last = self._rows.num_known(chunk.row) - 1
                before = first + last - 1 - chunk.start
                rows.append(_Row(chunk.row, last, before, chunk.num_drafts))
            first += chunk.length + len(chunk.draft_tokens)
        return rows

    def _pass(self, rows: list[_Row], states: Floats, head: HeadName) -> Floats:
        """Run the assistant over the last token of each row, and propose one token more. `states`:
        the hidden state for each row, [R, W]. Return those for the next pass. `head`: the
        language-model head.

        All passes turn the queries by the position of the last known token, and see the keys of the
        tokens before it.
        """
        numbers = np.array([one.row for one in rows], np.intp)
        last = np.array([one.last for one in rows], np.int32)
        ones = np.ones(len(rows), np.int32)
        inputs = row_inputs(self._rows, numbers, last - np.int32(1), ones, ones == 1)
        inputs = replace(
            inputs,
            tokens=self._last_tokens(rows, numbers, last),
            positions=self._rows.rope_positions(numbers, last),
        )
        index = np.arange(len(rows), dtype=np.int32)
        logits, following = self._assistant.run(inputs, states, index, head)
        if self._centroids is not None:
            logits = self._centroids.logits(logits)
        kept: Floats = following.copy()
        self._sample(rows, logits, head)
        return kept

    def _last_tokens(self, rows: list[_Row], numbers: npt.NDArray[np.intp], last: Ints) -> Ints:
        known = self._rows.tokens_at(numbers, last).tolist()
        drafts = (one.tokens[-1:] for one in rows)
        pairs = zip(drafts, known, strict=True)
        return np.array([own[0] if own else token for own, token in pairs], np.int32)

    def _sample(self, rows: list[_Row], logits: Floats, head: HeadName) -> None:
        """Sample one draft token for each of `rows`. A row whose logits are not finite gets no
        further tokens."""
        numbers, counts = [one.row for one in rows], [len(one.tokens) for one in rows]
        token_ids = self._sampler.sample(numbers, counts, logits, head)
        for one, token in zip(rows, token_ids, strict=True):
            if token < 0:
                one.wanted = 0
            else:
                one.tokens.append(token)
