/** The chat that is shown: its messages, the branch, running answers, and what a person does to it. */

import { SvelteMap } from "svelte/reactivity";

import {
  addMessage,
  answerAgain,
  changeAnswer,
  changeChat,
  continueAnswer,
  createChat,
  decideApproval,
  getChat,
  stopAnswer,
  uploadAttachment,
} from "../api/chats";
import { isAbort } from "../api/client";
import { applyEvent, followMessage } from "../api/events";
import type {
  ApprovalBlock,
  Chat,
  ChatSettings,
  Message,
  MessageEvent,
  ModelInfo,
  NewBlock,
} from "../api/types";
import { chats } from "../state/chats.svelte";
import { preferences } from "../state/preferences.svelte";
import { server } from "../state/server.svelte";
import { toasts } from "../ui/toasts.svelte";
import { FrameBatch } from "./frameBatch";
import { answerKind, make, type AnswerKind } from "./making";
import { branchTo, newestLeaf, siblingsOf, textOf } from "./tree";

type Status = "loading" | "ready" | "failed";
type MadeKind = Exclude<AnswerKind, "text">;

/** Speech or a picture that is being made, and the text that asked for it. */
interface Making {
  kind: MadeKind;
  prompt: string;
  abort: AbortController;
}

export class Conversation {
  /** Null until a new chat gets its first message. */
  chat = $state<Chat | null>(null);
  status = $state<Status>("ready");
  /** The reason why the chat could not be loaded. */
  error = $state<unknown>(null);
  /** False while the connection to a running answer is lost. */
  connected = $state(true);
  /** The message that the person edits. */
  editing = $state<string | null>(null);
  making = $state.raw<Making | null>(null);
  /** The number of answers that were asked for here, for the view to show the newest. */
  asked = $state(0);

  readonly #messages = new SvelteMap<string, Message>();
  readonly #followed = new Map<string, AbortController>();
  #tail = $state<string | null>(null);
  #draftSettings = $state<ChatSettings>({});
  #saving: Promise<unknown> = Promise.resolve();
  #closed = new AbortController();

  /** `id`: the chat to load; null: a new chat. */
  constructor(id: string | null) {
    this.#draftSettings = { ...preferences.newChat.value };
    if (id !== null) void this.load(id);
  }

  /** The messages that are shown, from the first. */
  readonly branch: Message[] = $derived(branchTo(this.#messages, this.#tail));

  /** The answer that is being written at the end of the branch. */
  readonly running: Message | undefined = $derived(
    this.branch.findLast((message) => message.status === "running"),
  );

  /** Whether an answer is being made, so that the next question must wait. */
  readonly busy: boolean = $derived(this.running !== undefined || this.making !== null);

  /** The model that answers; undefined while the server has not described it. */
  get model(): ModelInfo | undefined {
    return server.model(this.settings.model ?? server.info?.default_model);
  }

  get settings(): ChatSettings {
    return this.chat?.settings ?? this.#draftSettings;
  }

  get title(): string {
    return this.chat?.title ?? "New chat";
  }

  /** Load the chat, and follow its running answers. */
  async load(id: string): Promise<void> {
    this.status = this.chat === null ? "loading" : this.status;
    try {
      const { chat, messages } = await getChat(id, this.#closed.signal);
      this.chat = chat;
      this.#messages.clear();
      for (const message of messages) this.#add(message);
      this.#tail = chat.tail;
      this.status = "ready";
    } catch (error) {
      if (isAbort(error)) return;
      this.status = "failed";
      this.error = error;
    }
  }

  /** Stop to follow the chat. Its answers go on in the server. */
  close(): void {
    this.#closed.abort();
    this.making?.abort.abort();
    for (const following of this.#followed.values()) following.abort();
  }

  /** Return the versions of a message, oldest first. */
  versions(message: Message): Message[] {
    return siblingsOf(this.#messages.values(), message);
  }

  /** Show the branch of another version of a message. */
  async show(message: Message): Promise<void> {
    this.#tail = newestLeaf(this.#messages.values(), message).id;
    if (this.chat) this.chat = await changeChat(this.chat.id, { tail: this.#tail });
  }

  /**
   * Send a message at the end of the branch, or below `parent`. Creates the chat if it is new;
   * returns it.
   */
  async send(blocks: NewBlock[], parent: string | null = this.#tail): Promise<Chat> {
    const chat = await this.#existing();
    await this.#saving;
    const kind = answerKind(this.model);
    const made = kind === "text" ? undefined : await this.#make(kind, blocks);
    const { user, answer } = await addMessage(chat.id, parent, blocks, made);
    this.asked += 1;
    this.#add(user);
    this.#add(answer);
    this.#tail = answer.id;
    void this.#refreshTitle(chat, user);
    return chat;
  }

  /** Replace a message of the user by a new version: a new branch with its own answer. */
  async edit(message: Message, text: string): Promise<void> {
    await this.send([...attachmentsOf(message), { type: "text", text }], message.parent);
    this.editing = null;
  }

  /** Begin to edit the person's last message of the branch. Returns whether there is one. */
  editLast(): boolean {
    const last = this.branch.findLast((message) => message.role === "user");
    if (!last || this.busy) return false;
    this.editing = last.id;
    return true;
  }

  /** Replace the text of an answer. */
  async editAnswer(message: Message, text: string): Promise<void> {
    this.#add(await changeAnswer(message.chat_id, message.id, text));
  }

  /** Write another answer to the question that `answer` answers. */
  async regenerate(answer: Message): Promise<void> {
    const question = this.#messages.get(answer.parent ?? "");
    if (!question) return;
    if (answerKind(this.model) !== "text") return this.edit(question, textOf(question));
    await this.#saving;
    const again = await answerAgain(answer.chat_id, question.id);
    this.asked += 1;
    this.#add(again);
    this.#tail = again.id;
  }

  /** Go on writing an answer that was stopped or that reached its limit. */
  async continue(answer: Message): Promise<void> {
    await this.#saving;
    this.#add(await continueAnswer(answer.chat_id, answer.id));
  }

  /** Stop the running answer. */
  async stop(): Promise<void> {
    this.making?.abort.abort();
    const answer = this.running;
    if (answer) this.#add(await stopAnswer(answer.chat_id, answer.id));
  }

  /** Decide whether a tool may run. `always`: do not ask again in this chat. */
  async decide(block: ApprovalBlock, decision: "approve" | "deny", always = false): Promise<void> {
    await decideApproval(block.approval_id, decision, always);
    block.decision = decision;
  }

  /** Change settings of the chat. An undefined value returns to the model's default. */
  change(changes: { [name in keyof ChatSettings]: ChatSettings[name] | undefined }): void {
    const settings = withoutUndefined({ ...this.settings, ...changes });
    if (this.chat === null) {
      this.#draftSettings = settings;
      return;
    }
    const { id } = this.chat;
    const before = this.chat.settings;
    this.chat.settings = settings;
    this.#saving = this.#saving
      .then(() => changeChat(id, { settings }))
      .catch((error: unknown) => {
        if (this.chat?.id === id) this.chat.settings = before;
        toasts.error(error);
      });
  }

  /** Make speech or a picture from a message. Returns the answer that has it. */
  async #make(kind: MadeKind, blocks: NewBlock[]): Promise<NewBlock[]> {
    const prompt = blocks
      .flatMap((block) => (block.type === "text" ? [block.text] : []))
      .join("\n");
    const making = { kind, prompt, abort: new AbortController() };
    this.making = making;
    try {
      const file = await make(kind, prompt, this.settings, making.abort.signal);
      const { id } = await uploadAttachment(file).result;
      return [{ type: "attachment", id }];
    } finally {
      this.making = null;
    }
  }

  async #existing(): Promise<Chat> {
    this.chat ??= await createChat({ settings: this.#draftSettings });
    return this.chat;
  }

  /** The server names a new chat after its first message. */
  async #refreshTitle(chat: Chat, sent: Message): Promise<void> {
    try {
      this.chat = sent.parent === null ? (await getChat(chat.id)).chat : chat;
      chats.touched(this.chat, textOf(sent));
    } catch {
      // The list shows the title when it is loaded again.
    }
  }

  /** Add or replace a message, and follow it while it is written. */
  #add(message: Message): void {
    const shown = $state(message);
    this.#messages.set(message.id, shown);
    if (shown.status === "running") void this.#follow(shown);
  }

  async #follow(message: Message): Promise<void> {
    this.#followed.get(message.id)?.abort();
    const following = new AbortController();
    this.#followed.set(message.id, following);
    const events = new FrameBatch<MessageEvent>((event) => applyEvent(message, event));
    try {
      await followMessage(
        message.chat_id,
        message.id,
        {
          event: (event) => events.add(event),
          connected: (connected) => (this.connected = connected),
        },
        following.signal,
      );
    } catch (error) {
      if (!isAbort(error)) toasts.error(error);
    } finally {
      events.flush();
    }
  }
}

function attachmentsOf(message: Message): NewBlock[] {
  return message.blocks.flatMap((block) =>
    block.type === "attachment" ? [{ type: "attachment", id: block.attachment.id }] : [],
  );
}

function withoutUndefined(settings: {
  [name in keyof ChatSettings]: ChatSettings[name] | undefined;
}): ChatSettings {
  const given = Object.entries(settings).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as ChatSettings;
}
