"""Commands about the messages of the chat: /clear, /retry, /undo, /copy, /stats."""

from __future__ import annotations

from penstock.api.chats.records import text_of
from penstock.api.schema.chats import MessageInfo
from penstock.cli.chat.command_context import AnswerAgain, CommandContext, Outcome

NO_QUESTION = "There is no question yet."


async def clear(chat: CommandContext, _: str) -> Outcome:
    """Start a new conversation."""
    chat.conversation.clear()
    chat.files.clear()
    return "Conversation cleared."


async def retry(chat: CommandContext, _: str) -> Outcome:
    """Answer the last question again."""
    return AnswerAgain() if chat.conversation.take_back_answer() else NO_QUESTION


async def undo(chat: CommandContext, _: str) -> Outcome:
    """Forget the last question and its answer."""
    return "Last question forgotten." if chat.conversation.undo() else NO_QUESTION


async def copy(chat: CommandContext, _: str) -> Outcome:
    """Copy the last answer to the clipboard."""
    last = chat.conversation.last_answer
    if last is None:
        return "There is no answer yet."
    copied = chat.screen.copy(text_of(last.blocks))
    return "Sent to the terminal's clipboard." if copied else "This needs a terminal."


async def stats(chat: CommandContext, _: str) -> Outcome:
    """Show the tokens and the speed of the last answer, and the sums of the conversation."""
    answers = [one.info for one in chat.conversation.branch if one.role == "assistant"]
    if not answers:
        return "There is no answer yet."
    prompt = sum(info.prompt_tokens or 0 for info in answers)
    written = sum(info.completion_tokens or 0 for info in answers)
    count = "1 answer" if len(answers) == 1 else f"{len(answers)} answers"
    return (
        f"last answer  {_described(answers[-1])}\n"
        f"this chat    {count}, {prompt:,} prompt tokens, {written:,} written"
    )


def _described(info: MessageInfo) -> str:
    cached = f" ({info.cached_tokens:,} cached)" if info.cached_tokens else ""
    shown = [
        None if info.prompt_tokens is None else f"{info.prompt_tokens:,} prompt tokens{cached}",
        None if info.completion_tokens is None else f"{info.completion_tokens:,} written",
        None if info.ttft_s is None else f"first token after {info.ttft_s:.2f} s",
        None if info.tokens_per_s is None else f"{info.tokens_per_s:.1f} tokens/s",
        None if info.seconds is None else f"{info.seconds:.1f} s",
    ]
    return ", ".join(part for part in shown if part is not None)
