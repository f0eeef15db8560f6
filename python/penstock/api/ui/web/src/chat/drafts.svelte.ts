/** Files that go with the next message: they are uploaded while the person writes. */

import { uploadAttachment } from "../api/chats";
import { isAbort, messageOf, type Upload } from "../api/client";
import type { Attachment } from "../api/types";

export class DraftFile {
  readonly file: File;
  /** An address of the file for a preview; null for files that are no images. */
  readonly preview: string | null;
  progress = $state(0);
  attachment = $state<Attachment | null>(null);
  error = $state<string | null>(null);
  readonly #upload: Upload<Attachment>;
  /** Resolves when the upload has ended, well or not. */
  readonly done: Promise<void>;

  constructor(file: File) {
    this.file = file;
    this.preview = file.type.startsWith("image/") ? URL.createObjectURL(file) : null;
    this.#upload = uploadAttachment(file, (fraction) => (this.progress = fraction));
    this.done = this.#wait();
  }

  /** Stop the upload and forget the preview. */
  discard(): void {
    this.#upload.cancel();
    if (this.preview) URL.revokeObjectURL(this.preview);
  }

  async #wait(): Promise<void> {
    try {
      this.attachment = await this.#upload.result;
    } catch (error) {
      if (!isAbort(error)) this.error = messageOf(error);
    }
  }
}

export class Drafts {
  files = $state<DraftFile[]>([]);

  readonly uploading: boolean = $derived(
    this.files.some(({ attachment, error }) => attachment === null && error === null),
  );

  add(files: Iterable<File>): void {
    for (const file of files) this.files.push(new DraftFile(file));
  }

  remove(draft: DraftFile): void {
    draft.discard();
    this.files = this.files.filter((other) => other !== draft);
  }

  /** Return the attachments that were uploaded, and forget all files. */
  take(): Attachment[] {
    const taken = this.files.flatMap(({ attachment }) => (attachment ? [attachment] : []));
    for (const draft of this.files) draft.discard();
    this.files = [];
    return taken;
  }
}
